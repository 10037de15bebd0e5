"""Whose news it is, and whether it still counts."""

from __future__ import annotations

from itertools import product

import pytest

from supervisor.contract import State
from supervisor.happening import OF_THE_LIVING, Happening
from supervisor.lifecycle import AT_REST, TABLE, Event


@pytest.mark.parametrize("state", list(State))
def test_what_an_earlier_generation_says_never_counts(state: State) -> None:
    for event, exited in product(Event, (True, False)):
        assert Happening(event, "a").is_stale(state, "b", exited=exited)
        assert Happening(event, "a").is_stale(state, "", exited=exited)


@pytest.mark.parametrize(("state", "exited"), list(product(State, (True, False))))
def test_what_only_the_living_can_tell_counts_of_the_living_only(state: State, exited: bool) -> None:
    lives = not exited and state not in (State.STOPPING, State.FETCHING, *AT_REST)
    for event in OF_THE_LIVING:
        assert Happening(event, "a").is_stale(state, "a", exited=exited) is not lives
    for event in set(Event) - OF_THE_LIVING:
        assert not Happening(event, "a").is_stale(state, "a", exited=exited)


def test_whatever_is_impossible_of_the_living_is_stale() -> None:
    """So that no race between a process and its watchers steps into a hole of the table."""
    for state, event in product(State, OF_THE_LIVING):
        if TABLE[state][event] is None:
            assert Happening(event, "a").is_stale(state, "a", exited=False)


def test_only_the_stop_that_begins_one_says_why() -> None:
    stop = Happening(Event.STOP, reason="asked")
    assert stop.gives_reason(State.RUNNING, State.STOPPING)
    assert stop.ends_attempt(State.RUNNING, State.STOPPING)
    assert not stop.gives_reason(State.STOPPING, State.STOPPING)
    assert not stop.gives_reason(State.FAILED, State.DOWN), "why it was given up is worth more"
    assert not Happening(Event.GIVEN_UP).gives_reason(State.STOPPING, State.STOPPING)
    assert Happening(Event.GIVEN_UP).gives_reason(State.STARTING, State.FAILED)
