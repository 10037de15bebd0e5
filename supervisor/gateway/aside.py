"""Work on bodies that grows with their size, and would keep everybody else waiting on the keeper's one thread."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

import trio

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

BIG_BYTES: Final = 128 * 1024
"""From here on a body is worked on in a thread, one at a time: to read 2 MB as JSON takes 10 to 30 ms (measured), and 64
that come at once would keep everybody else waiting for that long each."""


class Aside:
    """Where that is done. One of them for a gateway, since the bodies of all its requests share one interpreter."""

    def __init__(self) -> None:
        self._one_at_a_time = trio.CapacityLimiter(1)

    async def do(self, size: int, work: Callable[[], T]) -> T:
        """`work()`, at once for a small body, in a thread for one of BIG_BYTES. Raises what it raises."""
        if size < BIG_BYTES:
            return work()
        return await trio.to_thread.run_sync(work, limiter=self._one_at_a_time)
