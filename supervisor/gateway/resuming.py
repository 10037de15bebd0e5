"""A stream that was cut goes on where it stood: what was delivered, what is asked for then, and how that reads. Pure.

llama-server (b10068) tells no token ids in the chunks of chat and text completions, not even with `return_tokens`
(measured), and echoes an assistant prefill. So the continuation is asked of `/completion`, with the prompt that
`/apply-template` makes and the text so far behind it. A server holds back half a character, and text that a stop string
may begin with; what it held back was not delivered, and is made again.
"""

from __future__ import annotations

import json
from typing import Any, Final

from supervisor.gateway import saying
from supervisor.gateway.demand import output_of
from supervisor.gateway.reassembly import CHAT, TEXT

_NEVER: Final = (
    *("tools", "functions", "tool_choice", "function_call", "logprobs", "top_logprobs", "n_probs", "grammar"),
    *("json_schema", "n_cmpl", "echo", "suffix", "best_of", "return_tokens", "verbose", "timings_per_token"),
    "return_progress",
)
"""Fields that, where they say something, make an answer that `/completion` does not continue."""

_CARRIED: Final[tuple[str, ...]] = (
    *("model", "seed", "temperature", "dynatemp_range", "dynatemp_exponent", "top_k", "top_p", "min_p", "typical_p"),
    *("top_n_sigma", "xtc_probability", "xtc_threshold", "min_keep", "samplers", "mirostat", "mirostat_tau"),
    *("mirostat_eta", "repeat_last_n", "repeat_penalty", "presence_penalty", "frequency_penalty", "dry_multiplier"),
    *("dry_base", "dry_allowed_length", "dry_penalty_last_n", "dry_sequence_breakers", "logit_bias", "ignore_eos"),
    *("cache_prompt", "lora", "t_max_predict_ms"),
)
"""Fields that mean the same to `/completion` (llama.cpp's tools/server/README.md): how tokens are drawn. Nothing else of
a request is passed to it."""

_OF_CHUNK: Final = frozenset({"choices", "usage", "timings"})
_PLAIN: Final = frozenset({"role", "content"})
DONE: Final = b"data: [DONE]\n\n"


def resumable(path: str, body: Any) -> bool:
    """Whether a cut stream of this request may go on, as far as the request tells."""
    if not isinstance(body, dict) or body.get("stream") is not True or any(body.get(key) for key in _NEVER):
        return False
    form = body.get("response_format")
    if body.get("n") not in (None, 1) or (form is not None and form != {"type": "text"}):
        return False
    if path in TEXT:
        return isinstance(body.get("prompt"), str)
    messages = body.get("messages")
    if path not in CHAT or not isinstance(messages, list) or not messages:
        return False
    last = messages[-1]
    return isinstance(last, dict) and last.get("role") != "assistant" and body.get("add_generation_prompt") is not False


class Delivered:
    """What a caller has had of its stream. Whole events alone are handed on, so a cut leaves none of them in halves."""

    def __init__(self, path: str, body: dict[str, Any]) -> None:
        self._is_chat = path in CHAT
        self._body = body
        self._rest = b""
        self._chunk: dict[str, Any] = {}
        self._is_plain = True
        self._is_over = False
        self.text = ""
        self.tokens = 0
        """Chunks with text: one for each token, save where several make one character."""
        self.told: tuple[int, int] | None = None
        """Tokens read and written, as the server of the last continuation told: what was delivered before, it read."""

    @property
    def may_go_on(self) -> bool:
        """Nothing but text has come, some of it, and no end."""
        return self._is_plain and not self._is_over and bool(self.text)

    def feed(self, piece: bytes) -> bytes:
        """The next bytes of the undisturbed stream; returns those that may be handed on."""
        if b"\r" in piece or not self._is_plain:  # of another server, or never to go on: nothing is gained by waiting
            self._is_plain = False
            return self.rest() + piece
        return b"".join(self._look(event) for event in self._events(piece))

    def rest(self) -> bytes:
        """What is held back, for a stream that ended well."""
        rest, self._rest = self._rest, b""
        return rest

    def _events(self, piece: bytes) -> list[bytes]:
        *events, self._rest = (self._rest + piece).split(b"\n\n")
        return [event + b"\n\n" for event in events]

    def _look(self, event: bytes) -> bytes:
        found = _data(event)
        if found is None:
            self._is_over = self._is_over or b"[DONE]" in event
            return event
        choices = found.get("choices")
        if "error" in found or not isinstance(choices, list):
            self._is_plain = False
            return event
        self._chunk = self._chunk or {key: value for key, value in found.items() if key not in _OF_CHUNK}
        for choice in choices:
            delta = choice.get("delta") or {}
            said = {key for key, value in delta.items() if value}
            self._is_plain = self._is_plain and said <= _PLAIN and not choice.get("logprobs")
            self._add(delta.get("content") if self._is_chat else choice.get("text"))
            self._is_over = self._is_over or choice.get("finish_reason") is not None
        return event

    def _add(self, text: str | None) -> None:
        if text:
            self.text += text
            self.tokens += 1

    # --- going on ---------------------------------------------------------------------------------------------------

    @property
    def left(self) -> int | None:
        """Tokens that the answer may still have; None without a limit."""
        limit = output_of(self._body)
        return None if limit is None else max(0, limit - self.tokens)

    def template_request(self) -> dict[str, Any] | None:
        """What `/apply-template` is asked; None for a text completion, whose prompt is at hand."""
        return {**self._body, "stream": False} if self._is_chat else None

    def request(self, prompt: str | None) -> dict[str, Any]:
        """What `/completion` is asked, given the prompt of the template. It starts a new stream: half an event of the last
        one is forgotten."""
        self._rest = b""
        body: dict[str, Any] = {key: self._body[key] for key in _CARRIED if key in self._body}
        stop = self._body.get("stop")
        if stop:
            body["stop"] = [stop] if isinstance(stop, str) else stop
        if (left := self.left) is not None:
            body["n_predict"] = left
        start = self._body["prompt"] if prompt is None else prompt
        return {**body, "prompt": start + self.text, "stream": True}

    def continued(self, piece: bytes) -> bytes:
        """The next bytes of `/completion`'s stream as chunks of the caller's; ends with `[DONE]`."""
        return b"".join(self._translated(event) for event in self._events(piece))

    def ended_by_limit(self) -> bytes:
        """The end of an answer all of whose tokens had been delivered."""
        return self._end("length")

    @property
    def is_over(self) -> bool:
        """The end has been handed on."""
        return self._is_over

    def _translated(self, event: bytes) -> bytes:
        found = _data(event)
        if found is None or self._is_over:
            return event if event.startswith(b":") else b""
        if "error" in found:
            self._is_plain = False
            return event
        text = found.get("content") or ""
        self._add(text)
        out = self._event(self._choice(text, None)) if text else b""
        if not found.get("stop"):
            return out
        read, written = found.get("tokens_evaluated"), found.get("tokens_predicted")
        if isinstance(read, int) and isinstance(written, int):
            self.told = read, written
        return out + self._end("length" if found.get("stop_type") == "limit" else "stop")

    def _end(self, reason: str) -> bytes:
        """Without `usage`: no server knows of the whole answer, and text that is cut into tokens anew may make another
        number of them."""
        self._is_over = True
        return self._event(self._choice("", reason)) + DONE

    def _choice(self, text: str, reason: str | None) -> dict[str, Any]:
        if self._is_chat:
            return {"finish_reason": reason, "index": 0, "delta": {"content": text} if text else {}}
        return {"text": text, "index": 0, "logprobs": None, "finish_reason": reason}

    def _event(self, choice: dict[str, Any]) -> bytes:
        return b"data: " + saying.encoded({"choices": [choice], **self._chunk}) + b"\n\n"


def _data(event: bytes) -> dict[str, Any] | None:
    for line in event.splitlines():
        if line.startswith(b"data:"):
            try:
                found = json.loads(line[5:])
            except ValueError:
                return None
            return found if isinstance(found, dict) else None
    return None
