"""Waiting for a moment in which nothing is in flight, before something that serves is stopped on purpose.

Nobody is refused meanwhile: clients talk to a group's proxy and not to us, so on a busy engine the wait takes all of its
time. Where it is not known what is in flight, only that knowledge is waited for (a keeper that has just started gets it in
a moment): unknown is no reason to wait for ever, and none to claim that all was done. What came of it is said in words, for the reason of the stop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import trio

from supervisor import budgets
from supervisor.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

InFlight = dict[str, int | None]
"""Requests that a group owes an answer, by the group's name; None where that is not known."""


def seconds_of(question: Mapping[str, Any]) -> float:
    """`drain_s` of a question to the keeper; 0 where there is none. Raises UsageError."""
    asked = question.get("drain_s", 0)
    if isinstance(asked, bool) or not isinstance(asked, int | float) or not 0 <= asked <= budgets.DRAIN_MOST:
        what = f"drain_s: {asked!r} is no number of seconds from 0 to {budgets.DRAIN_MOST:g}"
        raise UsageError(what, "leave it out to wait for nothing")
    return float(asked)


def known(in_flight: InFlight) -> int:
    """How many requests are in flight, of what is known."""
    return sum(number or 0 for number in in_flight.values())


def words(in_flight: InFlight, spent_s: float) -> str:
    """What came of the wait."""
    number, unknown = known(in_flight), [name for name, owed in in_flight.items() if owed is None]
    requests = "1 request was" if number == 1 else f"{number} requests were"
    said = f"{requests} in flight" if number else "nothing was in flight"
    if number or spent_s >= budgets.DRAIN_LOOK:
        said += f" after {spent_s:.1f} s"
    if not unknown:
        return said
    not_known = f"of {', '.join(unknown)} it is not known what is in flight"
    return not_known if len(unknown) == len(in_flight) else f"{said}; {not_known}"


def is_over(in_flight: InFlight, spent_s: float, limit_s: float) -> bool:
    """Whether there is nothing more to wait for, after `spent_s` of at most `limit_s` seconds."""
    waits_for = known(in_flight) or (None in in_flight.values() and spent_s < budgets.DRAIN_LEARN)
    return not waits_for or spent_s >= limit_s


async def wait_idle(look: Callable[[], InFlight], limit_s: float) -> str:
    """Until nothing of what `look` knows is in flight, `limit_s` seconds at most. Returns what came of it, in words."""
    began = trio.current_time()
    while not is_over(look(), trio.current_time() - began, limit_s):  # noqa: ASYNC110 - numbers of many owners
        await trio.sleep(budgets.DRAIN_LOOK)
    return words(look(), trio.current_time() - began)


class Drain:
    """A group's wait before a stop. Whatever else stops the group ends it."""

    def __init__(self) -> None:
        self._scope: trio.CancelScope | None = None

    @property
    def is_under_way(self) -> bool:
        """Whether it is waited for."""
        return self._scope is not None

    def begin(
        self, start: Callable[..., None], look: Callable[[], InFlight], limit_s: float, then: Callable[[str], None]
    ) -> None:
        """`start` a task that waits as `wait_idle` does; `then` is told what came of it."""
        scope = self._scope = trio.CancelScope()

        async def wait() -> None:
            with scope:
                found = await wait_idle(look, limit_s)
                self._scope = None
                then(found)

        start(wait)

    def end(self) -> None:
        """Wait no more."""
        if self._scope is not None:
            self._scope.cancel()
            self._scope = None
