"""What a generation is started with is fetched first, where it is not there: files of the group's payload.

No failure of the engine: it has not begun. So nothing here is counted by the restart policy or its breaker; what does not
come is tried again with that policy's pauses, for as long as the group is wanted. Only what cannot come right by itself
(the source has another file than was named) is given up.
"""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING, Any

import trio

from supervisor import restart
from supervisor.errors import ConfigError, PayloadError, QueenrightError, WrongPayloadError
from supervisor.kinds import Preparing
from supervisor.lifecycle import Event
from supervisor.wording import progress

if TYPE_CHECKING:
    from collections.abc import Callable

    from supervisor.contract import GroupSpec
    from supervisor.kinds import Kind, Preparation


class Fetch:
    """Of one group. `tell` gets LACKING with each new reason, and FETCHED; `changed` is called after what changes nothing but
    the description."""

    def __init__(self, tell: Callable[[Event, str], None], changed: Callable[[], None]) -> None:
        self._tell, self._changed = tell, changed
        self._is_under_way = False
        self._seen: Preparation | None = None
        self._moved = 0.0
        self._most: dict[str, int] = {}
        """By step, how far it ever was: only what goes beyond that is progress. Each try says anew what is there already, and
        hashes anew what may be stale."""
        self._came = 0
        """How often there was progress."""
        self._trouble: QueenrightError | None = None
        self._reason = ""

    async def run(self, spec: GroupSpec, kind: Kind) -> None:
        """Until everything is there. Cancelled where the group is to stop before that. Raises ConfigError or
        WrongPayloadError for what cannot be had."""
        if not isinstance(kind, Preparing):
            return
        self._is_under_way = True
        try:
            await self._fetch(spec, kind)
        finally:
            self._is_under_way = False
            told, self._seen, self._trouble, self._reason = self._reason, None, None, ""
            self._most.clear()
        if told:
            self._tell(Event.FETCHED, "")

    def describe(self) -> dict[str, Any] | None:
        """For `status`; None where nothing is being fetched."""
        if self._seen is None and self._trouble is None:
            return None
        seen, trouble = self._seen, self._trouble
        return {
            "what": seen.what if seen else "",
            "bytes": seen.done if seen else 0,
            "of": seen.total if seen else 0,
            "moved": round(self._moved, 3) if seen else None,
            "trouble": type(trouble).__name__ if trouble else None,
            "next_step": trouble.next_step or None if trouble else None,
        }

    @property
    def how_far(self) -> str:
        """In words: `43 %, 1.2 of 2.8 GiB`; "" where nothing comes."""
        seen = self._seen
        return progress(seen.done, seen.total) if seen is not None and seen.total and self._trouble is None else ""

    async def _fetch(self, spec: GroupSpec, kind: Preparing) -> None:
        failures = 0
        while True:
            before = self._came
            try:
                await kind.prepare(spec, self._hear)
                return
            except (ConfigError, WrongPayloadError):
                raise
            except (QueenrightError, OSError) as found:
                error = found if isinstance(found, QueenrightError) else PayloadError(f"what it reads: {found}")
                failures = 1 if self._came > before else failures + 1
                self._trouble = error
                self._say(
                    f"{error.what}; it is tried again by itself" + (f": {error.next_step}" if error.next_step else "")
                )
            await trio.sleep(restart.pause(failures, random.random()))  # noqa: S311 - no secret: it spreads tries

    def _hear(self, now: Preparation) -> None:
        if not self._is_under_way:
            return  # what it has left running still speaks
        was, self._seen = self._seen, now
        if was is None or (was.what, was.done) != (now.what, now.done):
            self._moved = time.time()
        is_progress = now.done > self._most.get(now.what, 0)
        if is_progress:
            self._most[now.what] = now.done
            self._came += 1
        # While it is tried again nothing is said anew before a byte has come: a source that is away for a night is one line.
        if self._trouble is None or is_progress:
            self._trouble = None
            self._say(now.what)
        self._changed()

    def _say(self, reason: str) -> None:
        if reason != self._reason:
            self._reason = reason
            self._tell(Event.LACKING, reason)
