"""A group's record on disk, for those who bind without asking."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import trio

from supervisor import budgets, records
from supervisor.contract import State
from supervisor.description import View, describe
from supervisor.errors import QueenrightError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

ABOUT_TO_GO = frozenset({State.STOPPING, State.DOWN})
"""The record of a group in one of these is about to be removed."""


class Publisher:
    """The one that writes it, so that an older state is never the last to be written. One that a full disk does not take
    is tried again until it does; `changed` is called when that begins, and when it is over."""

    def __init__(self, group: View, path: Path, changed: Callable[[], None]) -> None:
        self._group, self._path, self._changed = group, path, changed
        self._asked = trio.Event()
        self.trouble = ""
        """Why the record on disk is not what it should be, "" while it is."""

    def publish(self) -> None:
        """Soon, and as it is then. Not at once: a rebuild is several changes within milliseconds, and must not wait for
        the description of each."""
        if self._group.state not in ABOUT_TO_GO:
            self._asked.set()

    async def run(self) -> None:
        """Write when asked, until cancelled."""
        while True:
            await self._asked.wait()
            await trio.sleep(budgets.PUBLISH_RETRY if self.trouble else budgets.PUBLISH_PAUSE)
            self._asked = trio.Event()
            gone = self._group.state in ABOUT_TO_GO
            was, self.trouble = self.trouble, "" if gone else await self._write(describe(self._group))
            if self.trouble:
                self._asked.set()
            if self.trouble != was:
                self._changed()

    async def _write(self, facts: dict[str, Any]) -> str:
        facts["unwritten"] = None  # what can be read was written
        try:
            await trio.to_thread.run_sync(
                lambda: records.write(self._path, facts, version=records.GROUP_VERSION, durable=False)
            )
        except QueenrightError as error:
            return error.what
        return ""
