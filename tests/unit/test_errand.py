"""What a group was told to stop for: the last word counts, and only once it is at rest and no stop is under way."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, cast

import pytest

from supervisor import lifecycle
from supervisor.contract import State
from supervisor.errand import THEN, After, Errand, Shape
from tests.unit.group_bench import SPEC

if TYPE_CHECKING:
    from supervisor.kinds import Kind

SHAPE = Shape(SPEC, cast("Kind", None))


def at_rest(errand: Errand) -> bool:
    return errand.is_due(State.DOWN, lives=False)


@pytest.mark.parametrize("after", list(After))
def test_whatever_it_goes_on_with_can_happen_to_a_group_at_rest(after: After) -> None:
    for state in lifecycle.AT_REST:
        for event in THEN[after]:
            state, _ = lifecycle.step(state, event)


@pytest.mark.parametrize(("state", "lives"), list(product(State, (True, False))))
def test_with_nothing_to_do_afterwards_nothing_is_done(state: State, lives: bool) -> None:
    assert not Errand().is_due(state, lives=lives)
    assert not Errand().to_hold().called_off().is_due(state, lives=lives)


@pytest.mark.parametrize("errand", [Errand().to_start(), Errand().to_hold(), Errand().to_retire()])
def test_it_goes_on_at_rest_and_after_the_last_stop(errand: Errand) -> None:
    stopping = errand.stop_sent().stop_sent()
    assert not at_rest(stopping.stop_came())
    assert at_rest(stopping.stop_came().stop_came())
    for state in set(State) - lifecycle.AT_REST:
        assert not errand.is_due(state, lives=False)
    assert not at_rest(errand.done())


def test_one_that_is_to_be_no_more_is_shown_for_as_long_as_it_lives() -> None:
    assert not Errand().to_retire().is_due(State.DOWN, lives=True)
    assert Errand().to_start().is_due(State.DOWN, lives=True)
    assert not Errand().to_retire().is_under_way, "nobody need wait for it"
    assert Errand().to_retire().stop_sent().is_under_way


def test_a_held_one_that_is_changed_stays_held_and_a_release_has_it_start() -> None:
    changed = Errand().to_hold().done().to_become(SHAPE)
    assert changed.after is After.HOLD
    assert changed.released().after is After.START
    assert changed.released().shape is SHAPE
    assert Errand().to_become(SHAPE).after is After.START


def test_a_release_holds_up_nothing_else() -> None:
    assert Errand().released() == Errand()
    assert Errand().to_hold().to_retire().released().after is After.RETIRE
