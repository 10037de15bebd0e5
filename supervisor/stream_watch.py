"""Whether a stream of server-sent events has shown its end. Pure, and cheap enough to look at every piece.

HTTP does not tell: llama-swap ends a stream whose server died with a clean chunk terminator (measured), so only the
answer's own last words say that it is whole. Which words those are was read off a real llama-server (b11549).
"""

from __future__ import annotations

import re
from enum import IntEnum
from typing import Final


class Ending(IntEnum):
    """How much of an answer's end a stream has shown; the higher, the surer."""

    OPEN = 0
    FINISHED = 1
    """A `finish_reason`: the text is whole, usage figures may be missing."""
    TERMINATED = 2
    """The last event of its protocol, such as `[DONE]`."""
    FAILED = 3
    """The server said in the stream that it failed. Whatever follows, the answer is none: vLLM has a `[DONE]` behind its
    errors."""


# Each pattern begins with a literal, which the search finds many times as fast as a set of bytes, and then looks back:
# for a key the byte before it matters. Inside a JSON string every quote has a backslash before it, so a model that
# writes about `"finish_reason":"stop"` is not taken for one that finished. Every match is of bounded length (`_TAIL`),
# or a marker that two pieces share would be missed.
_TERMINATED: Final = (
    re.compile(rb"data:(?<=[\r\n]data:) ?\[DONE\]"),
    re.compile(rb'"type"(?<=[{,\s]"type")\s{0,4}:\s{0,4}"(?:message_stop|response\.(?:completed|incomplete|failed))"'),
)
_FINISHED: Final = (
    re.compile(rb'"finish_reason"(?<=[{,\s]"finish_reason")\s{0,4}:\s{0,4}"'),
    re.compile(rb'"stop"(?<=[{,\s]"stop")\s{0,4}:\s{0,4}true'),
)
_FAILED: Final = (
    re.compile(rb'data:(?<=[\r\n]data:) ?\{\s{0,4}"error"\s{0,4}:\s{0,4}["{\[0-9t]'),  # and not null
    re.compile(rb"event:(?<=[\r\n]event:) ?error[\r\n]"),  # of /v1/messages
    re.compile(rb"error:(?<=[\r\n]error:)"),  # of a llama-server from before 2025
)
_STARTED: Final = re.compile(rb"[\r\n][^:\r\n]")
_TAIL: Final = 64
_BATCH: Final = 16 * 1024
"""Bytes that are put by before they are looked at: a look for each of the small pieces of a stream costs a third of
what the whole client takes for a piece (measured); in batches it costs nothing to speak of."""

_CHOICES: Final = re.compile(rb'"n(?:_cmpl)?"\s*:\s*(?:[2-9]|1[0-9])|"prompt"\s*:\s*\[')


class StreamWatch:
    """Reads over a server-sent-event stream's shoulder and knows how far its end has been seen.

    `ending` is the surest sign so far: `data: [DONE]` and the last events of `/v1/messages` and `/v1/responses`;
    a `finish_reason` that is not null, and `"stop":true` of llama-server's `/completion`; an `error` event.
    `started`: more than comments (llama-server's pings) has come. Pieces may be cut anywhere; nothing is parsed.
    """

    __slots__ = ("_ending", "_size", "_strict", "_tail", "_unseen", "started")

    def __init__(self, *, strict: bool = False) -> None:
        """`strict`: a `finish_reason` proves nothing, see `wants_terminator`."""
        self._strict = strict
        self._ending = Ending.OPEN
        self.started = False
        self._tail = b"\n"  # the first line starts as any other
        self._unseen: list[bytes] = []
        self._size = 0

    def feed(self, piece: bytes) -> None:
        """Take the next bytes of the stream."""
        self._unseen.append(piece)
        self._size += len(piece)
        if not self.started or self._size > _BATCH:
            self._look()

    @property
    def ending(self) -> Ending:
        """The surest sign so far."""
        self._look()
        return self._ending

    def _look(self) -> None:
        window = b"".join((self._tail, *self._unseen))
        self._unseen.clear()
        self._size = 0
        self._tail = window[-_TAIL:]
        self.started = self.started or _STARTED.search(window) is not None
        if self._ending is Ending.FAILED:
            return
        if _shows(window, _FAILED):
            self._ending = Ending.FAILED
        elif self._ending < Ending.TERMINATED and _shows(window, _TERMINATED):
            self._ending = Ending.TERMINATED
        elif self._ending < Ending.FINISHED and not self._strict and _shows(window, _FINISHED):
            self._ending = Ending.FINISHED


def _shows(window: bytes, marks: tuple[re.Pattern[bytes], ...]) -> bool:
    return any(mark.search(window) for mark in marks)


def wants_terminator(path: str, body: bytes) -> bool:
    """Whether only `[DONE]` ends the stream that this request asks for: with several choices (`n` above 1) each has a
    `finish_reason` of its own, and the first says nothing about the others. A key `n` elsewhere in the body asks for
    more than is needed, which llama-server gives anyway; its own `/completion` has no terminator and is never asked.
    So it is with a list of prompts, and with llama-server's own `n_cmpl`."""
    return path.rstrip("/").endswith(("/v1/completions", "/chat/completions")) and _CHOICES.search(body) is not None
