"""Ends the holds of a running engine whose time is over."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

import trio

from supervisor import budgets, holding
from supervisor.errors import QueenrightError

if TYPE_CHECKING:
    from supervisor.slot import Slot
    from supervisor.tree import Tree


class Keeper(Protocol):
    """What of a keeper is watched."""

    slot: Slot
    tree: Tree | None
    held: str

    async def changed(self) -> None: ...

    async def act(self, op: str, question: dict[str, Any]) -> None: ...


async def run(keeper: Keeper) -> None:
    """Look while anything is held, until cancelled."""
    while True:
        if not keeper.held and not (keeper.tree and keeper.tree.held_groups):
            await keeper.changed()
            continue
        for group in holding.over(keeper.slot):
            with suppress(OSError):  # a slot that cannot be written to: it is over all the same
                holding.lift(keeper.slot, group)
            with suppress(QueenrightError):  # it is being stopped
                await keeper.act("release", {"who": "its time, which is over", "groups": [group] if group else []})
        await trio.sleep(budgets.HOLD_LOOK)
