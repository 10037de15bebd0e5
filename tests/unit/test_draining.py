"""Waiting for a moment without requests in flight."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio
from trio.testing import MockClock

from supervisor import budgets, draining

if TYPE_CHECKING:
    from supervisor.draining import InFlight


@pytest.mark.parametrize(
    ("in_flight", "spent", "said"),
    [
        ({}, 0.0, "nothing was in flight"),
        ({"chat": 0}, 0.0, "nothing was in flight"),
        ({"chat": 0, "embed": 0}, 1.25, "nothing was in flight after 1.2 s"),
        ({"chat": 1}, 30.0, "1 request was in flight after 30.0 s"),
        ({"chat": 1, "embed": 2}, 30.0, "3 requests were in flight after 30.0 s"),
        ({"chat": None}, 0.0, "of chat it is not known what is in flight"),
        ({"a": None, "b": None}, 0.0, "of a, b it is not known what is in flight"),
        ({"a": None, "b": 0}, 2.0, "nothing was in flight after 2.0 s; of a it is not known what is in flight"),
    ],
)
def test_what_came_of_it_is_said(in_flight: InFlight, spent: float, said: str) -> None:
    assert draining.words(in_flight, spent) == said


@pytest.mark.parametrize(
    ("in_flight", "idle_at", "spent"),
    [
        ({"chat": 1}, 3.0, 3.0),
        ({"chat": 1}, 100.0, 10.0),
        ({"chat": 1, "embed": None}, 3.0, 3.0),
        ({"chat": None}, 3.0, budgets.DRAIN_LEARN),
        ({"chat": 0}, 3.0, 0.0),
    ],
    ids=["idle", "limit", "one unknown", "unknown", "at once"],
)
def test_it_waits_for_what_is_known_and_no_longer_than_it_may(
    in_flight: InFlight, idle_at: float, spent: float
) -> None:
    async def main() -> float:
        began = trio.current_time()

        def look() -> InFlight:
            over = trio.current_time() - began >= idle_at
            return {name: 0 if over and owed else owed for name, owed in in_flight.items()}

        await draining.wait_idle(look, 10.0)
        return trio.current_time() - began

    took = trio.run(main, clock=MockClock(autojump_threshold=0))
    assert spent <= took <= spent + 2 * budgets.DRAIN_LOOK
