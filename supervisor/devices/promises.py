"""What has been promised of a device, and what of it can still be had. Pure.

A promise counts from the plan on, before a byte of it is allocated: of two engines that plan at once, each would see all of
the device free otherwise (vllm#55827). Once its engine has loaded it is `settled`: from then on the device's own figure
for what is free says it.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

from supervisor import budgets
from supervisor.identity import Liveness

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

HOST = "host"
"""In place of a device's UUID: host memory. A unified device's too, since they are the same bytes."""


class Grant(NamedTuple):
    """Bytes of one device (its UUID), or of HOST."""

    device: str
    bytes: int


class Reservation(NamedTuple):
    """One group's promise, as its record says it. `generation_lock` is the path of the lock that says whether its engine
    lives, "" before there is one; `pid`, `ticks`, `boot_id` and `pid_namespace` are who made it."""

    slot: str
    group: str
    grants: tuple[Grant, ...]
    boot_id: str
    pid_namespace: int
    pid: int
    ticks: int
    generation_lock: str = ""
    settled: bool = False

    def of(self, device: str) -> int:
        """Bytes promised of a device."""
        return sum(grant.bytes for grant in self.grants if grant.device == device)


class Grantable(NamedTuple):
    """What can be promised of a device now. `pending` is what others were promised and may not have taken yet; while it is
    more than 0 the rest is a lower bound: what they have taken already is missing from `free` too, and counts twice."""

    bytes: int
    pending: int
    text: str


def grantable(device: str, total: int, free: int, reservations: Iterable[Reservation]) -> Grantable:
    """Never more than is free less what is pending, nor than the total less everything promised: the sum of all grants
    stays within the device, whatever its free figure does while others load."""
    known = list(reservations)
    pending = sum(one.of(device) for one in known if not one.settled)
    promised = sum(one.of(device) for one in known)
    size = max(0, min(free - pending, total - promised))
    names = ", ".join(f"{one.group} of {one.slot}" for one in known if not one.settled and one.of(device))
    text = f"{free} free" + (f", less {pending} promised to {names}" if pending else "")
    if total - promised < free - pending:
        text = f"{total} in all, less {promised} promised"
    return Grantable(size, pending, text)


def lives(own_lock: bool | None, generation_lock: bool | None, maker: Liveness) -> bool:
    """Whether a reservation counts: one of its two locks is held, its own or its engine's. Where one of them cannot be
    looked at (None: another user's slot), its maker must be proven dead: unknown is alive. One that names no generation
    has none that lives: False.
    """
    if own_lock or generation_lock:
        return True
    if own_lock is False and generation_lock is False:
        return False
    return maker is not Liveness.DEAD


class Attempt(NamedTuple):
    """One attempt at a plan: whether its predecessor still holds memory, and whether none is to be made after it."""

    predecessor_lives: bool
    is_last: bool


def attempts(
    draining_until: Callable[[], float | None],
    *,
    limit: float = budgets.HANDOFF_WAIT,
    settle: float = budgets.MEMORY_SETTLE,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Attempt]:
    """When a successor plans. Whoever takes these waits for MEMORY_LOOK between two.

    Each attempt looks anew at what is free, for only absolute figures count: a difference to an earlier look has other
    programs' noise in it (ollama#9926), and waits for what was free all along (ollama#11997). So a plan that fits is made at
    once, and one that does not again: while the predecessor's processes live, up to `limit` seconds after the moment by which
    it begins to go (`draining_until`; None where there is none any more), then for `settle`: a driver may take a moment to
    give back what a dead process held. The last attempt is made when all of that is over.
    """
    began = clock()
    gone_at: float | None = None
    while True:
        until, now = draining_until(), clock()
        if until is None:
            gone_at = now if gone_at is None else gone_at
            attempt = Attempt(False, now - gone_at >= settle)
        else:
            attempt = Attempt(True, now - max(began, until) >= limit)
        yield attempt
        if attempt.is_last:
            return
