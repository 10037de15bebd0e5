"""What goes back to a caller of the gateway: the answer, once; and, while it waits, comments that keep it from giving up."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import trio

from supervisor import budgets
from supervisor.gateway import saying
from supervisor.gateway.tally import Ending

if TYPE_CHECKING:
    from collections.abc import Callable

    from supervisor.gateway.forwarding import Send
    from supervisor.gateway.gathering import Forwarded
    from supervisor.gateway.tally import Asking
    from supervisor.gateway.whereabouts import Whereabouts

JSON: Final = [(b"content-type", b"application/json")]


class Reply:
    """What goes back to the caller. After a comment has begun it as a stream, whatever else there is to say is said in it."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.asking: Asking | None = None
        """Of one that is for a model."""
        self.scope = trio.CancelScope()
        self.headers: list[tuple[bytes, bytes]] = []
        """More of them, for an answer that is yet to begin."""
        self.has_started = self.has_left = self.is_over = False
        self.is_events = True
        """Whether what has begun is a stream of events: a comment begins one."""
        self.cut = ""

    async def start(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        """Once; a second time it is as it was."""
        if not self.has_started:
            self.has_started = True
            await self._send({"type": "http.response.start", "status": status, "headers": [*headers, *self.headers]})

    async def send(self, piece: bytes) -> None:
        """A piece, as it is. Waits while the caller does not read."""
        await self._send({"type": "http.response.body", "body": piece, "more_body": True})

    async def finish(self, ending: Ending, last: bytes = b"") -> None:
        """The answer is whole."""
        self.ended(ending)
        self.is_over = True
        await self._send({"type": "http.response.body", "body": last, "more_body": False})

    async def give(self, status: int, headers: list[tuple[bytes, bytes]], body: bytes, ending: Ending) -> None:
        """A whole answer at once; an error event where the stream has begun."""
        if self.has_started:
            await self.finish(ending, saying.event(body))
            return
        headers = [(name, value) for name, value in headers if name.lower() != b"content-length"]
        await self.start(status, [*headers, (b"content-length", b"%d" % len(body))])
        await self.finish(ending, body)

    async def refuse(self, status: int, body: bytes) -> None:
        """Of the gateway itself: nothing was sent on."""
        await self.give(status, JSON, body, Ending.REJECTED)

    async def unavailable(self, why: str) -> None:
        """Nothing of the answer was given, and whoever asks again may have it: OpenAI's libraries do so by themselves."""
        again = [(b"retry-after", b"%d" % budgets.RETRY_AFTER), (b"x-should-retry", b"true")]
        words = saying.error(why, "unavailable_error", "engine_unavailable")
        await self.give(503, [*JSON, *again], words, Ending.UNAVAILABLE)

    async def end_cut(self) -> None:
        """It was cut where it stood."""
        if not self.has_started:
            await self.unavailable(self.cut)
        elif not self.is_over:
            await self.break_off(self.cut)

    async def break_off(self, why: str) -> None:
        """No end: the connection is closed in the middle, so that nobody takes this for an answer. A stream says why."""
        self.ended(Ending.INTERRUPTED)
        if self.is_events:
            await self.send(b"\n\n" + saying.event(saying.interrupted(why)))

    def ended(self, ending: Ending) -> None:
        """For the tally."""
        if self.asking is not None:
            self.asking.ended(ending)


class Comments:
    """Keeps a waiting stream's caller from giving up."""

    def __init__(self, reply: Reply, whereabouts: Whereabouts, call: Forwarded, every_s: float) -> None:
        self._reply, self._whereabouts, self._call, self._every_s = reply, whereabouts, call, every_s
        self._scope = trio.CancelScope()
        self._done: trio.Event | None = None
        self._place: Callable[[], str] = str

    def wait_for(self, place: Callable[[], str]) -> None:
        """Say this place in the queue, for as long as there is one."""
        self._place = place

    async def run(self) -> None:
        """One comment after another until `end`."""
        self._done = trio.Event()
        try:
            with self._scope:
                while True:
                    await trio.sleep(self._every_s)
                    # A piece of HTTP that is made must be sent. It takes as long as the caller does not read.
                    with trio.CancelScope(shield=True):
                        await self._reply.start(
                            200, [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-cache")]
                        )
                        await self._reply.send(self._words())
        finally:
            self._done.set()

    async def end(self) -> None:
        """No more comments, and none half sent."""
        self._scope.cancel()
        if self._done is not None:
            await self._done.wait()

    def _words(self) -> bytes:
        group = self._call.group
        waited = time.monotonic() - self._call.started
        if place := self._place():
            return saying.queued(group, place, waited)
        return saying.comment(group, self._whereabouts.state(group), self._whereabouts.reason(group), waited)
