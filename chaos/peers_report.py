"""What `queenright bench peers` says: a table of supervisors for each thing that was measured."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

from attrs import asdict

from supervisor import wording

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from chaos.bench_peers import Line, Sample
    from chaos.bench_report import Machine

HEAD: Final = ("what", "who", "median", "p95", "bare loop", "goal", "n")
NEVER: Final = "never"
"""Not within the limit: of the median, for half of them or more."""


def rows(lines: Sequence[Line]) -> list[tuple[str, ...]]:
    """The table's cells as text. What was measured stands in the first row of its supervisors only."""
    found: list[tuple[str, ...]] = []
    before = ""
    for line in lines:
        found.append(
            (
                line.what if line.what != before else "",
                line.peer,
                _amount(line.middle, line.unit),
                _amount(line.late, line.unit) if line.n > 1 else "-",
                f"{line.ratio:.2f}" if line.ratio is not None else "-",
                f"<= {_amount(line.goal, line.unit)}: {line.verdict}" if line.goal is not None else "-",
                str(line.n),
            )
        )
        before = line.what
    return found


def plain(lines: Sequence[Line]) -> str:
    """The table for what is no terminal."""
    return wording.table([HEAD, *rows(lines)])


def tell(lines: Sequence[Line], skipped: Mapping[str, str], children: str) -> None:
    """All of it, on standard output."""
    print(f"{children}\n")
    if sys.stdout.isatty():
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        colours = {"met": "green", "missed": "red"}
        table = Table(box=None, pad_edge=False, header_style="bold")
        for title in HEAD:
            table.add_column(title, justify="right" if title in HEAD[2:5] else "left", overflow="fold")
        for line, cells in zip(lines, rows(lines), strict=True):
            table.add_row(*(Text(cell, style=colours.get(line.verdict, "")) for cell in cells))
        Console().print(table)
    else:
        print(plain(lines))
    for name, why in skipped.items():
        print(f"{name}: not measured: {why}")


def as_data(
    where: Machine, lines: Sequence[Line], samples: Sequence[Sample], skipped: Mapping[str, str], children: str
) -> dict[str, Any]:
    """The same for programs, with every sample in the order in which it was taken; None is never."""
    return {
        "machine": asdict(where) | {"warning": where.warning},
        "children": children,
        "lines": [asdict(line) | {"verdict": line.verdict or None} for line in lines],
        "samples": [asdict(sample) for sample in samples],
        "skipped": dict(skipped),
    }


def _amount(value: float | None, unit: str) -> str:
    if value is None:
        return NEVER
    return f"{value:g}" if not unit else f"{value:.2f} {unit}"
