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
    FAILED = 1
    """The server said in the stream that it failed: an end, and the caller has read why."""
    FINISHED = 2
    """A `finish_reason`: the text is whole, usage figures may be missing."""
    TERMINATED = 3
    """The last event of its protocol, such as `[DONE]`."""


# What marks an end is a literal, looked for first since that is many times as fast, and a pattern that must match there
# with the byte before it. For a key that byte matters: inside a JSON string every quote has a backslash before it, so a
# model that writes about `"finish_reason":"stop"` is not taken for one that finished. Every match is of bounded length
# (`_TAIL`), or a marker that two pieces share would be missed.
_Marks = tuple[tuple[bytes, re.Pattern[bytes]], ...]
_TERMINATED: Final[_Marks] = (
    (b"data:", re.compile(rb"[\r\n]data: ?\[DONE\]")),
    (
        b'"type"',
        re.compile(rb'[{,\s]"type"\s{0,4}:\s{0,4}"(?:message_stop|response\.(?:completed|incomplete|failed))"'),
    ),
)
_FINISHED: Final[_Marks] = (
    (b'"finish_reason"', re.compile(rb'[{,\s]"finish_reason"\s{0,4}:\s{0,4}"')),
    (b'"stop"', re.compile(rb'[{,\s]"stop"\s{0,4}:\s{0,4}true')),
)
_FAILED: Final[_Marks] = (
    (b"data:", re.compile(rb'[\r\n]data: ?\{\s{0,4}"error"')),
    (b"error:", re.compile(rb"[\r\n]error:")),
)
_STARTED: Final = re.compile(rb"[\r\n][^:\r\n]")
_TAIL: Final = 64

_CHOICES: Final = re.compile(rb'"n(?:_cmpl)?"\s*:\s*(?:[2-9]|1[0-9])|"prompt"\s*:\s*\[')


class StreamWatch:
    """Reads over a server-sent-event stream's shoulder and knows how far its end has been seen.

    `ending` is the surest sign so far: `data: [DONE]` and the last events of `/v1/messages` and `/v1/responses`;
    a `finish_reason` that is not null, and `"stop":true` of llama-server's `/completion`; an `error` event.
    `started`: more than comments (llama-server's pings) has come. Pieces may be cut anywhere; nothing is parsed.
    """

    __slots__ = ("_strict", "_tail", "ending", "started")

    def __init__(self, *, strict: bool = False) -> None:
        """`strict`: a `finish_reason` proves nothing, see `wants_terminator`."""
        self._strict = strict
        self.ending = Ending.OPEN
        self.started = False
        self._tail = b"\n"  # the first line starts as any other

    def feed(self, piece: bytes) -> None:
        """Take the next bytes of the stream."""
        if self.ending is Ending.TERMINATED:
            return
        window = self._tail + piece
        self.started = self.started or _STARTED.search(window) is not None
        if _shows(window, _TERMINATED):
            self.ending = Ending.TERMINATED
        elif self.ending < Ending.FINISHED and not self._strict and _shows(window, _FINISHED):
            self.ending = Ending.FINISHED
        elif self.ending < Ending.FAILED and _shows(window, _FAILED):
            self.ending = Ending.FAILED
        self._tail = window[-_TAIL:]


def _shows(window: bytes, marks: _Marks) -> bool:
    for literal, pattern in marks:
        at = window.find(literal, 1)
        while at > 0:
            if pattern.match(window, at - 1):
                return True
            at = window.find(literal, at + 1)
    return False


def wants_terminator(path: str, body: bytes) -> bool:
    """Whether only `[DONE]` ends the stream that this request asks for: with several choices (`n` above 1) each has a
    `finish_reason` of its own, and the first says nothing about the others. A key `n` elsewhere in the body asks for
    more than is needed, which llama-server gives anyway; its own `/completion` has no terminator and is never asked.
    So it is with a list of prompts, and with llama-server's own `n_cmpl`."""
    return path.rstrip("/").endswith(("/v1/completions", "/chat/completions")) and _CHOICES.search(body) is not None
