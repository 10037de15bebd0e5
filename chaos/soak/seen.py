"""What is seen from outside after a round, as plain data, and who gathers it: /proc, kernel locks, and our own load."""

from __future__ import annotations

import os
from contextlib import suppress
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from supervisor import identity, locks, membership
from supervisor.contract import GENERATION_VARIABLE
from supervisor.errors import QueenrightError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from chaos.observer import Sighting
    from supervisor.identity import Identity
    from supervisor.slot import Slot


BOOK_WAIT = 5.0  # budget: for the lock of the machine's book of memory, under which others plan for milliseconds


class Ended(NamedTuple):
    """One request of the load, as its caller had it. `first_byte`: a byte of the answer had come."""

    way: str
    """`client` or `gateway`."""
    role: str
    outcome: str
    """complete, interrupted, refused (503 with Retry-After), unreachable (nobody listened: nothing was sent), or failed."""
    seconds: float
    first_byte: bool = False
    why: str = ""
    id: str = ""
    kind: str = ""
    """Of `asking.KINDS`."""
    prompt: int = 0
    began: float = 0.0
    """On the monotonic clock, which all processes share."""
    first_s: float | None = None
    """From then to its first byte."""
    deadline_s: float = 0.0
    """What it might take to its first byte or its refusal."""
    text: str = ""
    """What came of the answer."""

    @property
    def ended_at(self) -> float:
        """On the monotonic clock."""
        return self.began + self.seconds


class Kill(NamedTuple):
    """A fault that was done: one line of the kill log. Times are on the monotonic clock."""

    at: float
    until: float
    """When it was healed, and the engine whole without whom it hit."""
    round: int
    fault: str
    pids: tuple[int, ...]
    touched: frozenset[str]
    """Groups, and `keeper` and `warden`, that it may have to do with."""

    def carried(self, one: Ended, carriers: Mapping[str, str]) -> bool:
        """Whether it hit, in the time of that request, what carried it: its group, or for a caller of the gateway the
        keeper. `carriers`: the group of each role."""
        mine = {carriers.get(one.role, ""), *(("keeper", "warden") if one.way == "gateway" else ())}
        return bool(mine & self.touched) and one.began <= self.until and one.ended_at >= self.at


class Usage(NamedTuple):
    """What a process holds: bytes that it wrote and that are its own, descriptors, threads. Not USS and not PSS: pages of a
    model's file are a process's own as long as no other maps them (43 MB came and went with another engine's start)."""

    memory: int
    descriptors: int
    threads: int


class Execution(NamedTuple):
    """A request at a server, by the server's own receipt: when it came, and what of it was written."""

    at: float
    """On the monotonic clock."""
    pid: int
    tokens: int | None = None
    """Written when the answer was whole, None while it is not."""


class Counted(NamedTuple):
    """What the gateway says of an outcome, beside what its callers say: at least, at most."""

    outcome: str
    least: int
    counted: int
    most: int


class Round(NamedTuple):
    """All that is judged after a round. None stands for what could not be looked at."""

    number: int
    planned: Mapping[str, int]
    """Servers by group."""
    carriers: Mapping[str, str]
    """The group that serves a role, by role."""
    sighting: Sighting | None
    marked: Collection[tuple[Identity, str]] | None
    """Processes that carry the marker of any generation of this slot, of now or of earlier, with it."""
    current: Collection[str]
    """Generations that the slot has on record."""
    zombies: Collection[int] | None
    member_locks: Collection[int] | None
    """Pids that hold membership locks."""
    front_ends: Collection[int]
    """Pids of the front ends that are members now."""
    engines_beside: Collection[str]
    """Private slots in which an engine lives."""
    ended: Sequence[Ended]
    kills: Sequence[Kill]
    """The kill log, of this round and of the one before: a request may have begun in it."""
    usage: Mapping[str, Usage] | None
    """By who it is: keeper, warden, and each group's servers and proxy together."""
    open: Sequence[tuple[str, float]] = ()
    """Requests that were asked and have not ended: id, and seconds past the time by which they had to be over (below 0: in
    time; infinite where their caller is gone)."""
    served: Mapping[str, Sequence[Execution]] | None = MappingProxyType({})
    """What the servers wrote down of the requests that ended, by id. Empty where they write nothing down (`keeps_receipts`),
    None where it could not be read."""
    keeps_receipts: bool = False
    strays: Sequence[str] = ()
    """Executions of requests that nobody asked, or that were over when they began."""
    controls: Mapping[tuple[str, int], str] = MappingProxyType({})
    """The text that a request must have, by kind and prompt, where it is a function of them."""
    ledger: Sequence[Counted] | None = ()
    """The gateway's own counts; None where they could not be read, empty where there is no gateway."""
    promises: Sequence[str] | None = ()
    """The groups with a promise of memory in the machine's book, each as often as it has one; None: the book could not be
    read."""


def usage_of(processes: Collection[Identity]) -> Usage | None:
    """The sums; None where one could not be read."""
    memory = descriptors = threads = 0
    for process in processes:
        try:
            descriptors += len(os.listdir(f"/proc/{process.pid}/fd"))
            threads += len(os.listdir(f"/proc/{process.pid}/task"))
        except OSError:
            return None
        if (own := own_memory(process.pid)) is None:
            return None
        memory += own
    return Usage(memory, descriptors, threads) if processes else None


def own_memory(pid: int) -> int | None:
    """Private bytes that are on no disk, swapped out or not (proc_pid_smaps(5)); None where that cannot be read: a figure of 0
    would be as flat as any."""
    with suppress(OSError), open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as file:
        return sum(int(line.split()[1]) * 1024 for line in file if line.startswith(("Private_Dirty:", "Swap:")))
    return None


def usages(sighting: Sighting) -> dict[str, Usage] | None:
    """Of everybody in the slot."""
    parts: dict[str, list[Identity]] = {"warden": [], "keeper": []}
    for name, one in (("warden", sighting.warden), ("keeper", sighting.keeper)):
        parts[name] += [one] if one else []
    for group in sighting.leaders:
        parts[group] = list(sighting.group(group))
    found = {name: usage_of(processes) for name, processes in parts.items()}
    return {name: one for name, one in found.items() if one is not None} if all(found.values()) else None


class Gatherer:
    """Looks at one slot, and remembers the generations that it ever had: what carries an old one's marker is a leftover."""

    def __init__(self, slot: Slot) -> None:
        self._slot = slot
        self._ever: set[str] = set()

    def generations(self) -> set[str]:
        """On record now. To be called often enough that none is missed."""
        current = {generation for _, generation in self._slot.generations()}
        self._ever |= current
        return current

    def marked(self) -> list[tuple[Identity, str]] | None:
        """Who carries the marker of one of them."""
        with suppress(OSError):
            return [(who, mark) for who, mark in identity.with_marker(GENERATION_VARIABLE) if mark in self._ever]
        return None

    def zombies(self) -> list[int] | None:
        """Children of the warden that are dead, at two looks: nobody reaps them. One that is being swept is gone at the
        second."""
        found = [self._dead_children() for _ in range(2)]
        return None if None in found else [pid for pid in found[0] or [] if pid in (found[1] or [])]

    def _dead_children(self) -> list[int] | None:
        warden = next(iter(locks.holders(self._slot.warden_lock)), None)
        if warden is None:
            return None
        with suppress(OSError):
            return [one.pid for one in identity.descendants(warden) if identity.stat_of(one.pid).is_dead]
        return None

    def member_locks(self) -> list[int] | None:
        """By trying each lock."""
        with suppress(QueenrightError):
            return sorted(member.pid for member in membership.members(self._slot) if member.pid is not None)
        return None

    def promises(self) -> list[str] | None:
        """The groups of this slot that the machine's book of memory has a promise for, as often as it has one."""
        from supervisor.devices import reservations

        with suppress(QueenrightError), reservations.planning(wait=BOOK_WAIT) as book:
            return sorted(one.group for one in book.live().values() if one.slot == str(self._slot.path))
        return None

    def engines_beside(self) -> list[str]:
        """Private slots whose warden lives."""
        return [str(one.path) for one in self._slot.private_slots() if locks.is_held(one.warden_lock) is not False]
