"""All faults there are, by name, and in which round each comes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from chaos.soak.faults import clock, comers, damage, disk, holds, kills, memory, orders, ports, stops

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from chaos.soak.faults.ground import Fault

FAULTS: Final[dict[str, Fault]] = {
    fault.name: fault
    for fault in (
        kills.Server(),
        kills.Proxy(),
        kills.Keeper(),
        kills.GroupAndKeeper(),
        kills.Several(),
        kills.Warden(),
        kills.TermToAll(),
        stops.StoppedProxy(),
        stops.StoppedServer(),
        stops.StoppedKeeper(),
        stops.Blip(),
        orders.Wedge(),
        orders.BlackHole(),
        holds.IgnoredTerm(),
        ports.PortThief(),
        disk.DiskFull(),
        disk.LogFlood(),
        damage.CorruptRecords(),
        damage.TruncatedRecords(),
        clock.ClockJump(),
        comers.MemberKilled(),
        comers.TwoBuilders(),
        comers.BuilderKilled(),
        memory.SlowRelease(),
        memory.OutOfMemory(),
    )
}
DEFAULT: Final = ("server", "proxy", "keeper")


def schedule(names: Iterable[str], every: int) -> Iterator[str | None]:
    """Round by round, from the first: each fault in turn, every so many rounds; None for a round without one."""
    turn = list(names)
    number = 0
    while True:
        number += 1
        yield turn[(number // every - 1) % len(turn)] if turn and number % every == 0 else None
