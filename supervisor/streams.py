"""The bodies of answers that are passed on while they come: cut ones raise, abandoned ones free their connection.

An httpx response that is dropped without `close()` keeps its connection for good, and so a slot of the server. Closing
it from the garbage collector would take the pool's lock at a moment when this very thread may hold it. So the collector
only closes the socket, which needs no lock and tells the server; the rest waits for the next request.
"""

from __future__ import annotations

from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Final

import httpx

from supervisor.errors import InterruptedAnswerError
from supervisor.request_policy import WORDS, Action, Attempt, Outcome, Route, decide

if TYPE_CHECKING:
    from collections.abc import Iterator

    from supervisor.stream_watch import StreamWatch

NEXT_STEP: Final = "Ask again: what came so far is not a whole answer, and it was not sent a second time by itself."


class AnswerInterrupted(InterruptedAnswerError, httpx.ReadError):
    """The answer ended before it was whole, and the request is not sent again: some of it had reached the caller, or
    what the server did with it is unknown.

    It is our InterruptedAnswerError, and an httpx.ReadError for what was written against httpx.
    """

    def __init__(self, what: str, next_step: str = NEXT_STEP) -> None:
        # Neither base's constructor fits the other: httpx takes one text and a keyword.
        Exception.__init__(self, what, next_step)
        self.what = what
        self.next_step = next_step
        self._request = None


class Upstream:
    """The connection behind one streaming answer: its pieces, and ways to let go of it.

    While it is open a strong reference to it lies in `Upstreams`, so the collector never finalizes the generators of
    httpx inside, which would take locks.
    """

    def __init__(self, response: httpx.Response, owner: Upstreams) -> None:
        stream = response.stream
        if not isinstance(stream, httpx.SyncByteStream):  # pragma: no cover - the inner transport is a synchronous one
            raise TypeError("a synchronous transport gave an asynchronous stream")
        self.pieces: Iterator[bytes] = iter(stream)
        self._stream = stream
        self._socket: Any = response.extensions["network_stream"].get_extra_info("socket")
        self._owner = owner
        owner.opened.add(self)

    def close(self) -> None:
        """Give the connection back to the pool (closed, unless its answer was read to the end)."""
        self._owner.opened.discard(self)
        self._stream.close()

    def abandon(self) -> None:
        """From a finalizer: hang up without a lock, and leave the tidying to `Upstreams.tidy`."""
        self._socket.close()
        self._owner.abandoned.put(self)


class Upstreams:
    """All open streaming answers of one transport. Every operation is safe from any thread."""

    def __init__(self) -> None:
        self.opened: set[Upstream] = set()
        self.abandoned: SimpleQueue[Upstream] = SimpleQueue()  # its `put` may be called from a finalizer (stdlib docs)

    def tidy(self) -> None:
        """Return what the collector found to the pool."""
        while True:
            try:
                upstream = self.abandoned.get_nowait()
            except Empty:
                return
            upstream.close()


class PassedOn(httpx.SyncByteStream):
    """A body on its way to the caller: `head` was read already, the rest comes as it comes.

    With a `watch` the end must have been seen in it (a stream of a replayable route); without, any end that HTTP calls
    one is the end. Iterating raises AnswerInterrupted when the answer is not whole; `about` names it there.
    """

    def __init__(self, upstream: Upstream, head: list[bytes], watch: StreamWatch | None, about: str) -> None:
        self._upstream: Upstream | None = upstream
        self._head = head
        self._watch = watch
        self._about = about

    def __iter__(self) -> Iterator[bytes]:
        upstream, watch = self._upstream, self._watch
        if upstream is None:
            return
        # No `finally`: a generator that the collector ends must take no lock. `close` and `__del__` see to that case.
        cause: Exception | None = None
        while self._head:
            yield self._head.pop(0)
        try:
            for piece in upstream.pieces:
                if watch is not None:
                    watch.feed(piece)
                yield piece
            outcome = Outcome.STREAM_ENDED if watch is not None else Outcome.ANSWER
        except httpx.TimeoutException as error:
            outcome, cause = Outcome.SILENT, error
        except httpx.TransportError as error:
            outcome, cause = Outcome.STREAM_CUT, error
        self.close()
        attempt = Attempt(outcome, first_byte=True) if watch is None else watched(outcome, watch, first_byte=True)
        route = Route.ONCE if watch is None else Route.REPLAYABLE
        if decide(route, attempt, counted=1, left_s=0.0).action is not Action.DELIVER:
            raise AnswerInterrupted(f"{self._about}: {WORDS[outcome]} after part of it had been delivered") from cause

    def close(self) -> None:
        """Let go of the connection. Before the end this makes the server stop."""
        upstream, self._upstream = self._upstream, None
        if upstream is not None:
            upstream.close()

    def __del__(self) -> None:
        upstream = self.__dict__.get("_upstream")  # a constructor that raised leaves nothing
        if upstream is not None:
            upstream.abandon()


def watched(outcome: Outcome, watch: StreamWatch, *, first_byte: bool) -> Attempt:
    """The attempt that a watched stream's end amounts to."""
    return Attempt(outcome, status=200, ending=watch.ending, first_byte=first_byte)
