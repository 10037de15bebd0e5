"""What a group has going on that takes time: what ends with its present attempt to be up, and what goes on beyond it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import trio

if TYPE_CHECKING:
    from collections.abc import Callable


class Work:
    """Tasks of the nursery that is set before anything can happen."""

    def __init__(self) -> None:
        self.nursery: trio.Nursery | None = None
        self._attempt: set[trio.CancelScope] = set()

    def start(self, function: Callable[..., Any], *arguments: Any) -> None:
        """Start work that goes on whatever becomes of the attempt."""
        assert self.nursery is not None  # noqa: S101 - see above
        self.nursery.start_soon(function, *arguments)

    def attempt(self, function: Callable[..., Any], *arguments: Any) -> None:
        """Start work that ends with the present attempt."""
        scope = trio.CancelScope()
        self._attempt.add(scope)

        async def work() -> None:
            with scope:
                await function(*arguments)
            self._attempt.discard(scope)

        self.start(work)

    def end_attempt(self) -> None:
        """Stop waiting for readiness, watching, or counting down to a restart."""
        for scope in self._attempt:
            scope.cancel()
