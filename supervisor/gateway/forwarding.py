"""A request on its way through the gateway: understood, held, sent, and its answer passed on as it comes.

Plain ASGI. Each request has a task that waits for its caller to leave, and a stream one more that keeps the caller from
giving up while it waits.
"""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Any, Final

import httpx
import trio

from supervisor import budgets, logfiles
from supervisor.gateway import access, asking, models, naming, saying, usage
from supervisor.gateway.admitting import Admission, Counter, NotAdmittedError, Wish
from supervisor.gateway.aside import Aside
from supervisor.gateway.continuation import Continuation
from supervisor.gateway.gathering import Forwarded, GatheringHolding
from supervisor.gateway.replying import JSON, Comments, Reply
from supervisor.gateway.resuming import Delivered, resumable
from supervisor.gateway.tally import SAID, Ending, ending_of
from supervisor.gateway.whereabouts import Whereabouts
from supervisor.request_policy import Route, route_of
from supervisor.stream_watch import Ending as StreamEnding
from supervisor.stream_watch import StreamWatch, wants_terminator
from supervisor.streams import AnswerInterrupted
from supervisor.transport import TrioCarrier

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, MutableMapping, Sequence

    from supervisor.gateway.asking import Asked
    from supervisor.gateway.upkeep import Keeper

    Scope = MutableMapping[str, Any]
    Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
    Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

_NOT_PASSED_BACK: Final = frozenset(
    {b"connection", b"keep-alive", b"transfer-encoding", b"upgrade", b"trailer", b"server", b"date"}
    | {b"access-control-allow-origin", b"access-control-allow-credentials"}
)
"""Of one connection only, or not the server's to say: who may read our answers is the gateway's business."""

_REFUSED: Final = {429: Ending.OVERLOADED, 503: Ending.UNAVAILABLE}
"""How a request ends that is not admitted, by its status; else it is rejected."""


class CallerLeftError(Exception):
    """The caller went away before its request was complete."""


class Forwarding:
    """The ASGI application behind every route that is not the gateway's own."""

    def __init__(self, keeper: Keeper) -> None:
        self._keeper = keeper
        self.whereabouts = Whereabouts(keeper)
        self._carrier = TrioCarrier(self.whereabouts)
        self._holding = GatheringHolding(self.whereabouts, self._carrier, (), budgets.REQUEST_DEADLINE)
        self._aside = Aside()
        counter = Counter(keeper, self._carrier.pool, self._aside)
        self.admission = Admission(keeper, self.whereabouts, counter, self._aside)
        self._passing: set[Reply] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request. Leaves without a last message where the answer is broken: the connection ends then."""
        if scope["type"] != "http":
            return
        reply = Reply(send)
        try:
            await self._serve(scope, receive, reply)
        except Exception as error:  # noqa: BLE001 - a bug that one request meets is that request's alone
            logfiles.complain(f"gateway: {scope['method']} {access.shown(scope['path'])}: {_bare(error)!r}")
            if not reply.has_started:
                body = saying.error("the gateway failed", "server_error", "gateway")
                await reply.give(500, JSON, body, Ending.ERROR)

    async def _serve(self, scope: Scope, receive: Receive, reply: Reply) -> None:
        try:
            body = await _body_of(receive)
        except CallerLeftError:
            return
        asked = await self._understand(scope, body, reply)
        if asked is None:
            return
        with self._keeper.gateway.tally.asked(asked.model.group) as reply.asking:
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
                await reply.end_cut()

    def cut(self, why: str) -> None:
        """End what is under way: whoever has had nothing of its answer gets a 503, the others are told in their stream."""
        self.whereabouts.give_up(why)
        self._carrier.closed.set()
        for reply in self._passing:
            reply.cut = why
            reply.scope.cancel()

    async def _understand(self, scope: Scope, body: bytes, reply: Reply) -> Asked | None:
        spec, path = self._keeper.spec, scope["path"]
        if spec is None:
            await reply.unavailable("the engine is starting")
            return None
        # A 2xx of the server's would make a tunnel of this connection (RFC 9110, 9.3.6)
        if scope["method"] == "CONNECT":
            await reply.refuse(405, saying.error("this is no proxy", "invalid_request_error", "not_allowed"))
            return None
        if ".." in path.split("/") or not path.startswith("/"):
            await reply.refuse(404, saying.error("no such path", "invalid_request_error", "not_found"))
            return None

        def work() -> tuple[Any, Asked | None]:
            said = asking.parsed(body)
            return said, asking.understood(spec, scope, body, said, has_proxy=self.whereabouts.has_proxy)

        try:
            said, asked = await self._aside.do(len(body), work)
        except httpx.InvalidURL as error:  # HTTP/1.1 takes more for a target than a URL may be
            what = f"the request's target cannot be passed on: {access.shown(str(error))}"
            await reply.refuse(400, saying.error(what, "invalid_request_error", "bad_request"))
            return None
        if asking.is_unreadable(scope["method"], path, said):
            what = "the body of this request has to be a JSON object, and is none"
            await reply.refuse(400, saying.error(what, "invalid_request_error", "bad_request"))
            return None
        if asked is None:
            names = [model.id for model in naming.served(spec)]
            await reply.refuse(404, saying.unknown_model(asking.name_in(said, scope["query_string"]), names))
        return asked

    # --- the answer -------------------------------------------------------------------------------------------------

    async def _answer(self, asked: Asked, reply: Reply, nursery: trio.Nursery) -> None:
        assert self._keeper.spec is not None  # noqa: S101 - it was understood by one
        assert reply.asking is not None  # noqa: S101
        gateway, now = self._keeper.spec.gateway, time.monotonic()
        body, group, until = asked.body, asked.model.group, now + gateway.deadline_s
        call = Forwarded(
            request=asked.request,
            body=body,
            group=group,
            route=asked.route,
            started=now,
            deadline=until,
            asking=reply.asking,
            path=asked.path,
            gathers=asked.gathers,
        )
        comments = Comments(reply, self.whereabouts, call, gateway.comment_after_s)
        if asked.is_stream:
            nursery.start_soon(comments.run)
        wish = Wish(
            group, models.as_run(asked.model, self._keeper.tree), asked.path, body, asked.demand, asked.client, until
        )
        try:
            async with self.admission.admitted(wish, comments.wait_for) as admitted:
                call.body, reply.headers = admitted.body, admitted.headers
                try:
                    await self._send_on(asked, call, comments, reply, nursery)
                finally:  # a caller may leave while the last of its answer is being handed over
                    admitted.is_done = call.asking.ending in SAID
        except NotAdmittedError as no:
            await comments.end()
            await reply.give(no.status, no.headers, no.body, _REFUSED.get(no.status, Ending.REJECTED))

    async def _send_on(
        self, asked: Asked, call: Forwarded, comments: Comments, reply: Reply, nursery: trio.Nursery
    ) -> None:
        try:
            response = await self._holding.answer(call)
        except AnswerInterrupted as error:
            await comments.end()
            await reply.give(502, JSON, saying.interrupted(str(error.what)), Ending.INTERRUPTED)
            return
        except httpx.LocalProtocolError as error:
            await comments.end()
            await reply.refuse(400, saying.error(str(error), "invalid_request_error", "bad_request"))
            return
        await comments.end()
        try:
            await self._pass_on(asked, call, response, reply, nursery)
        finally:
            with trio.CancelScope(shield=True):  # bounded: httpcore closes a socket, and waits for nothing
                await response.aclose()

    async def _pass_on(
        self, asked: Asked, call: Forwarded, response: httpx.Response, reply: Reply, nursery: trio.Nursery
    ) -> None:
        kind = response.headers.get("content-type", "")
        is_events = kind.startswith("text/event-stream")
        headers = _passed_back(response.headers.raw)
        stream: Any = response.stream
        if response.status_code >= 400 or (reply.has_started and not is_events):
            ending = ending_of(max(500, response.status_code) if reply.has_started else response.status_code)
            try:
                body = b"".join([piece async for piece in stream])
            except AnswerInterrupted as error:
                body, ending = saying.interrupted(error.what), Ending.INTERRUPTED
            if not body:
                what = f"the server of {asked.model.launch.role} answered {response.status_code} without a word"
                body, headers = saying.error(what, "server_error", "empty_answer"), list(JSON)
            if response.status_code == 503 and b'"engine_unavailable"' in body:
                ending = Ending.UNAVAILABLE
            await reply.give(response.status_code, headers, body, ending)
            return
        watch = None
        if is_events and route_of(asked.request.method, asked.path) is Route.REPLAYABLE:
            watch = StreamWatch(strict=wants_terminator(asked.path, asked.body))
        delivered = await self._delivered(asked, call.body) if watch is not None else None
        await reply.start(response.status_code, headers)
        reply.is_events = is_events
        head, last = b"", deque[bytes](maxlen=usage.PIECES)
        try:
            async for piece in stream:
                if watch is not None:
                    watch.feed(piece)
                head = head or piece
                last.append(piece)
                await reply.send(piece if delivered is None else delivered.feed(piece))
            if watch is not None and watch.ending in (StreamEnding.OPEN, StreamEnding.FAILED):
                raise AnswerInterrupted("the stream ended without its end marker")  # HTTP calls it whole, and it is not
            if delivered is not None:
                await reply.send(delivered.rest())
        except AnswerInterrupted as error:
            tail = b"".join(last)
            if (
                watch is not None
                and watch.ending is StreamEnding.FAILED
                and error.__cause__ is None
                and tail.endswith((b"\n\n", b"\r\n\r\n"))
            ):  # the caller has the server's own word for it, whole
                await reply.finish(Ending.ERROR, saying.unread_failure(tail))
                return
            try:
                if delivered is None:
                    raise
                await self._continuation(asked, call, reply).go_on(delivered, error, nursery)
            except AnswerInterrupted as undone:
                await reply.break_off(undone.what)
                return
        tokens = delivered.told if delivered is not None and delivered.told else usage.tokens_in(head, b"".join(last))
        if tokens is not None and reply.asking is not None:
            reply.asking.tokens(*tokens)
        await reply.finish(Ending.ANSWERED)

    async def _delivered(self, asked: Asked, body: bytes) -> Delivered | None:
        """Of a stream that may go on if it is cut."""
        if not asked.is_stream or self._keeper.spec is None or not self._keeper.spec.gateway.resume:
            return None
        said = await self._aside.do(len(body), lambda: asking.parsed(body))
        return Delivered(asked.path, said) if resumable(asked.path, said) else None

    def _continuation(self, asked: Asked, call: Forwarded, reply: Reply) -> Continuation:
        assert self._keeper.spec is not None  # noqa: S101 - it was understood by one
        every_s = self._keeper.spec.gateway.comment_after_s
        return Continuation(self._holding, self.whereabouts, asked, call, reply, every_s)


def _passed_back(headers: Sequence[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Of an answer's headers. A length beside a transfer coding is not its length (RFC 9112, 6.3)."""
    dropped = _NOT_PASSED_BACK | asking.of_connection(headers)
    if any(name.lower() == b"transfer-encoding" for name, _ in headers):
        dropped |= {b"content-length"}
    return [(name, value) for name, value in headers if name.lower() not in dropped]


def _bare(error: Exception) -> Exception:
    while isinstance(error, ExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


async def _body_of(receive: Receive) -> bytes:
    """Raises CallerLeftError. How much of it there may be is the Guard's business."""
    body = bytearray()  # no list: one of chunks of a byte or two takes thirty times what the Guard counts
    while True:
        message = await receive()
        if message["type"] != "http.request":
            raise CallerLeftError
        body += message.get("body", b"")
        if not message.get("more_body"):
            return bytes(body)


async def _until_left(receive: Receive, reply: Reply, scope: trio.CancelScope) -> None:
    """The caller went away: whatever is being done for it is over, and its connection to the server is closed."""
    while (await receive())["type"] != "http.disconnect":
        pass
    if reply.is_over:  # this is said of our own last word, too, and what is left to do is to close the connection
        return
    reply.has_left = True
    reply.ended(Ending.LEFT)
    scope.cancel()
