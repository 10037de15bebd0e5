"""The end of a stream is seen wherever its pieces are cut, and only where it is."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from supervisor.stream_watch import Ending, StreamWatch, wants_terminator


def event(**fields: object) -> bytes:
    return b"data: " + json.dumps(fields, separators=(",", ":")).encode() + b"\n\n"


def delta(text: str, reason: str | None = None) -> bytes:
    return event(choices=[{"finish_reason": reason, "index": 0, "delta": {"content": text}}])


def seen(stream: bytes, cuts: tuple[int, ...] = (), *, strict: bool = False) -> tuple[Ending, bool]:
    watch = StreamWatch(strict=strict)
    edges = [0, *sorted(cut % (len(stream) + 1) for cut in cuts), len(stream)]
    for start, end in pairwise(edges):
        watch.feed(stream[start:end])
    return watch.ending, watch.started


CASES = {
    "nothing": (b"", Ending.OPEN),
    "pings only": (b":\n\n: ping\n\n", Ending.OPEN),
    "two deltas": (delta("a") + delta("b"), Ending.OPEN),
    "finish reason": (delta("a") + delta("", "length"), Ending.FINISHED),
    "finish reason with blanks": (b'data: {"choices": [{"finish_reason": "stop"}]}\r\n\r\n', Ending.FINISHED),
    "done": (delta("a") + delta("", "stop") + b"data: [DONE]\n\n", Ending.TERMINATED),
    "done with crlf": (b"data: {}\r\n\r\ndata: [DONE]\r\n\r\n", Ending.TERMINATED),
    "done without blank": (b"data:[DONE]\n\n", Ending.TERMINATED),
    "done alone": (b"data: [DONE]", Ending.TERMINATED),
    "completion": (event(content="x", stop=False) + event(content="", id_slot=0, stop=True), Ending.FINISHED),
    "messages": (b"event: message_stop\n" + event(type="message_stop"), Ending.TERMINATED),
    "messages cut": (event(type="message_delta", delta={"stop_reason": "max_tokens"}), Ending.OPEN),
    "responses": (event(type="response.completed", response={}), Ending.TERMINATED),
    "responses cut": (event(type="response.output_text.delta", delta="x"), Ending.OPEN),
    "error in data": (delta("a") + event(error={"message": "no"}), Ending.FAILED),
    "error of old": (b'event: x\nerror: {"code":500}\n\n', Ending.FAILED),
    "error event": (delta("a") + b"event: error\n" + event(code=500, message="no"), Ending.FAILED),
    "error before done": (delta("a") + event(error="no") + b"data: [DONE]\n\n", Ending.FAILED),
    "no error": (event(error=None, choices=[]), Ending.OPEN),
    "another event": (b"event: error_count\n" + event(count=0), Ending.OPEN),
    "text about the end": (delta('{"finish_reason":"stop"}, "stop":true, {"type":"message_stop"}'), Ending.OPEN),
    "text of a marker": (delta("\ndata: [DONE]\n\nerror: x"), Ending.OPEN),
    "text that ends in a key": (delta('x,"finish_reason'), Ending.OPEN),
    "a line that is no event": (b'{"error":"loading failed"}\n', Ending.OPEN),
}


@pytest.mark.parametrize(("stream", "ending"), CASES.values(), ids=CASES)
def test_what_is_an_end(stream: bytes, ending: Ending) -> None:
    assert seen(stream)[0] is ending


@pytest.mark.parametrize(("stream", "ending"), CASES.values(), ids=CASES)
def test_an_end_is_seen_byte_by_byte(stream: bytes, ending: Ending) -> None:
    assert seen(stream, tuple(range(len(stream)))) == seen(stream)


PARTS = st.sampled_from([stream for stream, _ in CASES.values()]) | st.text().map(delta) | st.binary(max_size=20)


@given(st.lists(PARTS, max_size=6).map(b"".join), st.lists(st.integers(0, 5000), max_size=12).map(tuple), st.booleans())
@example(b'data: {"finish_reason":"', (12, 13), False)
def test_where_the_pieces_are_cut_changes_nothing(stream: bytes, cuts: tuple[int, ...], strict: bool) -> None:
    assert seen(stream, cuts, strict=strict) == seen(stream, strict=strict)


@given(st.text(), st.integers(1, 80))
def test_no_text_of_a_model_ends_its_stream(text: str, size: int) -> None:
    stream = delta(text)
    assert seen(stream, tuple(range(0, len(stream), size)))[0] is Ending.OPEN


def test_comments_are_not_the_start_of_an_answer() -> None:
    assert not seen(b": ping\n\n:\r\n\r\n")[1]
    assert seen(b": ping\n\ndata")[1]
    assert seen(b"data: x", (1,))[1]


def test_with_several_choices_only_the_terminator_ends_the_stream() -> None:
    stream = delta("a") + delta("", "stop")
    assert seen(stream, strict=True)[0] is Ending.OPEN
    assert seen(stream + b"data: [DONE]\n\n", strict=True)[0] is Ending.TERMINATED
    assert wants_terminator("/v1/chat/completions", b'{"n": 2}')
    assert wants_terminator("/upstream/smol/v1/completions/", b'{"n":12}')
    assert not wants_terminator("/v1/chat/completions", b'{"n":1,"n_predict":20}')
    assert not wants_terminator("/completion", b'{"n":2}')
    assert not wants_terminator("/completions", b'{"n":2}')
