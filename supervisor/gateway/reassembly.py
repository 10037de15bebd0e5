"""Whole answers out of streamed ones. Pure.

llama-server notices within a second that a client left only where it streams (tools/server/server-queue.cpp), so the
gateway asks for a stream even where its caller wants the answer whole, and puts it together again. What it makes is what
llama-server would have answered, read off b10068 with both forms of the same request; the order of keys may differ.
"""

from __future__ import annotations

import json
from typing import Any, Final

CHAT: Final = ("/v1/chat/completions", "/chat/completions")
TEXT: Final = ("/v1/completions",)

_ODD: Final = frozenset({"n_cmpl", "return_tokens", "verbose", "__verbose"})
"""Fields whose effect is in whole answers alone, or in both in different ways."""

_OF_STREAMS: Final = frozenset({"choices", "object", "prompt_progress"})
"""Top-level keys of an event that are no part of the whole answer as they stand."""


class UnreadableStreamError(ValueError):
    """What came is no stream of chat or text completions."""


def streamed(path: str, body: dict[str, Any]) -> dict[str, Any] | None:
    """The same request for a stream; None where its answer could not be put together faithfully: it is sent as it is."""
    if body.get("stream") or not _ODD.isdisjoint(body):
        return None
    if path in TEXT:
        # A stream of several prompts tells their parts apart, but not how many there were of each.
        if not isinstance(body.get("prompt"), str) or body.get("n") not in (None, 1):
            return None
    elif path not in CHAT:
        return None
    return {**body, "stream": True, "stream_options": {"include_usage": True}}


def whole(path: str, stream: bytes) -> tuple[int, dict[str, Any]]:
    """Status and body that the stream of server-sent events amounts to. Raises UnreadableStreamError."""
    try:
        return _whole(path, stream)
    except (AttributeError, LookupError, TypeError) as error:  # whatever a server puts where its chunks have objects
        raise UnreadableStreamError(f"an event is no chunk of an answer: {error}") from error


def _whole(path: str, stream: bytes) -> tuple[int, dict[str, Any]]:
    is_chat = path in CHAT
    answer: dict[str, Any] = {}
    choices: dict[int, dict[str, Any]] = {}
    for event in _events(stream):
        if (error := event.get("error")) is not None:
            code = error.get("code") if isinstance(error, dict) else None
            return (code if isinstance(code, int) and 400 <= code < 600 else 500), {"error": error}
        answer |= {key: value for key, value in event.items() if key not in _OF_STREAMS}
        for part in event.get("choices") or ():
            choice = choices.setdefault(part.get("index", 0), {})
            (_add_delta if is_chat else _add_text)(choice, part)
    if not answer:
        raise UnreadableStreamError("a stream without an event")
    answer["object"] = "chat.completion" if is_chat else "text_completion"
    answer["choices"] = [(_message if is_chat else _text)(index, choices[index]) for index in sorted(choices)]
    return 200, answer


def _events(stream: bytes) -> list[dict[str, Any]]:
    found, kind = [], b""
    for line in stream.replace(b"\r\n", b"\n").split(b"\n"):
        name, _, data = line.partition(b":")
        data = data.strip()
        kind = data if name == b"event" else kind if line else b""
        if name not in (b"data", b"error") or data in (b"", b"[DONE]"):
            continue
        try:
            event = json.loads(data)
        except ValueError as error:
            raise UnreadableStreamError(f"an event is no JSON: {error}") from error
        is_error = name == b"error" or kind == b"error"  # a field of its own: llama-server of before 2025
        if is_error and not (isinstance(event, dict) and "error" in event):
            event = {"error": event}
        if isinstance(event, dict):  # `null` comes before a list of prompts
            found.append(event)
    return found


def _add_delta(choice: dict[str, Any], part: dict[str, Any]) -> None:
    message = choice.setdefault("message", {})
    for key, value in (part.get("delta") or {}).items():
        if key == "tool_calls":
            calls = message.setdefault(key, {})
            for call in value or ():
                _add_call(calls.setdefault(call.get("index", len(calls)), {}), call)
        elif key != "role" and isinstance(value, str) and isinstance(message.get(key), str):
            message[key] += value
        elif isinstance(value, list) and isinstance(message.get(key), list):
            message[key] = message[key] + value
        elif value is not None or key not in message:
            message[key] = value
    _add_rest(choice, part)


def _add_call(call: dict[str, Any], part: dict[str, Any]) -> None:
    """The name comes once, the arguments come in pieces."""
    for key, value in part.items():
        if key == "function":
            function = call.setdefault("function", {"name": "", "arguments": ""})
            for name, piece in (value or {}).items():
                if name == "arguments" and isinstance(piece, str):
                    function["arguments"] += piece
                elif piece is not None:
                    function[name] = piece
        elif key != "index" and value is not None:
            call[key] = value


def _add_text(choice: dict[str, Any], part: dict[str, Any]) -> None:
    choice["text"] = choice.get("text", "") + (part.get("text") or "")
    _add_rest(choice, part)


def _add_rest(choice: dict[str, Any], part: dict[str, Any]) -> None:
    for key, value in part.items():
        if key in ("index", "delta", "text"):
            continue
        if key == "logprobs" and isinstance(value, dict) and isinstance(choice.get(key), dict):
            for name, items in value.items():
                there = choice[key].get(name)
                if isinstance(items, list) and isinstance(there, list):
                    there += items  # in place: an answer of thousands of tokens is put together in one step of the loop
                else:
                    choice[key][name] = items
        elif value is not None or key not in choice:
            choice[key] = value


def _message(index: int, choice: dict[str, Any]) -> dict[str, Any]:
    parts = choice.pop("message", {})
    calls = parts.pop("tool_calls", None)
    content = parts.pop("content", None)
    # llama-server streams "no content yet" as null; whole, an answer without a word is "", or null beside tool calls.
    message: dict[str, Any] = {"role": parts.pop("role", "assistant"), "content": content or (None if calls else "")}
    message |= parts
    if calls:
        message["tool_calls"] = [calls[number] for number in sorted(calls)]
    if choice.get("logprobs") is None:
        choice.pop("logprobs", None)
    return {"finish_reason": choice.pop("finish_reason", None), "index": index, "message": message, **choice}


def _text(index: int, choice: dict[str, Any]) -> dict[str, Any]:
    return {"text": choice.pop("text", ""), "index": index, "logprobs": choice.pop("logprobs", None), **choice}
