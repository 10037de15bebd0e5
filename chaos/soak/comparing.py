"""Two runs side by side, as text: `queenright soak compare A B`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from chaos.soak import report
from supervisor import wording

if TYPE_CHECKING:
    from collections.abc import Mapping


def compare(first: dict[str, Any], second: dict[str, Any]) -> str:
    """What differs is marked, where a difference means something."""
    runs = (first, second)
    rows: list[tuple[str, str, str]] = [("", "A", "B")]

    def row(name: str, one: object, two: object) -> None:
        rows.append((name, str(one), str(two)))

    row("verdict", first["verdict"], second["verdict"])
    row("rounds", *(len(run["rounds"]) for run in runs))
    row("green", *(sum(one["verdict"] == "holds" for one in run["rounds"]) for run in runs))
    row("seconds a round", *(_pace(run) for run in runs))
    counts = [report.outcomes(run["rounds"]) for run in runs]
    for outcome in sorted({*counts[0], *counts[1]}):
        row(f"requests {outcome}", *(one.get(outcome, 0) for one in counts))
    times = [{row[0]: f"{row[-2]} (most {row[-1]})" for row in report.recovery(run["rounds"])} for run in runs]
    _pairs(row, "recovery without pauses", *times)
    _pairs(
        row,
        "latency",
        *({name: f"{middle} (most {most})" for name, middle, most in report.latency(run["rounds"])} for run in runs),
    )
    _pairs(row, "memory at the end", *(_last(run) for run in runs))
    return wording.table(rows)


def _pairs(row: Any, what: str, first: Mapping[str, str], second: Mapping[str, str]) -> None:
    for name in sorted({*first, *second}):
        row(f"{what}: {name}", first.get(name, "-"), second.get(name, "-"))


def _pace(run: dict[str, Any]) -> str:
    rounds = run["rounds"]
    return f"{rounds[-1]['at_s'] / len(rounds):.2f}" if rounds else "-"


def _last(run: dict[str, Any]) -> dict[str, str]:
    measured = [one["usage"] for one in run["rounds"] if one["usage"]]
    return {who: f"{figures[0] / 2**20:.1f} MiB" for who, figures in measured[-1].items()} if measured else {}
