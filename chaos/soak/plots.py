"""Plots of a report as SVG: lines, dots and bars on axes with round numbers. Pure; nothing but text comes out."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

WIDTH: Final = 900
LEFT: Final = 56
"""Room for the numbers of the axis."""
TOP: Final = 10
BOTTOM: Final = 20
HUES: Final = (
    "#4e79a7",
    "#f28e2b",
    "#b07aa1",
    "#2ab7ca",
    "#9c755f",
    "#d4a017",
    "#d37295",
    "#79706e",
    "#6b5bd2",
    "#a0cbe8",
)
"""None of them is a verdict's."""
COLOURS: Final = {"holds": "#59a14f", "broken": "#c62828", "unknown": "#f9a825"}


def hue(number: int) -> str:
    """A colour for the line or fault of that number."""
    return HUES[number % len(HUES)]


def ticks(most: float, about: int = 4) -> list[float]:
    """Round numbers from 0 to just above `most`, a handful of them."""
    if most <= 0:
        return [0.0, 1.0]
    step = 10.0**-6
    for digits in range(-6, 13):
        for lead in (1, 2, 5):
            step = lead * 10.0**digits
            if most / step <= about:
                return [step * number for number in range(int(most / step + 0.9999) + 1)]
    return [0.0, most]


def number(value: float) -> str:
    """A tick's text."""
    return f"{value:,.0f}" if value >= 10 or value == int(value) else f"{value:g}"


class Axes:
    """One plot: x from 0 to `last`, y from 0 to a round number above `most`."""

    def __init__(self, last: float, most: float, *, height: int = 160, width: int = WIDTH, unit: str = "") -> None:
        self.height, self.width = height, width
        self._last = max(last, 1e-9)
        rows = ticks(most)
        self._top = rows[-1]
        self._parts: list[str] = []
        for row in rows:
            y = self.y(row)
            words = number(row) + (f" {unit}" if row == rows[-1] and unit else "")
            self._parts.append(
                f'<path class=g d="M{LEFT} {y:.1f}H{width}"/><text x="{LEFT - 4}" y="{y + 4:.1f}" class=e>{words}</text>'
            )

    def x(self, value: float) -> float:
        """On the paper."""
        return LEFT + value / self._last * (self.width - LEFT - 8)

    def y(self, value: float) -> float:
        """On the paper."""
        return self.height - BOTTOM - value / self._top * (self.height - BOTTOM - TOP)

    def columns(self, unit: str) -> None:
        """Numbers along x."""
        for value in ticks(self._last, 8):
            if value <= self._last:
                self._parts.append(
                    f'<text x="{self.x(value):.1f}" y="{self.height - 4}" class=m>{number(value)}{unit if value else ""}</text>'
                )

    def line(self, points: Iterable[tuple[float, float]], colour: str, words: str = "") -> None:
        """A line through them."""
        drawn = " ".join(f"{self.x(x):.0f},{self.y(y):.1f}" for x, y in points)
        title = f"<title>{html.escape(words)}</title>" if words else ""
        self._parts.append(f'<polyline points="{drawn}" stroke="{colour}">{title}</polyline>')

    def dots(self, points: Iterable[tuple[float, float, str]], colour: str, *, size: float = 2.0) -> None:
        """A dot for each, with the words that are shown when it is pointed at."""
        drawn = "".join(
            f'<circle cx="{self.x(x):.0f}" cy="{self.y(y):.1f}" r="{size:g}">'
            + (f"<title>{html.escape(words)}</title>" if words else "")
            + "</circle>"
            for x, y, words in points
        )
        self._parts.append(f'<g fill="{colour}">{drawn}</g>')

    def svg(self, label: str) -> str:
        """All of it."""
        return (
            f'<svg viewBox="0 0 {self.width} {self.height}" role="img" aria-label="{html.escape(label)}">'
            f"{''.join(self._parts)}</svg>"
        )


def legend(names: Mapping[str, str]) -> str:
    """What the colours stand for."""
    marks = "".join(
        f'<span><i style="background:{colour}"></i>{html.escape(name)}</span>' for name, colour in names.items()
    )
    return f"<p class=legend>{marks}</p>"


def timeline(rounds: Sequence[tuple[int, str, str]], faults: Mapping[str, str]) -> str:
    """A box for each round (number, verdict, fault): high and in the fault's colour where there was one, and red or yellow
    below where something did not hold."""
    step = (WIDTH - LEFT) / max(len(rounds), 1)
    boxes = []
    for place, (which, verdict, fault) in enumerate(rounds):
        x, wide = LEFT + place * step, max(step - 0.4, 0.4)
        words = html.escape(f"round {which}: {verdict}" + (f", {fault}" if fault else ""))
        if fault:
            boxes.append(
                f'<rect x="{x:.1f}" y="4" width="{wide:.1f}" height="18" fill="{faults[fault]}"><title>{words}</title></rect>'
            )
        boxes.append(
            f'<rect x="{x:.1f}" y="26" width="{wide:.1f}" height="14" fill="{COLOURS[verdict]}"><title>{words}</title></rect>'
        )
    texts = f'<text x="{LEFT - 4}" y="17" class=e>fault</text><text x="{LEFT - 4}" y="37" class=e>verdict</text>'
    ends = (
        f'<text x="{LEFT}" y="54" class=s>round 1</text><text x="{WIDTH}" y="54" class=e>round {rounds[-1][0]}</text>'
        if rounds
        else ""
    )
    return f'<svg viewBox="0 0 {WIDTH} 58" role="img" aria-label="rounds">{texts}{"".join(boxes)}{ends}</svg>'


def strips(rows: Mapping[str, Sequence[float]], colours: Mapping[str, str]) -> str:
    """A row for each name with a dot for each value, all on one axis of seconds, and a bar at the median."""
    most = max((value for values in rows.values() for value in values), default=0.0)
    height, last = 26, ticks(most, 8)[-1]
    left = 130

    def x(value: float) -> float:
        return left + value / last * (WIDTH - left - 10)

    parts = []
    for place, (name, values) in enumerate(rows.items()):
        middle = place * height + 14
        parts.append(f'<text x="{left - 8}" y="{middle + 4}" class=e>{html.escape(name)}</text>')
        parts.append(f'<path class=g d="M{left} {middle}H{WIDTH}"/>')
        dots = "".join(
            f'<circle cx="{x(value):.1f}" cy="{middle}" r="4"><title>{value:.2f} s</title></circle>' for value in values
        )
        parts.append(f'<g fill="{colours[name]}" fill-opacity=".35">{dots}</g>')
        if values:
            parts.append(f'<path class=k d="M{x(sorted(values)[len(values) // 2]):.1f} {middle - 9}v18"/>')
    bottom = len(rows) * height + 18
    parts += [f'<text x="{x(value):.1f}" y="{bottom}" class=m>{number(value)} s</text>' for value in ticks(most, 8)]
    return f'<svg viewBox="0 0 {WIDTH} {bottom + 6}" role="img" aria-label="recovery by fault">{"".join(parts)}</svg>'
