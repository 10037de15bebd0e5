"""What an engine left behind whose warden is dead: found by marker and lock, and killed by exact identity.

The kernel takes an engine with its warden, but what a server had forked itself lives on (docs/concepts.md,
"Processes").
"""

from __future__ import annotations

import signal
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from supervisor import budgets, identity, locks, undoing
from supervisor.contract import GENERATION_VARIABLE

if TYPE_CHECKING:
    from supervisor.identity import Identity
    from supervisor.slot import Slot


def find(slot: Slot) -> list[Identity]:
    """Processes that carry the marker of one of the slot's generations. Only means something while no warden lives."""
    generations = {generation for _, generation in slot.generations()}
    if not generations:
        return []
    marked = identity.with_marker(GENERATION_VARIABLE)
    return [
        found for found, value in marked if value in generations and identity.liveness(found) is identity.Liveness.ALIVE
    ]


def clear(slot: Slot) -> int:
    """Kill the processes, until two looks in a row find nothing and no lock is held; how many were killed. Bounded by
    SWEEP_LIMIT: `locks.held_generations` and `find` tell what is left."""
    killed: set[Identity] = set()
    deadline, clean = time.monotonic() + budgets.SWEEP_LIMIT, 0
    # A new warden's generations are no leftovers: once there is one, nothing more is touched.
    while clean < 2 and time.monotonic() < deadline and locks.is_held(slot.warden_lock) is False:
        left = find(slot)
        for one in left:
            identity.signal_exact(one, signal.SIGKILL)
        killed.update(left)
        clean = 0 if left or locks.held_generations(slot) else clean + 1
        time.sleep(0 if clean else budgets.READY_POLL)  # noqa: TID251 - another's child has no event for us
    if clean >= 2:
        for group, generation in slot.generations():
            with suppress(OSError):
                slot.generation_lock(group, generation).unlink()
    return len(killed)


def end_outside(slot: Slot) -> tuple[int, list[str]]:
    """Undo what is outside: for how many generations that went well, and what was in the way of the others. Bounded by
    UNDO_TRY for each. For the off switch; a new engine leaves that to the group whose it was, for the others need not wait."""
    done, troubles = 0, []
    for group, generation in slot.undone():
        if locks.is_held(slot.warden_lock) is False and locks.is_held(slot.generation_lock(group, generation)) is False:
            trouble = undoing.undo(slot.generation_undo(group, generation))
            if not trouble:  # the keeper that would have cleared up after it has left
                slot.clear_generation(group, generation)
            done += not trouble
            troubles += [f"{group}: {trouble}"] if trouble else []
    return done, troubles
