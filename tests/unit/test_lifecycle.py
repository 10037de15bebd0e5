"""The lifecycle table: total, reachable, and never stepped into where it says IMPOSSIBLE.

The machine at the end is a model of a group in its world. It carries out actions as `group.Group` does, and lets happen
only what can really happen; what it must not meet is an impossible event, two lives at once, or a stop that never ends.
"""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from supervisor import lifecycle, lifecycle_drawing
from supervisor.contract import State
from supervisor.lifecycle import TABLE, Action, Event, ImpossibleEventError, step, worst

if TYPE_CHECKING:
    from collections.abc import Callable

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "lifecycle.md"
AT_REST = {State.DOWN, State.FAILED, State.HELD}


def test_every_pair_of_state_and_event_is_written_down() -> None:
    assert set(TABLE) == set(State)
    for state, row in TABLE.items():
        assert list(row) == list(Event), state


def test_every_state_is_reached_from_down() -> None:
    reached, todo = {State.DOWN}, deque([State.DOWN])
    while todo:
        targets = {found.state for found in TABLE[todo.popleft()].values() if found is not None}
        todo.extend(targets - reached)
        reached |= targets
    assert reached == set(State)


def test_every_state_can_come_to_rest() -> None:
    """By what can happen after a stop; so no state is a trap."""
    for state in State:
        now = step(state, Event.STOP).state
        assert now in AT_REST or step(now, Event.GONE).state in AT_REST, state


def test_an_impossible_event_raises_and_says_which() -> None:
    with pytest.raises(ImpossibleEventError, match="'ready' cannot happen to a group that is down"):
        step(State.DOWN, Event.READY)


@pytest.mark.parametrize("state", State)
def test_nothing_but_a_wish_or_the_policy_starts_a_generation(state: State) -> None:
    """WANTED and AGAIN spawn, and nothing else does: a death as such starts nothing."""
    for event, found in TABLE[state].items():
        if found is not None and Action.SPAWN in found.actions:
            assert event in (Event.WANTED, Event.AGAIN)


@pytest.mark.parametrize("state", [State.STOPPING, State.HELD])
def test_nothing_starts_a_group_that_stops_or_is_held(state: State) -> None:
    for found in TABLE[state].values():
        assert found is None or not {Action.SPAWN, Action.WARM, Action.CONSULT} & set(found.actions)


def test_a_death_that_nobody_asked_for_is_always_put_to_the_policy() -> None:
    for state in (State.STARTING, State.REBUILDING, State.FAILED):
        assert step(state, Event.GONE).actions == (Action.FORGET, Action.CONSULT)


def test_the_worst_state_speaks_for_the_slot() -> None:
    assert worst([]) is State.DOWN
    assert worst([State.RUNNING, State.RUNNING]) is State.RUNNING
    assert worst([State.RUNNING, State.STARTING]) is State.STARTING
    assert worst([State.STOPPING, State.FAILED, State.RUNNING]) is State.FAILED
    assert all(worst([state]) is state for state in State)


def test_the_page_is_drawn_from_the_table() -> None:
    drawn = lifecycle_drawing.render()
    assert PAGE.read_text(encoding="utf-8") == drawn, (
        "python -m supervisor.lifecycle_drawing > docs/reference/lifecycle.md"
    )


def test_the_drawing_leaves_nothing_out() -> None:
    drawn = lifecycle_drawing.render()
    rows = [line for line in drawn.splitlines() if line.startswith("| **")]
    assert len(rows) == len(Event)
    impossible = sum(found is lifecycle.IMPOSSIBLE for row in TABLE.values() for found in row.values())
    assert sum(row.count("—") for row in rows) == impossible
    assert set(lifecycle_drawing.MEANING) == set(State)


class GroupInItsWorld(RuleBasedStateMachine):
    """A group (state, inbox, one life, one birth, one timer) and what can happen to it, in every order.

    Happenings wait in an inbox before they are handled, as in group.py: the races are all there.
    """

    OF_THE_LIVING: ClassVar = {Event.READY, Event.NOT_READY, Event.SERVER_LOST, Event.UNHEALTHY}

    def __init__(self) -> None:
        super().__init__()
        self.state = State.DOWN
        self.inbox: deque[tuple[Event, int]] = deque()
        self.generation = 0
        self.life = 0  # the generation that the group knows of; 0 without one
        self.leader_dead = self.told_stuck = self.told_unkillable = self.told_gone = False
        self.in_birth = self.birth_over = self.fetching = False
        self.loading = self.watching = False
        self.timer = False
        self.given_up = False
        self.hands: dict[Action, Callable[[], None]] = {
            Action.SPAWN: self.spawn,
            Action.WARM: self.load,
            Action.STOP: self.stop_gracefully,
            Action.KILL: lambda: None,  # the leader dies of it, some time
            Action.CONSULT: self.consult,
            Action.FORGET: self.forget,
        }

    @initialize(
        found=st.sampled_from(["", "running", "sweeping", "gone", "unkillable"]),
        served=st.booleans(),
        ready=st.booleans(),
    )
    def begin(self, found: str, served: bool, ready: bool) -> None:
        """As a keeper finds it: nothing, or what an earlier one started, in any state that the warden knows."""
        if not found:
            self.inbox.append((Event.WANTED, 0))
            return
        self.generation = self.life = 1
        self.state = State.REBUILDING if served else State.STARTING
        self.leader_dead = found != "running"
        match found:
            case "running":
                self.loading = True
                self.state = State.RUNNING if ready else self.state
            case "gone":
                self.told_gone = True
                self.inbox.append((Event.GONE, 1))
            case "unkillable":
                self.told_unkillable = True
                self.state = State.FAILED
            case _:
                pass

    # --- the hands, as group.py has them ---

    def spawn(self) -> None:
        assert not self.given_up, "started although the policy said no, and nobody has asked since"
        if self.life:  # what was unkillable still is there: the warden would refuse
            self.inbox.append((Event.UNKILLABLE, self.life))
            return
        assert not self.in_birth, "two births at once"
        assert not self.timer, "a birth, and the timer of another"
        self.in_birth, self.birth_over, self.fetching = True, False, False

    def load(self) -> None:
        self.loading = True

    def stop_gracefully(self) -> None:
        if not self.life and not self.in_birth:
            self.inbox.append((Event.GONE, 0))
        elif self.fetching:
            self.fetching, self.birth_over = False, True
            self.inbox.append((Event.GONE, 0))

    def consult(self) -> None:
        assert not self.life
        assert not self.timer
        self.timer = True

    def forget(self) -> None:
        self.life = 0

    def end_attempt(self) -> None:
        self.loading = self.watching = self.timer = False

    # --- the inbox ---

    @precondition(lambda self: self.inbox)
    @rule()
    def handle(self) -> None:
        event, generation = self.inbox.popleft()
        ending = self.leader_dead or self.state in AT_REST
        if generation and (generation != self.life or (event in self.OF_THE_LIVING and ending)):
            return
        was = self.state
        self.state, actions = step(was, event)
        match event:
            case Event.WANTED:
                self.given_up = False
            case Event.GIVEN_UP if was is not State.STOPPING:
                self.given_up = True
            case Event.STOP | Event.EXITED | Event.UNHEALTHY | Event.UNKILLABLE:
                self.end_attempt()
            case Event.GONE:
                self.in_birth = False
            case _:
                pass
        for action in actions:
            self.hands[action]()

    # --- people ---

    @rule()
    def want(self) -> None:
        self.inbox.append((Event.WANTED, 0))

    @rule()
    def stop(self) -> None:
        self.inbox.append((Event.STOP, 0))

    @precondition(lambda self: self.state in AT_REST and not self.inbox)
    @rule()
    def hold(self) -> None:
        """Only of a group at rest: whoever holds an engine stops it first."""
        self.inbox.append((Event.HOLD, 0))
        self.handle()

    @rule()
    def release(self) -> None:
        self.inbox.append((Event.RELEASE, 0))

    # --- the world ---

    @precondition(lambda self: self.in_birth and not self.birth_over)
    @rule()
    def a_file_is_lacking(self) -> None:
        self.fetching = True
        self.inbox.append((Event.LACKING, 0))

    @precondition(lambda self: self.fetching)
    @rule()
    def the_files_are_there(self) -> None:
        self.fetching = False
        self.inbox.append((Event.FETCHED, 0))

    @precondition(lambda self: self.in_birth and not self.birth_over)
    @rule()
    def a_file_cannot_be_had(self) -> None:
        self.fetching, self.birth_over = False, True
        self.in_birth = self.state is State.STOPPING
        self.inbox.append((Event.GONE if self.in_birth else Event.GIVEN_UP, 0))

    @precondition(lambda self: self.in_birth and not self.birth_over and not self.fetching)
    @rule()
    def is_born(self) -> None:
        self.generation += 1
        self.life, self.in_birth = self.generation, False
        self.leader_dead = self.told_stuck = self.told_unkillable = self.told_gone = False
        self.loading = self.state is not State.STOPPING

    @precondition(lambda self: self.in_birth and not self.birth_over and not self.fetching)
    @rule()
    def birth_fails(self) -> None:
        self.birth_over = True
        self.inbox.append((Event.GONE, 0))

    @precondition(lambda self: self.loading)
    @rule()
    def loads(self) -> None:
        self.loading, self.watching = False, True
        self.inbox.append((Event.READY, self.life))

    @precondition(lambda self: self.loading)
    @rule()
    def does_not_load(self) -> None:
        self.loading = False
        self.inbox.append((Event.NOT_READY, self.life))

    @precondition(lambda self: self.watching)
    @rule()
    def a_server_dies(self) -> None:
        self.inbox.append((Event.SERVER_LOST, self.life))

    @precondition(lambda self: self.life and not self.leader_dead)
    @rule()
    def it_hangs(self) -> None:
        self.inbox.append((Event.UNHEALTHY, self.life))

    @precondition(lambda self: self.life and not self.leader_dead)
    @rule()
    def the_leader_dies(self) -> None:
        self.leader_dead = True
        self.inbox.append((Event.EXITED, self.life))

    @precondition(lambda self: self.life and not self.leader_dead and not self.told_stuck)
    @rule()
    def the_leader_outlives_sigkill(self) -> None:
        """Sent by this keeper or by the one before."""
        self.told_stuck = True
        self.inbox.append((Event.UNKILLABLE, self.life))

    @precondition(lambda self: self.leader_dead and self.life and not self.told_unkillable and not self.told_gone)
    @rule()
    def the_sweep_does_not_end(self) -> None:
        self.told_unkillable = True
        self.inbox.append((Event.UNKILLABLE, self.life))

    @precondition(lambda self: self.leader_dead and self.life and not self.told_gone)
    @rule()
    def everything_is_gone(self) -> None:
        self.told_gone = True
        self.inbox.append((Event.GONE, self.life))

    @precondition(lambda self: self.timer)
    @rule()
    def the_policy_says_again(self) -> None:
        self.timer = False
        self.inbox.append((Event.AGAIN, 0))

    @precondition(lambda self: self.timer)
    @rule()
    def the_policy_says_no(self) -> None:
        self.timer = False
        self.inbox.append((Event.GIVEN_UP, 0))

    # --- what holds ---

    @invariant()
    def at_most_one_life(self) -> None:
        assert not (self.in_birth and self.life)
        assert not (self.timer and (self.in_birth or self.life))

    @invariant()
    def what_serves_is_alive(self) -> None:
        if self.state in (State.RUNNING, State.DEGRADED):
            assert self.life

    @invariant()
    def who_waits_is_waiting_for_something(self) -> None:
        """No state in which a group would sit for ever: a birth, a life, a timer or a happening is on its way."""
        if self.state not in AT_REST:
            assert self.in_birth or self.life or self.timer or self.inbox

    def teardown(self) -> None:
        """Whatever went before: a stop ends in rest, once births are over and the killed are dead."""
        self.inbox.append((Event.STOP, 0))
        for _ in range(1000):
            if self.inbox:
                self.handle()
            elif self.state in AT_REST:
                return
            elif self.fetching:
                self.the_files_are_there()
            elif self.in_birth:
                self.is_born()
            elif self.life and not self.leader_dead:
                self.the_leader_dies()
            elif self.life and not self.told_gone:
                self.everything_is_gone()
            else:
                break
        raise AssertionError(f"stopped, and it is {self.state} for ever")


TestGroupInItsWorld = GroupInItsWorld.TestCase
TestGroupInItsWorld.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
