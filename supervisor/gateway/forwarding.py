"""A request on its way through the gateway: understood, held, sent, and its answer passed on as it comes.

Plain ASGI. Each request has a task that waits for its caller to leave, and a stream one more that keeps the caller from
giving up while it waits.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

import httpx
import trio

from supervisor import budgets, logfiles
from supervisor.call import Call
from supervisor.gateway import asking, naming, saying
from supervisor.gateway.admitting import Admission, Counter, NotAdmittedError, Wish
from supervisor.gateway.facts import KEY, Facts
from supervisor.gateway.gathering import Gathered, GatheringHolding
from supervisor.gateway.whereabouts import Whereabouts
from supervisor.request_policy import Route, route_of
from supervisor.stream_watch import Ending, StreamWatch, wants_terminator
from supervisor.streams import AnswerInterrupted
from supervisor.transport import TrioCarrier

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, MutableMapping

    from supervisor.gateway.asking import Asked
    from supervisor.gateway.upkeep import Keeper

    Scope = MutableMapping[str, Any]
    Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
    Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

BODY_MOST_BYTES: Final = 64 * 1024 * 1024
"""Of a request: pictures in a conversation are megabytes each, and all of it is kept until it is answered."""

BIG_BYTES: Final = 128 * 1024
"""From here on a body is read as JSON in a thread, one at a time: 2 MB take 10 to 30 ms (measured), and 64 that come at
once would keep everybody else waiting for that long each."""

_NOT_PASSED_BACK: Final = frozenset(
    {b"connection", b"keep-alive", b"transfer-encoding", b"upgrade", b"trailer", b"server", b"date"}
    | {b"access-control-allow-origin", b"access-control-allow-credentials"}
)
"""Of one connection only, or not the server's to say: who may read our answers is the gateway's business."""

_JSON: Final = [(b"content-type", b"application/json")]


class CallerLeftError(Exception):
    """The caller went away before its request was complete."""


class TooLargeError(Exception):
    """The body is larger than BODY_MOST_BYTES."""


class Forwarding:
    """The ASGI application behind every route that is not the gateway's own."""

    def __init__(self, keeper: Keeper) -> None:
        self._keeper = keeper
        self.whereabouts = Whereabouts(keeper)
        self._carrier = TrioCarrier(self.whereabouts)
        self._holding = GatheringHolding(self.whereabouts, self._carrier, (), budgets.REQUEST_DEADLINE)
        self.admission = Admission(keeper, self.whereabouts, Counter(keeper, self._carrier.pool))
        self._parsing = trio.CapacityLimiter(1)
        self._passing: set[Reply] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request. Leaves without a last message where the answer is broken: the connection ends then."""
        if scope["type"] != "http":
            return
        facts = scope.setdefault(KEY, Facts())
        facts.path = scope["path"]
        reply = Reply(send, facts)
        try:
            await self._serve(scope, receive, reply)
        except Exception as error:  # noqa: BLE001 - a bug that one request meets is that request's alone
            logfiles.complain(f"gateway: {scope['method']} {facts.path}: {_bare(error)!r}")
            facts.outcome = "failed"
            if not reply.has_started:
                await reply.give(500, _JSON, saying.error("the gateway failed", "server_error", "gateway"), "failed")

    async def _serve(self, scope: Scope, receive: Receive, reply: Reply) -> None:
        facts = reply.facts
        try:
            body = await _body_of(receive)
        except CallerLeftError:
            facts.outcome = "left"
            return
        except TooLargeError:
            what = f"the body is larger than {BODY_MOST_BYTES >> 20} MiB"
            await reply.refuse(413, saying.error(what, "invalid_request_error", "body_too_large"), close=True)
            return
        asked = await self._understand(scope, body, reply)
        if asked is None:
            return
        facts.role, facts.group, facts.is_stream = asked.model.launch.role, asked.model.group, asked.is_stream
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_until_left, receive, reply, nursery.cancel_scope)
            reply.scope = nursery.cancel_scope
            self._passing.add(reply)
            try:
                await self._answer(asked, reply, nursery)
            finally:
                self._passing.discard(reply)
                nursery.cancel_scope.cancel()
        if reply.cut and not reply.has_left:
            await reply.break_off(reply.cut)

    def cut(self, why: str) -> None:
        """End what is under way: whoever has had nothing of its answer gets a 503, the others are told in their stream."""
        self.whereabouts.give_up(why)
        self._carrier.closed.set()
        for reply in self._passing:
            if reply.is_passing:
                reply.cut = why
                reply.scope.cancel()

    async def _understand(self, scope: Scope, body: bytes, reply: Reply) -> Asked | None:
        spec, path = self._keeper.spec, scope["path"]
        if spec is None:
            await reply.refuse(503, saying.error("the engine is starting", "unavailable_error", "engine_unavailable"))
            return None
        if ".." in path.split("/"):
            await reply.refuse(404, saying.error("no such path", "invalid_request_error", "not_found"))
            return None

        def work() -> tuple[Any, Asked | None]:
            said = asking.parsed(body)
            return said, asking.understood(spec, scope, body, said, has_proxy=self.whereabouts.has_proxy)

        if len(body) < BIG_BYTES:
            said, asked = work()
        else:
            said, asked = await trio.to_thread.run_sync(work, limiter=self._parsing)
        if asked is None:
            names = [model.id for model in naming.served(spec)]
            await reply.refuse(404, saying.unknown_model(asking.name_in(said, scope["query_string"]), names))
        return asked

    # --- the answer -------------------------------------------------------------------------------------------------

    async def _answer(self, asked: Asked, reply: Reply, nursery: trio.Nursery) -> None:
        assert self._keeper.spec is not None  # noqa: S101 - it was understood by one
        gateway, now = self._keeper.spec.gateway, time.monotonic()
        request, body, group, until = asked.request, asked.body, asked.model.group, now + gateway.deadline_s
        call = (
            Gathered(request, body, group, asked.route, started=now, deadline=until, path=asked.path)
            if asked.gathers
            else Call(request, body, group, asked.route, started=now, deadline=until)
        )
        comments = Comments(reply, self.whereabouts, call, gateway.comment_after_s)
        if asked.is_stream:
            nursery.start_soon(comments.run)
        wish = Wish(group, asked.model.launch, asked.path, body, asked.demand, asked.client, until)
        try:
            async with self.admission.admitted(wish, comments.wait_for) as admitted:
                call.body, reply.headers = admitted.body, admitted.headers
                try:
                    await self._send_on(asked, call, comments, reply)
                finally:  # a caller may leave while the last of its answer is being handed over
                    admitted.is_done = reply.facts.outcome == "answered"
        except NotAdmittedError as no:
            await comments.end()
            await reply.give(no.status, no.headers, no.body, "unavailable" if no.status == 503 else "refused")

    async def _send_on(self, asked: Asked, call: Call, comments: Comments, reply: Reply) -> None:
        now = call.started
        try:
            response = await self._holding.answer(call)
        except AnswerInterrupted as error:
            await comments.end()
            await reply.give(502, _JSON, saying.interrupted(str(error.what)), "interrupted")
            return
        except httpx.LocalProtocolError as error:
            await comments.end()
            await reply.give(400, _JSON, saying.error(str(error), "invalid_request_error", "bad_request"), "refused")
            return
        finally:
            reply.facts.held_s = time.monotonic() - now
            reply.facts.tried = sum(call.tried.values())
        await comments.end()
        try:
            await self._pass_on(asked, response, reply)
        finally:
            with trio.CancelScope(shield=True):  # bounded: httpcore closes a socket, and waits for nothing
                await response.aclose()

    async def _pass_on(self, asked: Asked, response: httpx.Response, reply: Reply) -> None:
        kind = response.headers.get("content-type", "")
        is_events = kind.startswith("text/event-stream")
        headers = [(name, value) for name, value in response.headers.raw if name.lower() not in _NOT_PASSED_BACK]
        stream: Any = response.stream
        if response.status_code >= 400 or (reply.has_started and not is_events):
            try:
                body = b"".join([piece async for piece in stream])
            except AnswerInterrupted as error:
                body = saying.interrupted(error.what)
            if not body:
                what = f"the server of {asked.model.launch.role} answered {response.status_code} without a word"
                body, headers = saying.error(what, "server_error", "empty_answer"), list(_JSON)
            unavailable = response.status_code == 503 and b'"engine_unavailable"' in body
            await reply.give(response.status_code, headers, body, "unavailable" if unavailable else "answered")
            return
        watch = None
        if is_events and route_of(asked.request.method, asked.path) is Route.REPLAYABLE:
            watch = StreamWatch(strict=wants_terminator(asked.path, asked.body))
        await reply.start(response.status_code, headers)
        reply.is_passing = True
        try:
            async for piece in stream:
                if watch is not None:
                    watch.feed(piece)
                await reply.send(piece)
        except AnswerInterrupted as error:
            await reply.break_off(error.what, is_events=is_events)
            return
        if watch is not None and watch.ending is Ending.OPEN:  # HTTP calls it whole, and it is not
            await reply.break_off("the stream ended without its end marker", is_events=is_events)
            return
        reply.is_passing = False
        await reply.finish("answered")


class Reply:
    """What goes back to the caller. After a comment has begun it as a stream, whatever else there is to say is said in it."""

    def __init__(self, send: Send, facts: Facts) -> None:
        self._send, self.facts = send, facts
        self.scope = trio.CancelScope()
        self.headers: list[tuple[bytes, bytes]] = []
        """More of them, for an answer that is yet to begin."""
        self.has_started = self.has_left = self.is_passing = False
        self.cut = ""

    async def start(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        """Once; a second time it is as it was."""
        if not self.has_started:
            self.has_started = True
            await self._send({"type": "http.response.start", "status": status, "headers": [*headers, *self.headers]})

    async def send(self, piece: bytes) -> None:
        """A piece, as it is. Waits while the caller does not read."""
        await self._send({"type": "http.response.body", "body": piece, "more_body": True})

    async def finish(self, outcome: str, last: bytes = b"") -> None:
        """The answer is whole."""
        self.facts.outcome = outcome
        await self._send({"type": "http.response.body", "body": last, "more_body": False})

    async def give(self, status: int, headers: list[tuple[bytes, bytes]], body: bytes, outcome: str) -> None:
        """A whole answer at once; an error event where the stream has begun."""
        if self.has_started:
            await self.finish(outcome, saying.event(body))
            return
        headers = [(name, value) for name, value in headers if name.lower() != b"content-length"]
        await self.start(status, [*headers, (b"content-length", b"%d" % len(body))])
        await self.finish(outcome, body)

    async def refuse(self, status: int, body: bytes, *, close: bool = False) -> None:
        """Of the gateway itself: nothing was sent on."""
        await self.give(status, [*_JSON, (b"connection", b"close")] if close else _JSON, body, "refused")

    async def break_off(self, why: str, *, is_events: bool = True) -> None:
        """No end: the connection is closed in the middle, so that nobody takes this for an answer. A stream says why."""
        self.facts.outcome = "interrupted"
        if is_events:
            await self.send(b"\n\n" + saying.event(saying.interrupted(why)))


class Comments:
    """Keeps a waiting stream's caller from giving up."""

    def __init__(self, reply: Reply, whereabouts: Whereabouts, call: Call, every_s: float) -> None:
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


def _bare(error: Exception) -> Exception:
    while isinstance(error, ExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


async def _body_of(receive: Receive) -> bytes:
    """Raises CallerLeftError or TooLargeError."""
    pieces, size = [], 0
    while True:
        message = await receive()
        if message["type"] != "http.request":
            raise CallerLeftError
        piece = message.get("body", b"")
        size += len(piece)
        if size > BODY_MOST_BYTES:
            raise TooLargeError
        pieces.append(piece)
        if not message.get("more_body"):
            return b"".join(pieces)


async def _until_left(receive: Receive, reply: Reply, scope: trio.CancelScope) -> None:
    """The caller went away: whatever is being done for it is over, and its connection to the server is closed."""
    while (await receive())["type"] != "http.disconnect":
        pass
    reply.has_left = True
    reply.facts.outcome = reply.facts.outcome or "left"
    scope.cancel()
