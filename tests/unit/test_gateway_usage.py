"""What an answer says of its tokens, wherever it says so."""

from __future__ import annotations

import json

import pytest

from supervisor.gateway.usage import TAIL_BYTES, tokens_in

CHAT = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10, "prompt_tokens_details": {"cached_tokens": 5}}
TIMINGS = {"cache_n": 5, "prompt_n": 2, "prompt_ms": 1.5, "predicted_n": 3, "predicted_ms": 9.0}


def whole(**fields: object) -> bytes:
    return json.dumps({"object": "x", **fields}, separators=(",", ":")).encode()


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        (whole(choices=[{"text": 'a "usage":{"prompt_tokens":99} b'}], usage=CHAT, timings=TIMINGS), (7, 3)),
        (whole(content="x", timings=TIMINGS), (7, 3)),
        (whole(usage={"input_tokens": 4, "output_tokens": 9}), (4, 9)),
        (b'{"usage": {"prompt_tokens": 6, "total_tokens": 6}, "data": []}', (6, 0)),
        (whole(usage=None, timings={"prompt_n": "many"}), None),
        (b'data: {"usage":{"prompt_tokens":1,"completion_tokens":1}}\n\ndata: {"usage":null}\n\ndata: [DONE]', (1, 1)),
        (b'{"usage":{"prompt_tokens":', None),
        (b'"timings":' + b"[" * 5000, None),
        (b"\xff\xfe", None),
        (b"", None),
    ],
)
def test_tokens_are_read_out_of_an_answer(text: bytes, tokens: tuple[int, int] | None) -> None:
    assert tokens_in(text, text) == tokens


def test_only_the_ends_of_an_answer_are_looked_at() -> None:
    said = b'"usage":{"prompt_tokens":6,"total_tokens":6}'
    filling = b"0" * 3 * TAIL_BYTES
    assert tokens_in(said + filling, said + filling) == (6, 0)
    assert tokens_in(filling + said, filling + said) == (6, 0)
    assert tokens_in(filling + said + filling, filling + said + filling) is None
