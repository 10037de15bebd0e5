"""The off switch, from outside: by the keeper where it answers, else by the warden, else by killing the warden.

Nothing is ever signalled on the word of a record: who the warden is comes from the kernel's table of locks.
"""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING, Any

from attrs import frozen

from supervisor import budgets, control, identity, locks
from supervisor.control import ControlError
from supervisor.errors import NoEngineError, QueenrightError

if TYPE_CHECKING:
    from collections.abc import Callable

    from supervisor.slot import Slot


@frozen
class Stopped:
    """What was stopped, how (`keeper`, `warden` or `killed`), and how long it took in seconds."""

    how: str
    seconds: float
    members: tuple[str, ...]


def stop(slot: Slot, *, who: str, heard: Callable[[dict[str, Any]], None] = lambda _: None) -> Stopped:
    """Stop the engine of the slot; returns when its warden is gone. Bounded: CONTROL_WAIT for the keeper to answer at
    all, TEARDOWN for it to be done; then the warden ends everything; then SIGKILL.

    `heard` gets the keeper's snapshots meanwhile. Raises NoEngineError, or QueenrightError when the warden outlives
    even SIGKILL or cannot be found.
    """
    if locks.is_held(slot.warden_lock) is False:
        raise NoEngineError(f"no engine runs in {slot.path}", "there is nothing to stop")
    began = time.monotonic()
    members: tuple[str, ...] = ()
    try:
        limits = {"limit": budgets.TEARDOWN + budgets.CONTROL_ANSWER, "first": budgets.CONTROL_WAIT}
        for snapshot in control.converse(slot, "stop", **limits, who=who):
            members = tuple(f"{member['name']} ({member['pid']})" for member in snapshot["members"]) or members
            heard(snapshot)
    except ControlError:
        pass  # it is down, or hangs: the warden is next
    how = "keeper"
    if not _is_free(slot, budgets.SWEEP_LIMIT):
        how = "warden"
        for number in (signal.SIGTERM, signal.SIGINT):  # the second one means now: the keeper had its time
            _signal_warden(slot, number)
        if not _is_free(slot, 3 * budgets.SWEEP_LIMIT):
            how = "killed"
            _signal_warden(slot, signal.SIGKILL)  # the kernel takes everything below with it
            if not _is_free(slot, budgets.SWEEP_LIMIT):
                raise QueenrightError(f"the warden of {slot.path} cannot be ended", "see its processes with `ps`")
    return Stopped(how, time.monotonic() - began, members)


def _is_free(slot: Slot, limit: float) -> bool:
    """Wait for the warden to be gone."""
    deadline = time.monotonic() + limit
    while locks.is_held(slot.warden_lock) is not False:
        if time.monotonic() > deadline:
            return False
        time.sleep(budgets.READY_POLL)  # noqa: TID251 - polls a lock that has no event to wait for
    return True


def _signal_warden(slot: Slot, number: int) -> None:
    for pid in locks.holders(slot.warden_lock):
        found = identity.of(pid)
        if found is not None:
            identity.signal_exact(found, number)
            return
    if locks.is_held(slot.warden_lock) is not False:
        raise QueenrightError(
            f"somebody holds {slot.warden_lock}, and the kernel does not say who",
            "`fuser` or `lsof` on that file may tell",
        )
