"""What `bench sweep` says: the table, and the data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from attrs import asdict

from chaos.bench_sweep import DIRECT
from supervisor import wording

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chaos.bench_sweep import Level, Sweep

NOT_COVERED: Final = (
    "one model and one length of prompt and answer; streamed chat only; every prompt new to the server's cache; callers on "
    "this machine"
)


def table(levels: Sequence[Level]) -> str:
    """For people."""
    head = ("at once", "way", "tokens/s each", "all together", "first token p50", "p95", "p99", "n")
    rows = [
        (
            str(one.streams), one.way, f"{one.per_stream:.1f}", f"{one.aggregate:.1f}",
            *(f"{1000 * value:.0f} ms" for value in (one.p50, one.p95, one.p99)), str(one.requests),
        )
        for one in levels
    ]  # fmt: skip
    return wording.table([head, *rows])


def most(levels: Sequence[Level]) -> str:
    """Where the most tokens came, for people."""
    best = max((one for one in levels if one.way == DIRECT), key=lambda one: one.aggregate)
    return f"most: {best.aggregate:.1f} tokens/s at {best.streams} at once"


def as_data(sweep: Sweep) -> dict[str, Any]:
    """For programs."""
    return {
        "levels": [asdict(one) for one in sweep.levels],
        "costs": [asdict(one) for one in sweep.costs],
        "rounds": list(sweep.rounds),
        "not_covered": NOT_COVERED,
    }
