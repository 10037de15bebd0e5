"""What a fault is: what it is given, what it says it did, and what must hold around it.

A fault undoes itself by `ground.undo`: it says how before it does it, so that a soak that is interrupted in the middle of
a fault heals it as one that ended does. Undoing twice does nothing the second time.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final

from supervisor import identity
from supervisor.identity import Liveness

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Collection
    from contextlib import ExitStack
    from pathlib import Path

    from chaos.observer import Sighting
    from supervisor.identity import Identity
    from supervisor.slot import Slot

WHO_RULES: Final = ("keeper", "warden")


@dataclass(frozen=True, slots=True)
class Ground:
    """What a fault is given. `before` is the engine as it was seen, whole; `front_ends` are the pids of the members under
    load; `chance` is seeded, and the only source of chance."""

    slot: Slot
    config: Path
    before: Sighting
    chance: random.Random
    undo: ExitStack
    front_ends: tuple[int, ...] = ()

    def a_group(self) -> str:
        """One of those with a proxy and servers."""
        return self.chance.choice(sorted(name for name in self.before.leaders if self.before.servers.get(name)))

    def a_leader(self) -> str:
        """Any group: its leader is a proxy, or serves itself, or watches who does."""
        return self.chance.choice(sorted(self.before.leaders))

    def a_server(self, group: str) -> Identity:
        """One of the group's."""
        return self.chance.choice(sorted(self.before.servers[group], key=lambda one: one.pid))

    @property
    def keeper(self) -> Identity:
        """It is there: the engine was whole."""
        assert self.before.keeper is not None  # noqa: S101 - `whole` says so
        return self.before.keeper

    @property
    def warden(self) -> Identity:
        """As the keeper."""
        assert self.before.warden is not None  # noqa: S101 - `whole` says so
        return self.before.warden

    @property
    def all_touched(self) -> frozenset[str]:
        """Everybody: what a warden's death touches."""
        return frozenset([*self.before.leaders, *WHO_RULES])

    def kill(self, who: Identity, number: int) -> None:
        """Signal exactly that process, if it is still there."""
        identity.signal_exact(who, number)


def _nothing_wrong() -> str:
    return ""


def _at_once() -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Hit:
    """What a fault did, and what must hold. `touched` are the groups (or `keeper`, `warden`) that may have to do with it:
    only what they carried may be broken off, and whatever is not among them is the same process afterwards."""

    victims: tuple[Identity, ...] = ()
    touched: frozenset[str] = frozenset()
    must_end: bool = True
    """Whether the victims are to be gone, and others in their place; who is only stopped for a moment stays who he is."""
    heals_first: bool = False
    """Whether the engine can be whole again only once the fault is healed; otherwise it must become so while it lasts."""
    until: Callable[[], bool] = _at_once
    """What must be seen before it is healed."""
    wrong: Callable[[], str] = _nothing_wrong
    """Asked at the end, once all is whole and answers: what does not hold that must, "" where all does."""


class Fault(ABC):
    """A kind of fault. `what` is said of it in `--help`."""

    name: ClassVar[str]
    what: ClassVar[str]

    def obstacle(self, ground: Ground) -> str:
        """Why it cannot be done on this engine or machine: it is skipped, and this is said. "" where it can."""
        del ground
        return ""

    @abstractmethod
    def invoke(self, ground: Ground) -> Hit:
        """Do it; how it is undone stands in `ground.undo` before it is done. Raises NotObservedError where what it waits
        for does not come."""


def changed_beyond(touched: Collection[str], before: Sighting, after: Sighting) -> list[str]:
    """Who is another process now, or gone, though no fault had to do with him: groups, `keeper`, `warden`. Pure."""
    found = [name for name in before.leaders if name not in touched and after.group(name) != before.group(name)]
    return found + [who for who in WHO_RULES if who not in touched and getattr(after, who) != getattr(before, who)]


def is_dead(who: Identity) -> bool:
    """Whether it is proven."""
    return identity.liveness(who) is Liveness.DEAD


def pause(seconds: float) -> float:
    """Let it last; how long it really did, on a machine that has other things to do."""
    began = time.monotonic()
    time.sleep(seconds)
    return time.monotonic() - began
