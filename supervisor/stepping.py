"""Runs what is written once as `async def` without an event loop: everything it awaits is done on the spot.

The policy of requests is one coroutine over a small set of operations. For trio they wait as trio waits; for threads
they block and return, so that the coroutine never gets to suspend, and one step runs it to its end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine

T = TypeVar("T")


def step(coroutine: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that never suspends. Raises what it raises, RuntimeError when it does suspend."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    coroutine.close()
    raise RuntimeError("a coroutine that must be done at once waits for an event loop, and there is none")
