"""Servers that do not come up: few tries, then a reason that a person can act on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from supervisor import budgets, identity
from supervisor.errors import ExitCode
from tests.engine.fronts import OrderFailedError
from tests.engine.kit import Launch
from tests.support import wait_until

if TYPE_CHECKING:
    from tests.engine.place import Place

pytestmark = pytest.mark.process


def both(place: Place, chat: Launch) -> None:
    """A chat server that misbehaves beside an embed server that does not. Configure a start limit with it."""
    place.configure({"chat": (chat,), "embed": (Launch("embed", place.kit.embed),)})


@pytest.mark.long
def test_a_server_that_never_becomes_healthy_is_given_up_after_three_starts(place: Place) -> None:
    both(place, Launch("chat", knobs={"exit_early": 1}))
    front = place.front()
    with pytest.raises(OrderFailedError) as failed:
        front.open()
    assert failed.value.facts["error"] == "FailedForGoodError"
    assert failed.value.facts["exit_code"] == ExitCode.FAILED_FOR_GOOD
    assert "chat" in failed.value.facts["what"]
    assert "queenright logs" in failed.value.facts["next_step"]
    assert len(place.spawns()) == budgets.DOOMED_TRIES
    found = place.group()
    assert f"given up after {budgets.DOOMED_TRIES} starts that never became ready" in found["reason"]
    assert found["log_tail"]
    assert all(line in place.cli("status").stdout for line in found["log_tail"])

    # The other group serves, and nothing is tried again behind anybody's back.
    place.wait_state("running", "embed")
    front.do("open", config=str(place.config), program="again", wait=False)
    assert front.ask("embed", "hello")
    answer = front.do("ask", role="embed", prompt="hello")
    assert answer["status"] == 200
    with pytest.raises(OrderFailedError):
        front.do("endpoint", role="chat")
    assert len(place.spawns()) == budgets.DOOMED_TRIES


def test_a_bad_flag_is_named(place: Place) -> None:
    flag = "--no-such-flag"
    both(place, Launch("chat", knobs={"reject_flag": flag}, arguments=(flag,)))
    with pytest.raises(OrderFailedError) as failed:
        place.front().open()
    assert f"invalid argument: {flag}" in failed.value.facts["what"]
    plain = place.cli("status")
    assert plain.returncode == ExitCode.FAILED_FOR_GOOD
    assert f"invalid argument: {flag}" in plain.stdout
    assert f"invalid argument: {flag}" in place.cli("logs", "chat").stdout


@pytest.mark.long
def test_a_load_that_takes_longer_than_the_limit_is_told_by_the_limits_name(place: Place) -> None:
    place.configure({"chat": (Launch("chat", knobs={"load": 600}),)}, start_limit_s=1.0)
    with pytest.raises(OrderFailedError) as failed:
        place.front().open()
    assert "not ready within 1 s (start_limit_s of group chat)" in failed.value.facts["what"]
    assert "loading" in failed.value.facts["what"]
    assert len(place.started()) <= budgets.DOOMED_TRIES


@pytest.mark.long
def test_a_server_that_answers_503_for_ever_counts_as_one_that_never_came_up(place: Place) -> None:
    place.configure({"chat": (Launch("chat", knobs={"health": "503"}),)}, start_limit_s=1.0)
    place.front().open(wait=False)
    found = place.wait_state("failed")
    assert "start_limit_s" in found["reason"]
    assert place.status()[0] == ExitCode.FAILED_FOR_GOOD


@pytest.mark.long
def test_a_request_to_a_group_that_failed_is_answered_with_group_state_and_reason(place: Place) -> None:
    both(place, Launch("chat", knobs={"die_at_request": 1}))
    front = place.member()
    answer = front.do("ask", role="chat", prompt="kill two servers")
    assert answer["status"] == 503
    assert "chat" in answer["body"]
    # A request that killed two servers is not sent to a third.
    assert place.receipts() == budgets.REPLAY_ATTEMPTS
    wait_until(lambda: place.group()["state"] == "running", what="the group is back")
    assert front.ask("embed", "hello")


@pytest.mark.long
def test_of_a_group_that_fails_half_way_nothing_is_left_running(place: Place) -> None:
    good = (Launch("first"), Launch("second"))
    place.configure({"chat": (*good, Launch("third", knobs={"exit_early": 1, "bind_delay": 1}))})
    front = place.front()
    with pytest.raises(OrderFailedError):
        front.open()
    started = place.started("first") + place.started("second")
    assert started
    assert [one for one in started if identity.liveness(one) is not identity.Liveness.DEAD] == []
    # A smaller one fits, once the failed one is stopped.
    assert place.cli("stop").returncode == ExitCode.OK
    place.configure({"chat": good})
    smaller = place.member("smaller")
    assert smaller.ask("second", "hello")
