"""What an answer says of the tokens it took. Pure, and cheap: nothing but its ends is looked at, and no answer is parsed."""

from __future__ import annotations

import json
from typing import Any, Final

HEAD_BYTES: Final = 2048
"""llama-server's embeddings have their `usage` before the vectors."""
TAIL_BYTES: Final = 16 * 1024
"""Everything else has it behind the text: the last events of a stream, the last fields of an answer."""

PIECES: Final = 8
"""So many of a stream's last pieces hold what is looked for: two events, and `[DONE]`, however they were cut."""

_DECODER: Final = json.JSONDecoder()


def tokens_in(head: bytes, tail: bytes) -> tuple[int, int] | None:
    """Tokens read and written, out of the beginning and the end of an answer; None where it does not say.

    `usage` is OpenAI's or Anthropic's; llama-server adds `timings` to the last event of every stream, also where nobody
    asked for usage: what it had in its cache is no part of `prompt_n`.
    """
    text = (tail[-TAIL_BYTES:] + b"\n" + head[:HEAD_BYTES]).decode("utf-8", "replace")
    for said in _objects(text, '"usage":'):
        read = _whole(said, "prompt_tokens", "input_tokens")
        written = _whole(said, "completion_tokens", "output_tokens")
        if read is not None or written is not None:
            return read or 0, written or 0
    for said in _objects(text, '"timings":'):
        read, written = _whole(said, "prompt_n"), _whole(said, "predicted_n")
        if read is not None and written is not None:
            return read + (_whole(said, "cache_n") or 0), written
    return None


def _objects(text: str, key: str) -> list[dict[str, Any]]:
    """What stands after that key, the last first. Inside a string every quote has a backslash before it."""
    found, end = [], len(text)
    while (at := text.rfind(key, 0, end)) >= 0:
        end = at
        try:
            said, _ = _DECODER.raw_decode(text, at + len(key) + (text[at + len(key) :][:1] == " "))
        except (ValueError, RecursionError):
            continue
        if isinstance(said, dict):
            found.append(said)
    return found


def _whole(said: dict[str, Any], *names: str) -> int | None:
    return next((said[name] for name in names if type(said.get(name)) is int), None)
