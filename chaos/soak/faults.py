"""Faults as packages: whom it hits, what it does, how it is healed. Each is told what is there by who looks from outside.

A fault says what it touched; healing is idempotent, and runs also when the soak is interrupted.
"""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Final, NamedTuple

from supervisor import identity

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterable, Iterator

    from chaos.observer import Sighting
    from supervisor.identity import Identity


class Hit(NamedTuple):
    """What a fault did: the processes, and the groups (or `keeper`, `warden`) that may have to do with it."""

    victims: tuple[Identity, ...]
    touched: frozenset[str]
    must_end: bool
    """Whether they are to be gone afterwards; who is only stopped may come back as he is."""


class Fault(NamedTuple):
    """A kind of fault. `victims` chooses, out of what is there and with the soak's random numbers; None where it cannot
    be done now. `heal` undoes what does not undo itself."""

    name: str
    what: str
    number: int
    victims: Callable[[Sighting, random.Random], tuple[tuple[Identity, ...], frozenset[str]] | None]
    must_end: bool = True

    def invoke(self, sighting: Sighting, chance: random.Random) -> Hit | None:
        """Do it, all at once."""
        chosen = self.victims(sighting, chance)
        if chosen is None:
            return None
        victims, touched = chosen
        for victim in victims:
            identity.signal_exact(victim, self.number)
        return Hit(victims, touched, self.must_end)


def heal(hit: Hit) -> None:
    """Whoever was stopped goes on; the dead stay dead."""
    for victim in hit.victims:
        identity.signal_exact(victim, signal.SIGCONT)


def _a_group(sighting: Sighting, chance: random.Random) -> str | None:
    whole = sorted(name for name in sighting.leaders if sighting.servers.get(name))
    return chance.choice(whole) if whole else None


def _server(sighting: Sighting, chance: random.Random) -> tuple[tuple[Identity, ...], frozenset[str]] | None:
    group = _a_group(sighting, chance)
    return ((chance.choice(sighting.servers[group]),), frozenset([group])) if group else None


def _proxy(sighting: Sighting, chance: random.Random) -> tuple[tuple[Identity, ...], frozenset[str]] | None:
    group = _a_group(sighting, chance)
    return ((sighting.leaders[group],), frozenset([group])) if group else None


def _keeper(sighting: Sighting, _: random.Random) -> tuple[tuple[Identity, ...], frozenset[str]] | None:
    return ((sighting.keeper,), frozenset(["keeper"])) if sighting.keeper else None


def _pair(sighting: Sighting, chance: random.Random) -> tuple[tuple[Identity, ...], frozenset[str]] | None:
    group = _a_group(sighting, chance)
    if group is None or sighting.keeper is None:
        return None
    return (sighting.keeper, *sighting.group(group)), frozenset([group, "keeper"])


def _engine(sighting: Sighting, _: random.Random) -> tuple[tuple[Identity, ...], frozenset[str]] | None:
    everybody = tuple(sorted(sighting.engine, key=lambda one: one.pid))
    return (everybody, frozenset(sighting.leaders)) if everybody else None


def _warden(sighting: Sighting, _: random.Random) -> tuple[tuple[Identity, ...], frozenset[str]] | None:
    return ((sighting.warden,), frozenset([*sighting.leaders, "keeper", "warden"])) if sighting.warden else None


FAULTS: Final = {
    fault.name: fault
    for fault in (
        Fault("server", "kill -9 of a server", signal.SIGKILL, _server),
        Fault("proxy", "kill -9 of a proxy", signal.SIGKILL, _proxy),
        Fault("keeper", "kill -9 of the keeper", signal.SIGKILL, _keeper),
        Fault("group and keeper", "kill -9 of a whole group and the keeper in one instant", signal.SIGKILL, _pair),
        Fault(
            "warden", "kill -9 of the warden: the engine ends, and its members build another", signal.SIGKILL, _warden
        ),
        Fault("stopped proxy", "SIGSTOP of a proxy, until it is replaced", signal.SIGSTOP, _proxy),
        Fault("stopped server", "SIGSTOP of a server, until it is replaced", signal.SIGSTOP, _server),
        Fault("term to all", "SIGTERM to every proxy and server at once", signal.SIGTERM, _engine),
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
