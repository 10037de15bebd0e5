"""What a soak leaves: JSON lines while it runs, and one HTML file that needs nothing else."""

from __future__ import annotations

import html
import json
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

WIDTH: Final = 900
HEIGHT: Final = 160
COLOURS: Final = {"holds": "#2e7d32", "broken": "#c62828", "unknown": "#f9a825"}

STYLE: Final = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 60rem; padding: 0 1rem; color: #222; background: #fff }
table { border-collapse: collapse } td, th { padding: .2rem .8rem .2rem 0; text-align: left; vertical-align: top }
svg { background: #f6f6f6; margin: .3rem 0 1rem } .holds { color: #2e7d32 } .broken { color: #c62828 } .unknown { color: #b26a00 }
@media (prefers-color-scheme: dark) { body { color: #ddd; background: #181818 } svg { background: #242424 } }
"""

NOT_COVERED: Final = (
    "What this run did not cover: GPUs and their drivers, models and prompts other than these, more callers than these, other"
    " machines and kernels, days of idling, and every fault that is not in the list above."
)


def page(run: dict[str, Any]) -> str:
    """The report of a run, as `soak.as_data` tells it."""
    rounds: list[dict[str, Any]] = run["rounds"]
    verdict = run["verdict"]
    parts = [
        f"<h1>Soak: <span class={verdict}>{verdict}</span></h1>",
        f"<p><code>{html.escape(run.get('command', ''))}</code></p>",
        _table(_summary(run)),
        "<h2>Rounds</h2>",
        timeline(rounds),
        "<h2>Recovery, by fault</h2>",
        _table([("fault", "times", "median", "most"), *recovery(rounds)], head=True),
        "<h2>Requests: the slowest of each round, in seconds</h2>",
        curve([("slowest", [one["latency_s"] for one in rounds])]),
        "<h2>Memory that is their own, in MiB</h2>",
        curve(usage(rounds, "memory", 2**20)),
        "<h2>Descriptors</h2>",
        curve(usage(rounds, "descriptors", 1)),
        "<h2>What did not hold</h2>",
        _table([("round", "invariant", "verdict", "seen"), *broken(run)], head=True),
        f"<p>{NOT_COVERED}</p>",
    ]
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>queenright soak</title>'
        f"<style>{STYLE}</style>{''.join(parts)}</html>\n"
    )


def outcomes(rounds: Sequence[dict[str, Any]]) -> dict[str, int]:
    """Requests of the whole run by outcome."""
    found: dict[str, int] = {}
    for one in rounds:
        for outcome, times in one["outcomes"].items():
            found[outcome] = found.get(outcome, 0) + times
    return found


def recovery(rounds: Sequence[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """Seconds from a fault to a whole engine: times, median and most, by fault."""
    by_fault: dict[str, list[float]] = {}
    for one in rounds:
        if one["fault"]:
            by_fault.setdefault(one["fault"], []).append(one["recovery_s"])
    return [
        (fault, len(times), f"{sorted(times)[len(times) // 2]:.2f} s", f"{max(times):.2f} s")
        for fault, times in sorted(by_fault.items())
    ]


def broken(run: dict[str, Any]) -> list[tuple[Any, ...]]:
    """Every judgement that was not green."""
    rows = [
        (one["number"], j["invariant"], j["verdict"], j["seen"]) for one in run["rounds"] for j in one["judgements"]
    ]
    rows += [("end", j["invariant"], j["verdict"], j["seen"]) for j in run["end"] if j["verdict"] != "holds"]
    return rows or [("", "nothing", "", "")]


def usage(rounds: Sequence[dict[str, Any]], what: str, unit: float) -> list[tuple[str, list[float]]]:
    """Curves by who it is; rounds that could not be measured are left out."""
    measured = [one["usage"] for one in rounds if one["usage"]]
    return [
        (who, [one[who][what] / unit for one in measured if who in one]) for who in (measured[-1] if measured else {})
    ]


def _summary(run: dict[str, Any]) -> list[tuple[Any, ...]]:
    rounds = run["rounds"]
    count = ", ".join(f"{times} {outcome}" for outcome, times in sorted(outcomes(rounds).items()))
    green = sum(one["verdict"] == "holds" for one in rounds)
    return [
        ("rounds", f"{len(rounds)}, of which {green} green"),
        ("seconds", f"{rounds[-1]['at_s']:.0f}" if rounds else "0"),
        ("requests", count),
        ("machine", run.get("machine", "")),
        ("seed", run.get("seed", "")),
        ("faults", run.get("faults", "")),
        ("judged after each round", ", ".join(run.get("invariants", []))),
        ("judged at the end", ", ".join(one["invariant"] for one in run["end"])),
    ]


def _table(rows: Sequence[tuple[Any, ...]], *, head: bool = False) -> str:
    cells = []
    for number, row in enumerate(rows):
        tag = "th" if head and number == 0 else "td"
        cells.append("<tr>" + "".join(f"<{tag}>{html.escape(str(cell))}</{tag}>" for cell in row) + "</tr>")
    return f"<table>{''.join(cells)}</table>"


def timeline(rounds: Sequence[dict[str, Any]]) -> str:
    """A box for each round in the colour of its verdict; a mark where there was a fault."""
    if not rounds:
        return ""
    step = WIDTH / len(rounds)
    boxes = []
    for number, one in enumerate(rounds):
        words = html.escape(f"round {one['number']}: {one['verdict']}" + (f", {one['fault']}" if one["fault"] else ""))
        height = 30 if one["fault"] else 18
        boxes.append(
            f'<rect x="{number * step:.1f}" y="{36 - height}" width="{max(step - 0.5, 0.5):.1f}" height="{height}"'
            f' fill="{COLOURS[one["verdict"]]}"><title>{words}</title></rect>'
        )
    return f'<svg viewBox="0 0 {WIDTH} 40" width="100%">{"".join(boxes)}</svg>'


def curve(lines: Sequence[tuple[str, Sequence[float]]]) -> str:
    """Lines over the rounds, from 0 to the most there was."""
    most = max((value for _, values in lines for value in values), default=0.0)
    if most <= 0:
        return "<p>nothing was measured</p>"
    drawn = [f'<text x="4" y="12" font-size="11" fill="gray">{most:,.1f}</text>']
    hues = ("#1565c0", "#ef6c00", "#6a1b9a", "#00838f", "#558b2f", "#ad1457")
    for number, (name, values) in enumerate(lines):
        hue, last = hues[number % len(hues)], max(len(values) - 1, 1)
        points = " ".join(
            f"{x / last * WIDTH:.1f},{HEIGHT - value / most * (HEIGHT - 16):.1f}" for x, value in enumerate(values)
        )
        drawn.append(f'<polyline points="{points}" fill="none" stroke="{hue}" stroke-width="1.5"/>')
        drawn.append(f'<text x="{90 + number * 120}" y="12" font-size="11" fill="{hue}">{html.escape(name)}</text>')
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" width="100%">{"".join(drawn)}</svg>'


def compare(first: dict[str, Any], second: dict[str, Any]) -> str:
    """Two runs side by side, as text."""
    rows: list[tuple[str, str, str]] = [("", "A", "B")]
    rows.append(("verdict", first["verdict"], second["verdict"]))
    rows.append(("rounds", str(len(first["rounds"])), str(len(second["rounds"]))))
    counts = outcomes(first["rounds"]), outcomes(second["rounds"])
    for outcome in sorted({*counts[0], *counts[1]}):
        rows.append((f"requests {outcome}", *(str(one.get(outcome, 0)) for one in counts)))  # type: ignore[arg-type]
    times = [
        {fault: f"{median} (most {most})" for fault, _, median, most in recovery(run["rounds"])}
        for run in (first, second)
    ]
    for fault in sorted({*times[0], *times[1]}):
        rows.append((f"recovery: {fault}", times[0].get(fault, "-"), times[1].get(fault, "-")))
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def line(row: dict[str, Any]) -> str:
    """One round as a line of JSON."""
    return json.dumps(row, separators=(",", ":"))
