"""The last member out stops the engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from supervisor import budgets, locks, membership
from supervisor.errors import SlotError

if TYPE_CHECKING:
    from collections.abc import Callable

    from supervisor.slot import Slot


async def watch(
    slot: Slot, is_kept: Callable[[], bool], begin_stop: Callable[[], None], say_kept: Callable[[], None]
) -> None:
    """Until nobody uses the engine, and nothing else keeps it up. The step is taken under build.lock after counting
    again, so the last one out cannot race the next one in; the lock is only tried, so the control socket goes on
    answering. Where it `is_kept` warm nothing stops, and that is said: once each time."""
    was_used = False
    while True:
        is_used = not _is_unused(slot)
        if is_kept() and was_used and not is_used:
            say_kept()
        was_used = is_used
        if not is_kept() and not is_used and (hold := _try_build_lock(slot)) is not None:
            with hold:
                if not is_kept() and _is_unused(slot):
                    begin_stop()
                    return
        await trio.sleep(budgets.MEMBER_POLL)


def _try_build_lock(slot: Slot) -> locks.Hold | None:
    try:
        return locks.try_acquire(slot.build_lock)
    except SlotError:
        return None  # the slot is being taken away, or has no descriptor for us: the next look tells


def _is_unused(slot: Slot) -> bool:
    """Whether it is known that nobody uses the engine: what cannot be read counts as in use."""
    try:
        return not membership.is_used(slot)
    except SlotError:
        return False
