"""Waiting for the memory of an engine that this process has left."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from supervisor import budgets, control, locks, membership
from supervisor.contract import Lifetime
from supervisor.control import ControlError
from supervisor.errors import LockTimeoutError

if TYPE_CHECKING:
    from supervisor.slot import Slot


def wait_settled(slot: Slot, limit_s: float = budgets.SERVER_CLEANUP) -> None:
    """Wait until the engine of the slot is gone, or until it is plain that it stays: others use it, it is kept warm, or
    it runs in the foreground. Call it after leaving; blocks the thread.

    Raises LockTimeoutError after `limit_s` seconds, SlotError when the members cannot be counted.
    """
    if not _settles(slot, limit_s):
        raise LockTimeoutError(
            f"the engine in {slot.path} was not gone within {limit_s:g} s after we left it",
            "`queenright status` shows what it is doing; `queenright stop` ends it",
        )


def is_empty(slot: Slot, limit_s: float) -> bool:
    """Wait as `wait_settled` does; whether the engine is gone. Raises SlotError when the members cannot be counted."""
    _settles(slot, limit_s)
    return locks.is_held(slot.warden_lock) is False


def _settles(slot: Slot, limit_s: float) -> bool:
    """Whether it is plain in time what becomes of the engine."""
    deadline = time.monotonic() + limit_s
    while locks.is_held(slot.warden_lock) is not False and not membership.is_used(slot) and not _stays(slot):
        if time.monotonic() > deadline:
            return False
        time.sleep(budgets.BUILD_LOCK_TRY)  # noqa: TID251 - polls a lock, which has no event to wait for
    return True


def _stays(slot: Slot) -> bool:
    try:
        found = control.ask(slot, "status", limit=budgets.LOOK_LIMIT)
    except ControlError:
        return False  # a keeper that ends answers no more; the warden's lock tells
    lifetime = found["lifetime"]
    return found["state"] != "stopping" and (lifetime not in (None, Lifetime.MEMBERS.value) or bool(found["warm"]))
