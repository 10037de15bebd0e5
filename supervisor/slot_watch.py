"""Whether the slot's directory is still there. Somebody who deletes that of a living engine takes away its off switch:
then it has to go, too. (The warden sees to it where the keeper is dead as well.)
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import trio

from supervisor import budgets

if TYPE_CHECKING:
    from collections.abc import Callable

    from supervisor.slot import Slot


class SlotWatch:
    """Knows the slot by its warden's lock as it was in the beginning: somebody may have made a new slot in its place."""

    def __init__(self, slot: Slot) -> None:
        self._slot = slot
        self._mark = self._look()

    async def run(self, begin_stop: Callable[[], None]) -> None:
        """Look until cancelled; `begin_stop` is called at each look that does not find it."""
        while True:
            await trio.sleep(budgets.SLOT_POLL)
            if self._look() != self._mark:
                begin_stop()

    def _look(self) -> tuple[int, int] | None:
        try:
            facts = os.stat(self._slot.warden_lock)
        except OSError:
            return None
        return facts.st_dev, facts.st_ino
