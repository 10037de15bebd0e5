"""Did it come true: what was planned beside what the engine printed and what its processes hold. Pure.

No evidence is *unknown*, never fine: an engine that prints its sizes only when it lowered them was once read as one with
room to spare (docs/reference/memory.md, "Readback").
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from attrs import frozen

from supervisor.devices.held import Held
from supervisor.devices.shape import Figure, How

if TYPE_CHECKING:
    from collections.abc import Iterable

    from workers.printed import Printed

BAND_SHARE = 0.10
"""Part (not bytes) by which a measured figure may be above the planned one, before that is a warning. Estimates of the
planner are held to 8 % (docs/reference/memory.md)."""

BAND_BYTES = 64 * 2**20
"""And so many bytes at least: allocators' and libraries' part of a small server is larger than its model's."""


class Verdict(StrEnum):
    """Of one line."""

    AS_PLANNED = "as planned"
    OVER = "over"
    UNDER = "under"
    """Less than planned, which is shown and warns of nothing: a cache that is not filled yet has no pages."""
    ABSENT = "absent"
    """Nothing at all of what was planned is there: a server that was planned for a device runs without it, as after a
    suspend that lost the driver (ollama#5464)."""
    UNKNOWN = "unknown"


@frozen
class Line:
    """One thing: bytes planned and found. `found` is the best figure there is: printed, else measured."""

    what: str
    planned: int | None
    found: Figure
    verdict: Verdict


@frozen
class Asked:
    """What a server was asked for and what it serves: tokens per sequence, sequences, or positions of a pool. `effective`
    is None where there is no evidence, and `text` says what is known."""

    what: str
    requested: int
    effective: int | None
    text: str

    @property
    def is_lowered(self) -> bool | None:
        """Whether it took less than it was asked for; None where nobody knows."""
        return None if self.effective is None else self.effective < self.requested


@frozen
class Readback:
    """All lines of one group. `warnings` last as long as the generation does."""

    lines: tuple[Line, ...]
    asked: tuple[Asked, ...]
    processes: tuple[Held, ...]
    warnings: tuple[str, ...]


def line(what: str, planned: int | None, *figures: Figure) -> Line:
    """The first known figure in the order of `How` against the plan."""
    order = list(How)
    known = sorted((one for one in figures if one.is_known), key=lambda one: order.index(one.how))
    found = known[0] if known else (figures[0] if figures else Figure.unknown("nobody said it"))
    if planned is None or found.bytes is None:
        return Line(what, planned, found, Verdict.UNKNOWN)
    band = max(BAND_BYTES, int(planned * BAND_SHARE))
    if found.bytes == 0 and planned > band:
        return Line(what, planned, found, Verdict.ABSENT)
    if found.bytes > planned + band:
        return Line(what, planned, found, Verdict.OVER)
    return Line(what, planned, found, Verdict.UNDER if found.bytes < planned - band else Verdict.AS_PLANNED)


def asked(what: str, requested: int, effective: int | None, lowered: Iterable[str] = ()) -> Asked:
    """One requested value; `lowered` are the lines in which the server said that it took less."""
    if effective is None:
        return Asked(
            what, requested, None, f"{what}: {requested} asked for; what came of it is unknown, nothing says it"
        )
    if effective < requested:
        said = "; ".join(lowered) or "it gave no reason"
        return Asked(what, requested, effective, f"{what}: {requested} asked for, {effective} in effect ({said})")
    return Asked(what, requested, effective, f"{what}: {effective}, as asked for")


def read_back(
    *,
    planned: Iterable[tuple[str, int | None, tuple[Figure, ...]]],
    printed: Printed,
    context: int,
    sequences: int,
    pool: int | None = None,
    processes: tuple[Held, ...] = (),
    also: Iterable[Asked] = (),
) -> Readback:
    """The account of a loaded server. `planned` are (what, bytes, figures found); `context` is tokens per sequence; `also`
    is what else it was asked for."""
    lines = tuple(line(what, size, *figures) for what, size, figures in planned)
    answers = [
        asked("context per sequence", context, printed.context, printed.lowered),
        asked("sequences", sequences, printed.sequences),
    ]
    if pool is not None:
        answers = [asked("pool", pool, printed.pool, printed.lowered), *answers[1:]]
    answers += also
    warnings = [one.text for one in answers if one.is_lowered]
    for one in lines:
        if one.verdict is Verdict.OVER and one.found.bytes is not None and one.planned is not None:
            more = one.found.bytes - one.planned
            warnings.append(f"{one.what} takes {more / 2**20:.0f} MiB more than planned ({one.found.source})")
        elif one.verdict is Verdict.ABSENT and one.planned is not None:
            warnings.append(f"{one.what}: {one.planned / 2**20:.0f} MiB planned, and it has none ({one.found.source})")
    return Readback(lines, tuple(answers), processes, tuple(warnings))


def printed_figures(printed: Printed) -> dict[str, Figure]:
    """Each kind of buffer, over all places, as figures: `model`, `kv`, `compute` and so on."""
    sums: dict[str, int] = {}
    for one in printed.buffers:
        sums[one.kind.value] = sums.get(one.kind.value, 0) + one.bytes
    return {kind: Figure(size, "the server's own log", How.PRINTED) for kind, size in sums.items()}
