"""The demo must not be able to claim what was not seen."""

from __future__ import annotations

import io

import pytest

from chaos.observer import NotObservedError, wait_until
from chaos.story import Story, require


def told(*observed: bool) -> Story:
    story = Story(io.StringIO())
    for number, seen in enumerate(observed, 1):
        story.step(f"step {number}")
        if seen:
            story.seen()
    return story


def test_five_observed_steps_are_a_whole_story() -> None:
    assert told(True, True, True, True, True).all_observed


@pytest.mark.parametrize("observed", [(), (True,) * 4, (True, True, False, True, True), (False,) * 5])
def test_anything_less_is_not(observed: tuple[bool, ...]) -> None:
    assert not told(*observed).all_observed


def test_a_claim_that_does_not_hold_is_an_error_that_says_it() -> None:
    with pytest.raises(NotObservedError, match="no process came or went"):
        require(False, "no process came or went")


def test_what_is_not_seen_in_time_is_named() -> None:
    with pytest.raises(NotObservedError, match="the warden is gone"):
        wait_until("the warden is gone", lambda: None, limit_s=0.0)


def test_facts_are_kept_as_data() -> None:
    story = told(True)
    story.fact("gone_s", 0.5, "everything gone")
    story.fail("but this was not")
    assert story.steps[0]["facts"] == {"gone_s": 0.5}
    assert story.steps[0]["failure"] == "but this was not"
