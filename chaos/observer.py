"""What runs in a slot, seen from outside: kernel locks, environment markers and descent. Never the engine's own word."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from supervisor import identity, locks, membership
from supervisor.contract import GENERATION_VARIABLE
from supervisor.errors import QueenrightError
from supervisor.identity import Identity

if TYPE_CHECKING:
    from collections.abc import Callable

    from supervisor.slot import Slot

T = TypeVar("T")
POLL = 0.01  # budget: between two looks; a look costs about 2 ms


class NotObservedError(QueenrightError):
    """Something that was to be seen was not seen in time."""


class Sighting(NamedTuple):
    """The processes of a slot at one moment. `leaders` and `servers` are by group."""

    warden: Identity | None
    keeper: Identity | None
    leaders: dict[str, Identity]
    servers: dict[str, tuple[Identity, ...]]

    @property
    def engine(self) -> frozenset[Identity]:
        """Proxies and servers: what holds models and ports."""
        return frozenset(self.leaders.values()) | {one for group in self.servers.values() for one in group}

    def group(self, name: str) -> frozenset[Identity]:
        """The processes of one group."""
        leader = [self.leaders[name]] if name in self.leaders else []
        return frozenset([*leader, *self.servers.get(name, ())])

    @property
    def everything(self) -> frozenset[Identity]:
        """Every process of the slot."""
        return self.engine | {one for one in (self.warden, self.keeper) if one is not None}


def look(slot: Slot) -> Sighting:
    """Now. A process belongs to the slot if it carries the marker of one of the slot's generations, or is a keeper below the
    holder of warden.lock. What a keeper starts to ask something carries its marker, too, and is no keeper."""
    warden = next((found for pid in locks.holders(slot.warden_lock) if (found := identity.of(pid))), None)
    groups = {generation: group for group, generation in slot.generations()}
    keeper, leaders, servers = None, dict[str, Identity](), dict[str, tuple[Identity, ...]]()
    for process, mark in identity.with_marker(GENERATION_VARIABLE):
        try:
            stat = identity.stat_of(process.pid)
        except OSError:
            continue  # it died between the two looks
        if stat.is_dead:
            continue
        is_child = warden is not None and stat.parent == warden.pid
        if is_child and mark.startswith("keeper."):
            keeper = process
        elif (group := groups.get(mark)) is not None:
            if is_child:
                leaders[group] = process
            else:
                servers[group] = (*servers.get(group, ()), process)
    return Sighting(warden, keeper, leaders, servers)


def wait_until(what: str, seen: Callable[[], T | None], limit_s: float) -> T:
    """Look until `seen` returns something, and return it. Raises NotObservedError, naming what was waited for."""
    deadline = time.monotonic() + limit_s
    while (found := seen()) is None:
        if time.monotonic() > deadline:
            raise NotObservedError(f"not seen within {limit_s:g} s: {what}")
        time.sleep(POLL)
    return found


def open_files(pid: int) -> list[str]:
    """What its descriptors point to. One that is closed meanwhile (the listing's own, for us) says nothing of the rest."""
    found = []
    with suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                found.append(os.readlink(f"/proc/{pid}/fd/{name}"))
    return found


def listening_ports(process: Identity) -> list[int]:
    """TCP ports of IPv4 that the process listens on, by the inodes of its sockets (proc_pid_net(5))."""
    entries = open_files(process.pid)
    try:
        with open(f"/proc/{process.pid}/net/tcp", encoding="ascii") as table:
            rows = [line.split() for line in table][1:]
    except OSError:
        return []
    inodes = {entry[len("socket:[") : -1] for entry in entries if entry.startswith("socket:[")}
    return [int(row[1].partition(":")[2], 16) for row in rows if row[3] == "0A" and row[9] in inodes]


def memory(processes: frozenset[Identity]) -> int:
    """Bytes that are resident in these processes, each by itself. The proportional set size would count once what they share,
    but it falls and rises with whoever else on the machine maps the same model (seen as +17 % in a demo beside a bench)."""
    total = 0
    for process in processes:
        try:
            with open(f"/proc/{process.pid}/smaps_rollup", encoding="ascii") as file:
                total += next((int(line.split()[1]) * 1024 for line in file if line.startswith("Rss:")), 0)
        except OSError:
            continue
    return total


def held_locks(slot: Slot) -> list[str]:
    """Names of the slot's locks that somebody holds, or of which that cannot be told."""
    names = [slot.warden_lock, slot.keeper_lock, slot.build_lock]
    names += [slot.generation_lock(group, generation) for group, generation in slot.generations()]
    held = [path.name for path in names if locks.is_held(path) is not False]
    return held + [f"member {member.program}" for member in membership.members(slot)]
