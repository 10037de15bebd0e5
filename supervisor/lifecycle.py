"""What a group does next: a total table, states x events -> (state, actions). Pure.

Every pair is written down. A pair that cannot happen says IMPOSSIBLE, and stepping into it raises: a table with
holes is where a supervisor's worst bugs live (s6 fills its 5 x 31 table for the same reason). docs/reference/
lifecycle.md is drawn from this table, and a test holds the two together.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple

from supervisor.contract import State


class Event(StrEnum):
    """What can happen to a group."""

    WANTED = "wanted"
    """Somebody wants it up: the first start, or a retry after it was given up."""
    LACKING = "lacking"
    """A file that it is started with is not there, or is another one, and is being fetched."""
    FETCHED = "fetched"
    """All of them are there."""
    READY = "ready"
    """Its proxy is ours and every server it should have answers."""
    SERVER_LOST = "server lost"
    """A server died, and the proxy lives."""
    NOT_READY = "not ready"
    """It did not become ready in time, or its proxy says that a server cannot be started."""
    UNHEALTHY = "unhealthy"
    """A process of it lives and does nothing: it hangs, is stopped or is wedged."""
    EXITED = "exited"
    """Its leader is dead and the sweep has begun."""
    GONE = "gone"
    """Every process of the generation is gone, or there never was one."""
    UNKILLABLE = "unkillable"
    """Its leader outlived SIGKILL, or the sweep ended with something still alive."""
    AGAIN = "again"
    """The restart policy's delay is over."""
    GIVEN_UP = "given up"
    """The restart policy says no, or what it is started with cannot be had."""
    STOP = "stop"
    """It is to stop."""
    HOLD = "hold"
    """It is to stay down until released."""
    RELEASE = "release"
    """The hold is over."""


class Action(StrEnum):
    """What the hands do about it."""

    SPAWN = "spawn"
    WARM = "warm"
    """Have the proxy load the missing server, and say READY or NOT_READY."""
    STOP = "stop gracefully"
    KILL = "kill"
    CONSULT = "ask the restart policy"
    """It answers AGAIN after a delay, or GIVEN_UP."""
    FORGET = "forget"
    """Drop the dead generation from the warden's table."""


class Step(NamedTuple):
    """A cell of the table: the state that follows, and what to do, in order."""

    state: State
    actions: tuple[Action, ...] = ()


class ImpossibleEventError(AssertionError):
    """An event came in a state in which it cannot come: a bug of ours, never of the world."""


IMPOSSIBLE: Final = None
_S, _E, _A = State, Event, Action


def _stay(state: State) -> Step:
    return Step(state)


TABLE: Final[dict[State, dict[Event, Step | None]]] = {
    State.DOWN: {
        _E.WANTED: Step(_S.STARTING, (_A.SPAWN,)),
        _E.LACKING: IMPOSSIBLE,
        _E.FETCHED: IMPOSSIBLE,
        _E.READY: IMPOSSIBLE,
        _E.SERVER_LOST: IMPOSSIBLE,
        _E.NOT_READY: IMPOSSIBLE,
        _E.UNHEALTHY: _stay(_S.DOWN),  # of a leader that cannot be killed
        _E.EXITED: _stay(_S.DOWN),  # the leader that could not be killed died at last
        _E.GONE: Step(_S.DOWN, (_A.FORGET,)),  # what was unkillable died at last
        _E.UNKILLABLE: _stay(_S.DOWN),  # and now what it left
        _E.AGAIN: IMPOSSIBLE,
        _E.GIVEN_UP: IMPOSSIBLE,
        _E.STOP: _stay(_S.DOWN),
        _E.HOLD: Step(_S.HELD),
        _E.RELEASE: _stay(_S.DOWN),
    },
    State.FETCHING: {
        _E.WANTED: _stay(_S.FETCHING),
        _E.LACKING: _stay(_S.FETCHING),  # the next file, or why it does not come
        _E.FETCHED: Step(_S.STARTING),  # the birth that it is a part of goes on
        _E.READY: IMPOSSIBLE,
        _E.SERVER_LOST: IMPOSSIBLE,
        _E.NOT_READY: IMPOSSIBLE,
        _E.UNHEALTHY: IMPOSSIBLE,
        _E.EXITED: IMPOSSIBLE,
        _E.GONE: IMPOSSIBLE,
        _E.UNKILLABLE: IMPOSSIBLE,
        _E.AGAIN: IMPOSSIBLE,
        _E.GIVEN_UP: Step(_S.FAILED),  # what is named cannot be had, however often it is asked for
        _E.STOP: Step(_S.STOPPING, (_A.STOP,)),
        _E.HOLD: IMPOSSIBLE,
        _E.RELEASE: _stay(_S.FETCHING),
    },
    State.STARTING: {
        _E.WANTED: _stay(_S.STARTING),
        _E.LACKING: Step(_S.FETCHING),
        _E.FETCHED: IMPOSSIBLE,
        _E.READY: Step(_S.RUNNING),
        _E.SERVER_LOST: _stay(_S.STARTING),  # still loading: the wait for READY tells how it ends
        _E.NOT_READY: Step(_S.STARTING, (_A.KILL,)),
        _E.UNHEALTHY: Step(_S.STARTING, (_A.KILL,)),
        _E.EXITED: _stay(_S.STARTING),
        _E.GONE: Step(_S.STARTING, (_A.FORGET, _A.CONSULT)),
        _E.UNKILLABLE: Step(_S.FAILED),
        _E.AGAIN: Step(_S.STARTING, (_A.SPAWN,)),
        _E.GIVEN_UP: Step(_S.FAILED),
        _E.STOP: Step(_S.STOPPING, (_A.STOP,)),
        _E.HOLD: IMPOSSIBLE,
        _E.RELEASE: _stay(_S.STARTING),
    },
    State.RUNNING: {
        _E.WANTED: _stay(_S.RUNNING),
        _E.LACKING: IMPOSSIBLE,
        _E.FETCHED: IMPOSSIBLE,
        _E.READY: _stay(_S.RUNNING),
        _E.SERVER_LOST: Step(_S.DEGRADED, (_A.WARM,)),
        _E.NOT_READY: Step(_S.REBUILDING, (_A.KILL,)),  # taken up as running, and it does not answer
        _E.UNHEALTHY: Step(_S.REBUILDING, (_A.KILL,)),
        _E.EXITED: _stay(_S.REBUILDING),
        _E.GONE: IMPOSSIBLE,
        _E.UNKILLABLE: Step(_S.FAILED),  # the keeper before us had it killed
        _E.AGAIN: IMPOSSIBLE,
        _E.GIVEN_UP: IMPOSSIBLE,
        _E.STOP: Step(_S.STOPPING, (_A.STOP,)),
        _E.HOLD: IMPOSSIBLE,
        _E.RELEASE: _stay(_S.RUNNING),
    },
    State.DEGRADED: {
        _E.WANTED: _stay(_S.DEGRADED),
        _E.LACKING: IMPOSSIBLE,
        _E.FETCHED: IMPOSSIBLE,
        _E.READY: Step(_S.RUNNING),
        _E.SERVER_LOST: _stay(_S.DEGRADED),
        _E.NOT_READY: Step(_S.REBUILDING, (_A.KILL,)),
        _E.UNHEALTHY: Step(_S.REBUILDING, (_A.KILL,)),
        _E.EXITED: _stay(_S.REBUILDING),
        _E.GONE: IMPOSSIBLE,
        _E.UNKILLABLE: Step(_S.FAILED),  # the keeper before us had it killed
        _E.AGAIN: IMPOSSIBLE,
        _E.GIVEN_UP: IMPOSSIBLE,
        _E.STOP: Step(_S.STOPPING, (_A.STOP,)),
        _E.HOLD: IMPOSSIBLE,
        _E.RELEASE: _stay(_S.DEGRADED),
    },
    State.REBUILDING: {
        _E.WANTED: _stay(_S.REBUILDING),
        _E.LACKING: Step(_S.FETCHING),
        _E.FETCHED: IMPOSSIBLE,
        _E.READY: Step(_S.RUNNING),
        _E.SERVER_LOST: _stay(_S.REBUILDING),
        _E.NOT_READY: Step(_S.REBUILDING, (_A.KILL,)),
        _E.UNHEALTHY: Step(_S.REBUILDING, (_A.KILL,)),
        _E.EXITED: _stay(_S.REBUILDING),
        _E.GONE: Step(_S.REBUILDING, (_A.FORGET, _A.CONSULT)),
        _E.UNKILLABLE: Step(_S.FAILED),
        _E.AGAIN: Step(_S.REBUILDING, (_A.SPAWN,)),
        _E.GIVEN_UP: Step(_S.FAILED),
        _E.STOP: Step(_S.STOPPING, (_A.STOP,)),
        _E.HOLD: IMPOSSIBLE,
        _E.RELEASE: _stay(_S.REBUILDING),
    },
    State.STOPPING: {
        _E.WANTED: _stay(_S.STOPPING),
        _E.LACKING: _stay(_S.STOPPING),
        _E.FETCHED: _stay(_S.STOPPING),
        _E.READY: _stay(_S.STOPPING),  # it was about to be ready when the stop came
        _E.SERVER_LOST: _stay(_S.STOPPING),
        _E.NOT_READY: _stay(_S.STOPPING),
        _E.UNHEALTHY: _stay(_S.STOPPING),
        _E.EXITED: _stay(_S.STOPPING),
        _E.GONE: Step(_S.DOWN, (_A.FORGET,)),
        _E.UNKILLABLE: Step(_S.DOWN),  # nobody wants it, and no more can be done: the warden goes on sweeping it
        _E.AGAIN: _stay(_S.STOPPING),
        _E.GIVEN_UP: _stay(_S.STOPPING),
        _E.STOP: _stay(_S.STOPPING),
        _E.HOLD: IMPOSSIBLE,
        _E.RELEASE: _stay(_S.STOPPING),
    },
    State.HELD: {
        _E.WANTED: _stay(_S.HELD),
        _E.LACKING: IMPOSSIBLE,
        _E.FETCHED: IMPOSSIBLE,
        _E.READY: IMPOSSIBLE,
        _E.SERVER_LOST: IMPOSSIBLE,
        _E.NOT_READY: IMPOSSIBLE,
        _E.UNHEALTHY: _stay(_S.HELD),  # of a leader that cannot be killed
        _E.EXITED: _stay(_S.HELD),  # the leader that could not be killed died at last
        _E.GONE: Step(_S.HELD, (_A.FORGET,)),  # what was unkillable died at last
        _E.UNKILLABLE: _stay(_S.HELD),  # and now what it left
        _E.AGAIN: IMPOSSIBLE,
        _E.GIVEN_UP: IMPOSSIBLE,
        _E.STOP: _stay(_S.HELD),
        _E.HOLD: _stay(_S.HELD),
        _E.RELEASE: Step(_S.DOWN),
    },
    State.FAILED: {
        _E.WANTED: Step(_S.STARTING, (_A.SPAWN,)),
        _E.LACKING: IMPOSSIBLE,
        _E.FETCHED: IMPOSSIBLE,
        _E.READY: IMPOSSIBLE,
        _E.SERVER_LOST: IMPOSSIBLE,
        _E.NOT_READY: IMPOSSIBLE,
        _E.UNHEALTHY: _stay(_S.FAILED),  # of a leader that cannot be killed
        _E.EXITED: _stay(_S.FAILED),  # the leader that could not be killed died at last
        _E.GONE: Step(_S.REBUILDING, (_A.FORGET, _A.CONSULT)),  # what was unkillable died at last
        _E.UNKILLABLE: _stay(_S.FAILED),
        _E.AGAIN: IMPOSSIBLE,
        _E.GIVEN_UP: IMPOSSIBLE,
        _E.STOP: Step(_S.DOWN),  # nothing runs, or nothing that can be helped
        _E.HOLD: Step(_S.HELD),
        _E.RELEASE: _stay(_S.FAILED),
    },
}


AT_REST: Final = frozenset({State.DOWN, State.FAILED, State.HELD})
"""A group in one of these has nothing running, or nothing that can be helped."""

UP: Final = frozenset({State.RUNNING, State.DEGRADED})
"""A group in one of these is past its start: its processes are judged by what they do."""

SETTLED: Final = frozenset({State.RUNNING, State.FAILED, State.HELD, State.STOPPING})
"""A group in one of these will not come up by waiting any longer."""


def step(state: State, event: Event) -> Step:
    """The next state and what to do. Raises ImpossibleEventError for a pair that cannot happen."""
    found = TABLE[state][event]
    if found is None:
        raise ImpossibleEventError(f"{event.value!r} cannot happen to a group that is {state.value}")
    return found


def worst(states: list[State]) -> State:
    """One word for a slot out of its groups' states: the one an operator would want to hear first."""
    order = (
        State.FAILED, State.STOPPING, State.REBUILDING, State.DEGRADED, State.FETCHING, State.STARTING, State.HELD,
        State.DOWN, State.RUNNING,
    )  # fmt: skip
    return min(states, key=order.index, default=State.DOWN)
