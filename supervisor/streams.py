"""The bodies of answers that are passed on while they come: cut ones raise, abandoned ones free their connection.

An httpx response that is dropped without `close()` keeps its connection for good, and so a slot of the server. Closing
it from the garbage collector would take the pool's lock at a moment when this very thread may hold it, and cannot be
done at all where closing is awaited. So the collector only shuts the connection down, which needs no lock and tells
the server; the rest waits for the next request.
"""

from __future__ import annotations

import socket
from contextlib import suppress
from math import inf
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Final

import httpcore
import httpx

from supervisor.answers import broken_off
from supervisor.errors import InterruptedAnswerError
from supervisor.request_policy import Action, Attempt, Outcome, Route, decide
from supervisor.straight import END, LONG, BlockingStraight, Straight, rest_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from supervisor.straight import Chunks
    from supervisor.stream_watch import StreamWatch

NEXT_STEP: Final = "Ask again: what came so far is not a whole answer, and it was not sent a second time by itself."

LOST: Final = (httpcore.NetworkError, httpcore.TimeoutException, httpcore.RemoteProtocolError)
"""What httpcore raises when a connection is lost, in whatever way, or the other side breaks HTTP."""


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
    """The connection behind one answer: its pieces, and ways to let go of it. `BlockingUpstream` and `TrioUpstream`
    are the two that there are.

    While it is open a strong reference to it lies in `Upstreams`, so the collector never finalizes the generators of
    httpcore inside, which would take locks.
    """

    def __init__(self, response: httpcore.Response, owner: Upstreams) -> None:
        self._network: Any = response.extensions["network_stream"]
        self._stream: Any = response.stream  # httpcore's type does not say of which kind it is
        self._owner = owner
        self._headers = response.headers
        self._count = self._size = 0
        self._look_at = inf
        """At this many pieces it is looked whether the rest can be read by hand."""
        self._silence_s: float | None = None
        owner.opened.add(self)

    async def piece(self) -> bytes | None:
        """The next piece; None at the end. Raises what is in LOST."""
        raise NotImplementedError

    async def aclose(self) -> None:
        """Give the connection back to the pool (closed, unless its answer was read to the end)."""
        raise NotImplementedError

    def grant(self, seconds: float | None) -> None:
        """The answer began, and is passed on as it comes: its rest may be silent for so long (None: for ever), whatever was
        left when it was asked for. Once it is long it is read by hand."""
        self._network.patience = seconds
        self._look_at, self._silence_s = self._count + LONG, seconds

    def _go_straight(self, chunks: Chunks, first: bytes) -> None:
        """Read the rest by hand from here on."""
        raise NotImplementedError

    def _counted(self, piece: bytes | None) -> bytes | None:
        """A piece that httpcore gave; after many of them, the next ones are read by hand if they can be."""
        if piece is not None:
            self._count += 1
            self._size += len(piece)
            if self._count >= self._look_at:
                self._look_at *= 2  # each look goes over all that came
                if (rest := rest_of(self._network, self._headers, self._size)) is not None:
                    self._go_straight(*rest)
        return piece

    def abandon(self) -> None:
        """From a finalizer: hang up without a lock, and leave the tidying to `Upstreams`."""
        self._hang_up()
        self._owner.abandoned.put(self)

    def _let_go(self) -> None:
        """No answer is awaited on it any more. Where more came than the answer is long (a body behind a 204, or beyond its
        length), the next one would begin with that: httpcore keeps it, and no connection that has ended."""
        self._owner.opened.discard(self)
        connection = getattr(getattr(self._stream, "_stream", None), "_connection", None)
        state = getattr(connection, "_h11_state", None)
        if state is not None and state.trailing_data[0]:
            self._hang_up()

    def _hang_up(self) -> None:
        with suppress(OSError):
            self._network.get_extra_info("socket").shutdown(socket.SHUT_RDWR)


class BlockingUpstream(Upstream):
    """Of a blocking connection: its coroutines never suspend."""

    def __init__(self, response: httpcore.Response, owner: Upstreams) -> None:
        super().__init__(response, owner)
        self._pieces: Iterator[bytes] = iter(self._stream)
        self._straight: BlockingStraight | None = None

    def _go_straight(self, chunks: Chunks, first: bytes) -> None:
        self._straight = BlockingStraight(self._network.get_extra_info("socket"), chunks, first, self._silence_s)

    def read(self) -> bytes | None:
        """As `piece`."""
        if self._straight is None:
            return self._counted(next(self._pieces, None))
        piece = self._straight.piece()
        if piece is None and self._straight.is_clean:
            self._network.instead = END
            for _ in self._pieces:
                pass  # what was read by hand, once more
        return piece

    async def piece(self) -> bytes | None:
        return self.read()

    def close(self) -> None:
        """As `aclose`."""
        self._let_go()
        self._stream.close()

    async def aclose(self) -> None:
        self.close()


class TrioUpstream(Upstream):
    """Of a connection that trio waits for."""

    def __init__(self, response: httpcore.Response, owner: Upstreams) -> None:
        super().__init__(response, owner)
        self._pieces: AsyncIterator[bytes] = aiter(self._stream)
        self._straight: Straight | None = None

    def _go_straight(self, chunks: Chunks, first: bytes) -> None:
        self._straight = Straight(self._network.get_extra_info("socket"), chunks, first, self._silence_s)

    async def piece(self) -> bytes | None:
        if self._straight is None:
            return self._counted(await anext(self._pieces, None))
        piece = await self._straight.piece()
        if piece is None and self._straight.is_clean:
            self._network.instead = END
            async for _ in self._pieces:
                pass  # what was read by hand, once more
        return piece

    async def aclose(self) -> None:
        self._let_go()
        await self._stream.aclose()  # httpcore shields it: a cancelled caller closes its connection all the same


class Upstreams:
    """All open streaming answers of one transport. Every operation is safe from any thread."""

    def __init__(self) -> None:
        self.opened: set[Upstream] = set()
        self.abandoned: SimpleQueue[Upstream] = SimpleQueue()  # its `put` may be called from a finalizer (stdlib docs)

    async def tidy(self) -> None:
        """Return what the collector found to the pool."""
        while not self.abandoned.empty():
            try:
                upstream = self.abandoned.get_nowait()
            except Empty:
                return
            await upstream.aclose()


class _Passing:
    """A body on its way to the caller: `head` was read already, the rest comes as it comes.

    With a `watch` the end must have been seen in it (a stream of a replayable route); without, any end that HTTP calls
    one is the end. Iterating raises AnswerInterrupted when the answer is not whole; `about` names it there.
    """

    _upstream: Upstream | None

    def __init__(self, head: list[bytes], watch: StreamWatch | None, about: str) -> None:
        self._head = head
        self._watch = watch
        self._about = about

    def _judge(self, cause: Exception | None) -> None:
        """What the end of the stream means for the caller; `cause` is of LOST, if it was one of those."""
        watch = self._watch
        if cause is None:
            outcome = Outcome.STREAM_ENDED if watch is not None else Outcome.ANSWER
        else:
            outcome = broken_off(cause, Outcome.STREAM_CUT)
        attempt = Attempt(outcome, first_byte=True) if watch is None else watched(outcome, watch, first_byte=True)
        route = Route.ONCE if watch is None else Route.REPLAYABLE
        decision = decide(route, attempt, counted=1, left_s=0.0)
        if decision.action is not Action.DELIVER:
            raise AnswerInterrupted(f"{self._about}: {decision.reason}") from cause

    def __del__(self) -> None:
        upstream = self.__dict__.get("_upstream")  # a constructor that raised leaves nothing
        if upstream is not None:
            upstream.abandon()


class PassedOn(_Passing, httpx.SyncByteStream):
    """A body that is iterated by a thread."""

    def __init__(self, upstream: BlockingUpstream, head: list[bytes], watch: StreamWatch | None, about: str) -> None:
        super().__init__(head, watch, about)
        self._upstream: BlockingUpstream | None = upstream

    def __iter__(self) -> Iterator[bytes]:
        upstream = self._upstream
        if upstream is None:
            return
        # No `finally`: a generator that the collector ends must take no lock. `close` and `__del__` see to that case.
        feed = None if self._watch is None else self._watch.feed
        cause: Exception | None = None
        while self._head:
            yield self._head.pop(0)
        try:
            while (piece := upstream.read()) is not None:
                if feed is not None:
                    feed(piece)
                yield piece
        except LOST as error:
            cause = error
        self.close()
        self._judge(cause)

    def close(self) -> None:
        """Let go of the connection. Before the end this makes the server stop."""
        upstream, self._upstream = self._upstream, None
        if upstream is not None:
            upstream.close()


class AsyncPassedOn(_Passing, httpx.AsyncByteStream):
    """A body that is iterated by a trio task."""

    def __init__(self, upstream: TrioUpstream, head: list[bytes], watch: StreamWatch | None, about: str) -> None:
        super().__init__(head, watch, about)
        self._upstream: TrioUpstream | None = upstream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        upstream = self._upstream
        if upstream is None:
            return
        feed = None if self._watch is None else self._watch.feed
        cause: Exception | None = None
        while self._head:
            yield self._head.pop(0)
        try:
            while (piece := await upstream.piece()) is not None:
                if feed is not None:
                    feed(piece)
                yield piece
        except LOST as error:
            cause = error
        await self.aclose()
        self._judge(cause)

    async def aclose(self) -> None:
        """Let go of the connection. Before the end this makes the server stop."""
        upstream, self._upstream = self._upstream, None
        if upstream is not None:
            await upstream.aclose()


def watched(outcome: Outcome, watch: StreamWatch, *, first_byte: bool) -> Attempt:
    """The attempt that a watched stream's end amounts to."""
    return Attempt(outcome, status=200, ending=watch.ending, first_byte=first_byte)
