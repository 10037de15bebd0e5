"""A cut stream that goes on: joined it is the undisturbed one, wherever the cut is."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from supervisor.gateway.continuation import Continuation
from supervisor.gateway.resuming import DONE, Delivered, resumable
from supervisor.request_policy import Action, Attempt, Outcome, Route, decide
from supervisor.stream_watch import Ending
from supervisor.streams import AnswerInterrupted

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
STORY = ("Na", "ïve", " \U0001f41d", " bees\n\n", 'say "', "data: [DONE]", "\\\\", " end", ".")
BODY: dict[str, Any] = {
    "model": "chat", "messages": [{"role": "user", "content": "q"}], "stream": True, "seed": 7, "temperature": 0,
    "max_tokens": len(STORY), "stop": "never", "stream_options": {"include_usage": True},
}  # fmt: skip
HEAD = {"created": 5, "id": "chatcmpl-a", "model": "m", "system_fingerprint": "b1", "object": "chat.completion.chunk"}
USAGE = {"completion_tokens": len(STORY), "prompt_tokens": 40, "total_tokens": 40 + len(STORY)}


def event(said: object) -> bytes:
    return f"data: {json.dumps(said, ensure_ascii=False, separators=(',', ':'))}\n\n".encode()


def chunk(delta: dict[str, Any], reason: str | None = None) -> bytes:
    return event({"choices": [{"finish_reason": reason, "index": 0, "delta": delta}], **HEAD})


def undisturbed() -> bytes:
    """As a llama-server b10068 streams it, without timings."""
    middle = b"".join(chunk({"content": text}) for text in STORY)
    last = chunk({}, "length") + event({"choices": [], **HEAD, "usage": USAGE}) + DONE
    return chunk({"role": "assistant", "content": None}) + middle + last


def completion(request: dict[str, Any]) -> bytes:
    """What its `/completion` streams."""
    assert request["prompt"].startswith("<q>")
    assert (request["seed"], request["temperature"], request["stop"]) == (7, 0, ["never"])
    told = request["prompt"].removeprefix("<q>")
    at = next(number for number in range(len(STORY) + 1) if "".join(STORY[:number]) == told)
    assert request["n_predict"] == len(STORY) - at
    events = [event({"index": 0, "content": text, "tokens": [1], "stop": False}) for text in STORY[at:]]
    counts = {"tokens_predicted": len(STORY) - at, "tokens_evaluated": 40 + at}
    return b"".join(events) + event({"content": "", "stop": True, "stop_type": "limit", **counts})


STREAM = undisturbed()
FIRST = STREAM.index(b"data", STREAM.index(b'"Na"'))
"""Behind the first word."""
LAST = STREAM.index(chunk({}, "length"))


def joined(cuts: tuple[int, int], size: int) -> bytes:
    delivered = Delivered(CHAT, BODY)
    cut, second = cuts
    out = b"".join(delivered.feed(STREAM[at : min(at + size, cut)]) for at in range(0, cut, size))
    assert delivered.may_go_on
    if delivered.left == 0:
        return out + delivered.ended_by_limit()
    out += delivered.continued(completion(delivered.request("<q>"))[:second])
    if not delivered.is_over and delivered.left:
        rest = completion(delivered.request("<q>"))
        out += b"".join(delivered.continued(rest[at : at + size]) for at in range(0, len(rest), size))
    return out if delivered.is_over else out + delivered.ended_by_limit()


SEAMLESS = STREAM.replace(event({"choices": [], **HEAD, "usage": USAGE}), b"")
"""What a stream that went on should be: no server knows the usage of the whole answer."""


def test_cut_at_every_byte_it_is_the_undisturbed_stream_without_usage() -> None:
    assert b"usage" not in SEAMLESS
    for cut in range(FIRST, LAST):
        assert joined((cut, 1 << 20), 1 << 20) == SEAMLESS


@given(st.integers(FIRST, LAST - 1), st.integers(0, 900), st.integers(1, 300))
def test_cut_twice_and_in_any_pieces(cut: int, second: int, size: int) -> None:
    assert joined((cut, second), size) == SEAMLESS


def test_nothing_is_passed_on_that_is_not_known_to_mean_the_same() -> None:
    odd = {"id_slot": 3, "return_tokens": False, "n_keep": 5, "user": "u", "metadata": {}, "n_predict": 4, "foo": 1}
    delivered = Delivered(CHAT, BODY | odd)
    delivered.feed(chunk({"content": "a"}))
    assert set(delivered.request("<q>")) == {
        "model", "seed", "temperature", "stop", "n_predict", "prompt", "stream",
    }  # fmt: skip


def test_undisturbed_it_is_passed_on_as_it_came() -> None:
    delivered = Delivered(CHAT, BODY)
    assert b"".join(delivered.feed(STREAM[at : at + 7]) for at in range(0, len(STREAM), 7)) == STREAM
    assert not delivered.may_go_on
    assert delivered.rest() == b""
    foreign = STREAM.replace(b"\n\n", b"\r\n\r\n")
    assert Delivered(CHAT, BODY).feed(foreign) == foreign


@pytest.mark.parametrize(
    "delta", [{"reasoning_content": "hm"}, {"tool_calls": [{"index": 0}]}, {"role": "assistant", "content": None}]
)
def test_what_is_no_plain_text_does_not_go_on(delta: dict[str, Any]) -> None:
    delivered = Delivered(CHAT, BODY)
    delivered.feed(chunk(delta))
    assert not delivered.may_go_on


@pytest.mark.parametrize(
    "more",
    [
        {"tools": [{}]}, {"n": 2}, {"logprobs": True}, {"grammar": "x"}, {"response_format": {"type": "json_object"}},
        {"messages": [{"role": "assistant", "content": "So"}]}, {"stream": False}, {"json_schema": {"a": 1}},
    ],
)  # fmt: skip
def test_requests_that_do_not_go_on(more: dict[str, Any]) -> None:
    assert resumable(CHAT, BODY)
    assert not resumable(CHAT, BODY | more)


@pytest.mark.parametrize("left", [0.0, 9.0])
def test_the_deadline_is_that_of_the_request(left: float) -> None:
    """Past it nobody is asked, and before it there is somebody to ask."""
    asked: list[str] = []

    class Noted(Continuation):
        async def _ask(self, path: str, *_: Any) -> Any:
            asked.append(path)
            raise AnswerInterrupted("no answer")

    delivered, call = Delivered(CHAT, BODY), cast("Any", SimpleNamespace(left=left))
    delivered.feed(chunk({"content": "a"}))
    nothing = cast("Any", None)
    continuation = Noted(nothing, nothing, nothing, call, nothing, 1.0)
    with pytest.raises(AnswerInterrupted, match="cut" if left == 0 else "no answer"):
        trio.run(continuation.go_on, delivered, AnswerInterrupted("cut"), nothing)
    assert asked == ([] if left == 0 else ["/apply-template"])


def test_text_completions() -> None:
    body = {"prompt": "<q>", "stream": True, "max_tokens": 3}
    assert resumable(TEXT, body)
    assert not resumable(TEXT, body | {"prompt": ["a"]})
    assert not resumable("/v1/embeddings", body)
    delivered = Delivered(TEXT, body)
    delivered.feed(event({"choices": [{"text": "a", "index": 0, "logprobs": None, "finish_reason": None}], "id": "i"}))
    assert delivered.request(None) == {"prompt": "<q>a", "stream": True, "n_predict": 2}
    end = {"content": "b", "stop": True, "stop_type": "word", "tokens_predicted": 1, "tokens_evaluated": 4}
    one, last, done, _ = delivered.continued(event(end)).split(b"\n\n")
    assert json.loads(one[6:]) == {
        "choices": [{"text": "b", "index": 0, "logprobs": None, "finish_reason": None}], "id": "i",
    }  # fmt: skip
    assert json.loads(last[6:])["choices"][0]["finish_reason"] == "stop"
    assert "usage" not in json.loads(last[6:])
    assert delivered.told == (4, 1)
    assert done == b"data: [DONE]"


@given(
    st.sampled_from(Route), st.sampled_from(Outcome), st.sampled_from(Ending), st.booleans(), st.integers(-1, 3),
    st.floats(-1, 1),
)  # fmt: skip
def test_only_an_open_stream_goes_on(
    route: Route, outcome: Outcome, ending: Ending, first_byte: bool, resumes_left: int, left_s: float
) -> None:
    attempt = Attempt(outcome, 200, ending=ending, first_byte=first_byte)
    without = decide(route, attempt, counted=1, left_s=left_s)
    found = decide(route, attempt, counted=1, left_s=left_s, resumes_left=resumes_left)
    if found.action is Action.RESUME:
        assert (without.action, route, ending) == (Action.INTERRUPTED, Route.REPLAYABLE, Ending.OPEN)
        assert min(resumes_left, left_s) > 0
    else:
        assert found == without
