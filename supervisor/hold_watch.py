"""Ends the holds of a running engine whose time is over."""

from __future__ import annotations

from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any, Protocol

import trio

from supervisor import budgets, holding, locks
from supervisor.errors import QueenrightError, SlotError

if TYPE_CHECKING:
    from supervisor.slot import Slot
    from supervisor.tree import Tree


class Keeper(Protocol):
    """What of a keeper is watched."""

    slot: Slot
    tree: Tree | None

    async def changed(self) -> None: ...

    async def act(self, op: str, question: dict[str, Any]) -> None: ...


async def run(keeper: Keeper) -> None:
    """Look while anything is held, until cancelled."""
    while True:
        tree = keeper.tree
        if tree is None or not (tree.held or tree.held_groups):
            await keeper.changed()
            continue
        held = {*tree.held_groups, *([""] if tree.held else ())}
        for group in held.intersection(_ended(keeper.slot)):  # a file that cannot be taken away is told once
            with suppress(QueenrightError):  # it is being stopped
                await keeper.act("release", {"who": "its time, which is over", "groups": [group] if group else []})
        await trio.sleep(budgets.HOLD_LOOK)


def _ended(slot: Slot) -> list[str]:
    """What is over, its file taken away. Under build.lock, as a hold is written: one that is placed in this moment is another
    one, and its file stays. Nothing while somebody else has the lock, until the next look."""
    if not holding.over(slot):
        return []
    with ExitStack() as stack:
        with suppress(SlotError):  # a slot that cannot be written to: there no other one is written either
            if (lock := locks.try_acquire(slot.build_lock)) is None:
                return []
            stack.enter_context(lock)
        ended = holding.over(slot)
        for group in ended:
            with suppress(OSError):  # it is over all the same
                holding.lift(slot, group)
        return ended
