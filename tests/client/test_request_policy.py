"""The policy over all its combinations: total, bounded, never twice after the first byte."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor import budgets
from supervisor.request_policy import Action, Attempt, Decision, Outcome, Route, Sender, decide, route_of, sender_of
from supervisor.stream_watch import Ending

UNSENT = {Outcome.REFUSED, Outcome.UNREACHED}
AGAIN = {Action.HOLD_AND_SEND_AGAIN, Action.WAIT_AS_TOLD}

attempts = st.builds(
    Attempt,
    outcome=st.sampled_from(Outcome),
    status=st.sampled_from([0, 200, 204, 301, 400, 401, 404, 408, 418, 429, 500, 501, 502, 503, 504, 599]),
    sender=st.sampled_from(Sender),
    ending=st.sampled_from(Ending),
    first_byte=st.booleans(),
    told_s=st.none() | st.floats(),
)


@given(st.sampled_from(Route), attempts, st.integers(0, 5), st.floats())
def test_every_combination_has_a_decision_and_keeps_the_two_rules(
    route: Route, attempt: Attempt, counted: int, left_s: float
) -> None:
    decision = decide(route, attempt, counted=counted, left_s=left_s)
    assert decision.reason
    if attempt.first_byte:
        assert decision.action in {Action.DELIVER, Action.INTERRUPTED}
    if decision.action in AGAIN:
        assert counted + decision.counts < budgets.REPLAY_ATTEMPTS
        assert left_s > 0
    if decision.action is Action.WAIT_AS_TOLD:
        assert 0 <= decision.wait_s < left_s
        assert math.isfinite(decision.wait_s)
    if route is Route.ONCE and attempt.outcome not in UNSENT:
        assert decision.action not in AGAIN
    if attempt.outcome in UNSENT:
        assert not decision.counts or attempt.first_byte


@given(st.sampled_from(Route), attempts, st.integers(0, 5), st.floats())
def test_an_incomplete_stream_is_never_delivered_as_complete(
    route: Route, attempt: Attempt, counted: int, left_s: float
) -> None:
    decision = decide(route, attempt, counted=counted, left_s=left_s)
    if attempt.outcome is Outcome.STREAM_ENDED and attempt.ending is Ending.OPEN:
        assert decision.action is not Action.DELIVER
    if attempt.outcome is Outcome.STREAM_ENDED and attempt.ending is Ending.FAILED and attempt.first_byte:
        assert decision.action is not Action.DELIVER
    if attempt.outcome is Outcome.STREAM_CUT and attempt.ending is not Ending.TERMINATED:
        assert decision.action is not Action.DELIVER


@given(st.sampled_from(Route), st.lists(attempts, max_size=30))
def test_no_request_is_sent_more_than_twice_to_somebody_who_may_work_on_it(route: Route, fate: list[Attempt]) -> None:
    counted = worked_on = 0
    for attempt in fate:
        decision = decide(route, attempt, counted=counted, left_s=60.0)
        counted += decision.counts
        worked_on += attempt.outcome not in UNSENT and not _turned_away(attempt)
        if decision.action not in AGAIN:
            break
    assert worked_on <= budgets.REPLAY_ATTEMPTS
    assert route is Route.REPLAYABLE or worked_on <= 1


def _turned_away(attempt: Attempt) -> bool:
    """Answers that say that nobody looked at the request."""
    who = (attempt.status, attempt.sender)
    return attempt.outcome is Outcome.ANSWER and who in {
        (429, Sender.PROXY),
        (503, Sender.PROXY),
        (503, Sender.LOADING),
    }


def answer(status: int, sender: Sender, told_s: float | None = None) -> Decision:
    attempt = Attempt(Outcome.ANSWER, status, sender=sender, told_s=told_s)
    return decide(Route.REPLAYABLE, attempt, counted=0, left_s=60.0)


@pytest.mark.parametrize(
    ("status", "sender", "action", "counts"),
    [
        (200, Sender.SERVER, Action.DELIVER, True),
        (400, Sender.SERVER, Action.DELIVER, True),
        (401, Sender.SERVER, Action.DELIVER, True),
        (401, Sender.PROXY, Action.HOLD_AND_SEND_AGAIN, True),
        (404, Sender.PROXY, Action.DELIVER, True),
        (429, Sender.SERVER, Action.WAIT_AS_TOLD, False),
        (429, Sender.PROXY, Action.WAIT_AS_TOLD, False),
        (500, Sender.SERVER, Action.DELIVER, True),
        (500, Sender.PROXY, Action.HOLD_AND_SEND_AGAIN, True),
        (500, Sender.NOBODY, Action.HOLD_AND_SEND_AGAIN, True),
        (502, Sender.NOBODY, Action.HOLD_AND_SEND_AGAIN, True),
        (502, Sender.PROXY, Action.HOLD_AND_SEND_AGAIN, True),
        (502, Sender.SERVER, Action.DELIVER, True),
        (503, Sender.LOADING, Action.HOLD_AND_SEND_AGAIN, False),
        (503, Sender.PROXY, Action.HOLD_AND_SEND_AGAIN, False),
        (503, Sender.NOBODY, Action.HOLD_AND_SEND_AGAIN, True),
        (503, Sender.SERVER, Action.DELIVER, True),
    ],
)
def test_answers_by_status_and_sender(status: int, sender: Sender, action: Action, counts: bool) -> None:
    decision = answer(status, sender)
    assert (decision.action, decision.counts) == (action, counts)


@pytest.mark.parametrize(
    "attempt",
    [
        Attempt(Outcome.REFUSED),
        Attempt(Outcome.UNREACHED),
        Attempt(Outcome.ANSWER, 503, sender=Sender.LOADING),
        Attempt(Outcome.ANSWER, 503, sender=Sender.PROXY),
        Attempt(Outcome.ANSWER, 429, sender=Sender.PROXY),
    ],
)
def test_what_does_not_count_leaves_the_last_try_to_the_next_one(attempt: Attempt) -> None:
    last = budgets.REPLAY_ATTEMPTS - 1
    assert decide(Route.REPLAYABLE, attempt, counted=last, left_s=60.0).action in AGAIN
    again = Attempt(Outcome.CLOSED)
    assert decide(Route.REPLAYABLE, again, counted=last, left_s=60.0).action is Action.GIVE_UP


def test_a_429_waits_as_told_but_not_past_the_deadline() -> None:
    assert answer(429, Sender.PROXY, 7.0).wait_s == 7.0
    assert answer(429, Sender.PROXY).wait_s == 1.0
    assert answer(429, Sender.PROXY, 0.0).wait_s == 1.0, "it does not count, so it must not be a tight loop"
    assert answer(429, Sender.PROXY, 61.0).action is Action.GIVE_UP


def test_only_a_refusal_or_a_stranger_on_the_port_proves_a_generation_gone() -> None:
    proofs = {
        outcome for outcome in Outcome if decide(Route.REPLAYABLE, Attempt(outcome, 200), counted=0, left_s=60.0).gone
    }
    assert proofs == {Outcome.REFUSED, Outcome.GARBAGE}
    assert answer(401, Sender.PROXY).gone


@pytest.mark.parametrize(
    ("method", "path", "route"),
    [
        ("POST", "/v1/chat/completions", Route.REPLAYABLE),
        ("post", "/v1/embeddings/", Route.REPLAYABLE),
        ("POST", "/completion", Route.REPLAYABLE),
        ("POST", "/v1/messages/count_tokens", Route.REPLAYABLE),
        ("POST", "/upstream/smol/tokenize", Route.REPLAYABLE),
        ("POST", "/upstream/org/smol/v1/rerank", Route.REPLAYABLE),
        ("POST", "/upstream/tokenize", Route.ONCE),
        ("POST", "/upstream/smol/slots/0", Route.ONCE),
        ("GET", "/v1/chat/completions", Route.ONCE),
        ("GET", "/v1/models", Route.ONCE),
        ("POST", "/api/models/unload/smol", Route.ONCE),
        ("POST", "/v1/audio/transcriptions", Route.ONCE),
        ("POST", "/", Route.ONCE),
        ("POST", "", Route.ONCE),
    ],
)
def test_routes(method: str, path: str, route: Route) -> None:
    assert route_of(method, path) is route


@pytest.mark.parametrize(
    ("body", "sender"),
    [
        (b"", Sender.NOBODY),
        (b" \r\n", Sender.NOBODY),
        (b'{"src":"llama-swap","error":"unspecific error: group: model unloaded"}', Sender.PROXY),
        (b'{"src":"llama-swap","error":{"message":"x","type":"y","param":null,"code":"z"}}', Sender.PROXY),
        (b"llama-swap: Too many requests", Sender.PROXY),
        (b'{"error":{"message":"Loading model","type":"unavailable_error","code":503}}', Sender.LOADING),
        (b'{"error":{"code":400,"message":"nope","type":"invalid_request_error"}}', Sender.SERVER),
        (b'"llama-swap"', Sender.SERVER),
        (b"<html>", Sender.SERVER),
        (b"\xff\xfe", Sender.SERVER),
        (b"[" * 100_000, Sender.SERVER),
    ],
)
def test_senders(body: bytes, sender: Sender) -> None:
    assert sender_of(body) is sender


@given(st.text(), st.text(), st.binary())
def test_routes_and_senders_never_raise(method: str, path: str, body: bytes) -> None:
    route_of(method, path)
    sender_of(body)
