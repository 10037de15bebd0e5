"""What a group reads is there before it is started: brought by the keeper, in a thread, with a word on how far that is."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Final

import trio

from supervisor.errors import PayloadError, QueenrightError
from supervisor.kinds import Preparation
from workers.payload import named
from workers.payload.verifying import Status

if TYPE_CHECKING:
    from collections.abc import Callable

    from supervisor.contract import GroupSpec
    from workers.payload.manifest import Item

LOOK: Final = 0.25  # budget: between two words on how far a fetch is; people read no faster
AT_ONCE: Final = 4
"""Groups of one keeper that fetch at once. Each takes a thread for hours, and all of them share one line to the network."""

_turns = trio.CapacityLimiter(AT_ONCE)


class _StoppedError(Exception):
    """Nobody wants it any more."""


async def prepare(spec: GroupSpec, report: Callable[[Preparation], None]) -> None:
    """See supervisor.kinds.Preparing."""
    todo = await trio.to_thread.run_sync(_todo, spec, abandon_on_cancel=True)  # a disk may hang, and a stop not
    if not todo:
        return
    if _turns.available_tokens == 0:
        report(Preparation("other groups fetch their files first", 0, 0))
    async with _turns:
        said, trouble = _Told(len(todo)), None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_report, said, report)
            try:
                # What is silent (a server that does not answer) must not hold up a stop: the thread ends by itself, soon.
                trouble = await trio.to_thread.run_sync(_fetch, todo, said, abandon_on_cancel=True)
            finally:
                said.stopped.set()
            nursery.cancel_scope.cancel()
    if trouble is not None:
        raise trouble


async def _report(said: _Told, report: Callable[[Preparation], None]) -> None:
    last = None
    while True:
        now = said.now
        if now is not None and now != last:
            last = now
            report(now)
        await trio.sleep(LOOK)


def _todo(spec: GroupSpec) -> list[Item]:
    """Those to be looked at more closely, or brought. Directories are made on the way: an empty one is all that some
    containers want."""
    from workers.payload import directories

    found, items = named.items_of(spec)
    directories.make(found.directories)
    return [item for item in items if _is_due(item)]


def _is_due(item: Item) -> bool:
    """Whether a fetch has something to do there: also one that was never hashed is hashed once. Where no stamp can be left,
    its size has to do: it would be hashed at each start."""
    status, _ = named.status_of(item)
    if status in (Status.UNHASHED, Status.CHANGED):
        return os.access(item.path.parent, os.W_OK)
    return status != Status.OK


def _fetch(todo: list[Item], said: _Told) -> QueenrightError | None:
    """In a thread: what kept it from going well. Given, not raised: out of a nursery it would come as a group."""
    from workers.payload import fetching

    for number, item in enumerate(todo, 1):
        said.item, said.number = item, number
        try:
            named.refuse_lost(item)
            fetching.fetch(item, progress=said)
        except _StoppedError:
            return None
        except QueenrightError as error:
            return error
        except Exception as error:  # noqa: BLE001 - whatever a source answers, no keeper ends of it
            what = f"{item.path} was not fetched: {type(error).__name__}: {error}"
            return PayloadError(what, "`queenright payload fetch` tries it by hand")
    return None


class _Told:
    """A `workers.progress.Progress` that remembers the last word, for another thread to read."""

    def __init__(self, count: int) -> None:
        self.count, self.number = count, 0
        self.item: Item | None = None
        self.now: Preparation | None = None
        self.stopped = threading.Event()
        self._what, self._total = "", 0

    def begin(self, what: str, total: int) -> None:
        """See Progress."""
        source = f" from {self.item.source}" if self.item is not None and what.startswith("fetching ") else ""
        order = f" ({self.number} of {self.count})" if self.count > 1 else ""
        self._what, self._total = f"{what}{order}{source}", total
        self.at(0)

    def at(self, done: int) -> None:
        """See Progress. Raises _StoppedError where nobody wants it any more."""
        if self.stopped.is_set():
            raise _StoppedError
        self.now = Preparation(self._what, min(done, self._total), self._total)

    def end(self) -> None:
        """See Progress."""

    def note(self, text: str) -> None:
        """See Progress. A keeper shows where it is, and no log of it."""
