"""The loop of a request: send, and hold and send again as `request_policy` says, until there is an answer.

Written once, as coroutines over a `Carrier`: the operations in which threads and trio differ. `supervisor.transport`
has the two carriers, and the httpx transports that are made of them.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final, Protocol

import httpcore
import httpx

from supervisor import budgets
from supervisor.answers import broken_off, is_cut, outcome_of, unavailable
from supervisor.call import Base, Call, request_for
from supervisor.contract import Endpoint, State
from supervisor.errors import FailedForGoodError, QueenrightError, UsageError
from supervisor.request_policy import Action, Attempt, Outcome, Route, Sender, decide, route_of, sender_of
from supervisor.stream_watch import StreamWatch, wants_terminator
from supervisor.streams import LOST, AnswerInterrupted, Upstream, Upstreams, watched

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

DEADLINE_EXTENSION: Final = "queenright_deadline"
"""`extensions={"queenright_deadline": seconds}` of a request: how long it may take to the first byte of its answer."""


class Known(Protocol):
    """Where groups are, as last heard. Called from any thread; must not block."""

    def current(self, group: str) -> Endpoint | None:
        """The endpoint as last heard, right or not; None if none was ever heard of."""

    def state(self, group: str) -> State | None:
        """What the group is doing, as last heard."""

    def vouches(self, port: int) -> bool:
        """Asked when a new connection stands, before a byte is sent: False where it cannot be the engine's, because what
        served there is dead. A stranger who took the port of a dead proxy would be told the request, with its key."""


class Flag(Protocol):
    """An Event, of threading or of trio."""

    def is_set(self) -> bool: ...


class Carrier(Protocol):
    """What a request needs of the world. Of threads none of it suspends; of trio all of it can be cancelled."""

    @property
    def closed(self) -> Flag:
        """Set once the client is closed: whoever is held gives up then."""

    async def send(self, request: httpcore.Request) -> httpcore.Response:
        """The status and headers of an answer. Raises what is in LOST, or httpcore.LocalProtocolError."""

    def upstream(self, response: httpcore.Response, owner: Upstreams) -> Upstream:
        """The body of an answer."""

    def passed_on(self, upstream: Upstream, head: list[bytes], watch: StreamWatch | None, about: str) -> Any:
        """A body for httpx (`streams.PassedOn`, `streams.AsyncPassedOn`)."""

    async def find(self, group: str, unlike: str | None, deadline: float) -> Endpoint:
        """Ask afresh, and wait until the group can be used; see `transport.Directory`."""

    async def pause(self, seconds: float) -> bool:
        """Wait; True when the client was closed meanwhile."""


class Holding:
    """See the module. Safe for many threads at once where its carrier is.

    `answer` gives an answer that is whole, or one that streams, or a 503 in OpenAI's error shape with `Retry-After` that
    names group, state, reason and tries; or raises AnswerInterrupted, or UsageError for a URL that no endpoint ever had.
    """

    def __init__(self, known: Known, carrier: Carrier, endpoints: Iterable[Endpoint], deadline_s: float) -> None:
        self._known = known
        self._carrier = carrier
        self._deadline_s = deadline_s
        self._groups: dict[tuple[bytes, int | None], str] = {}
        self._bases: dict[str, Base] = {}
        self.upstreams = Upstreams()
        for endpoint in endpoints:
            self.learn(endpoint)

    def learn(self, endpoint: Endpoint) -> None:
        """Remember that the endpoint's URL means its group, now and after the group has moved."""
        if endpoint.url not in self._bases:
            url = httpx.URL(endpoint.url)
            self._bases[endpoint.url] = Base(url.raw_host, url.port, url.netloc)
        base = self._bases[endpoint.url]
        self._groups[base.host, base.port] = endpoint.group

    def call(self, request: httpx.Request, body: bytes) -> Call:
        """The request, with its group and its deadline. Raises UsageError."""
        url = request.url
        group = self._groups.get((url.raw_host, url.port))
        if group is None:
            host = f"{url.scheme}://{url.netloc.decode()}"
            raise UsageError(f"no group of this engine was ever at {host}", "Use the URL that base_url(role) gives.")
        limit = request.extensions.get(DEADLINE_EXTENSION)
        if limit is None:
            # A read timeout is how httpx spells how long a caller is ready to see nothing, held or not.
            read = request.extensions.get("timeout", {}).get("read")
            limit = self._deadline_s if read is None else min(read, self._deadline_s)
        now = time.monotonic()
        return Call(request, body, group, route_of(request.method, url.path), started=now, deadline=now + limit)

    async def answer(self, call: Call) -> httpx.Response:
        """See the class."""
        await self.upstreams.tidy()
        endpoint = self._known.current(call.group)
        try:
            if endpoint is None:
                endpoint = await self._find(call, None)
            while True:
                if self._carrier.closed.is_set():  # a connection that is made now would be closed by nobody
                    raise _closed()
                if endpoint.url not in self._bases:
                    self.learn(endpoint)
                attempt, response = await self._attempt(call, endpoint)
                decision = decide(call.route, attempt, counted=call.counted, left_s=call.left)
                if decision.action is Action.DELIVER and response is not None:
                    return response
                call.note(endpoint, decision)
                if decision.action is Action.INTERRUPTED:
                    raise AnswerInterrupted(f"{call.about}: {decision.reason}")
                if decision.action is Action.WAIT_AS_TOLD:
                    await self._pause(call, decision.wait_s)
                    endpoint = self._known.current(call.group) or endpoint
                elif decision.action is Action.HOLD_AND_SEND_AGAIN:
                    endpoint = await self._find(call, endpoint.generation if decision.gone else None)
                else:
                    return self._unavailable(call, decision.reason, told_s=decision.wait_s)
        except AnswerInterrupted:
            raise
        except FailedForGoodError as error:
            return self._unavailable(call, error.what, error.next_step, state=State.FAILED)
        except QueenrightError as error:
            return self._unavailable(call, error.what, error.next_step)

    async def _find(self, call: Call, unlike: str | None) -> Endpoint:
        """Hold, then ask the directory. The first hold for a generation that is gone needs no pause: `find` waits."""
        if call.holds or (unlike is None and call.tried):
            await self._pause(call, budgets.HOLD_DELAYS[min(call.holds, len(budgets.HOLD_DELAYS) - 1)])
        call.holds += 1
        if call.left <= 0:
            what = "the deadline passed while the request was held"
            raise QueenrightError(what, f"`queenright status` says what group {call.group} is doing")
        return await self._carrier.find(call.group, unlike, call.deadline)

    async def _pause(self, call: Call, seconds: float) -> None:
        if await self._carrier.pause(max(0.0, min(seconds, call.left))):
            raise _closed()

    def _unavailable(
        self, call: Call, reason: str, next_step: str = "", *, state: State | None = None, told_s: float = 0.0
    ) -> httpx.Response:
        return unavailable(
            group=call.group,
            state=state or self._known.state(call.group),
            reason=reason,
            next_step=next_step,
            tried=[line if times == 1 else f"{line} ({times} times)" for line, times in call.tried.items()],
            seconds=time.monotonic() - call.started,
            told_s=told_s,
        )

    # --- one attempt ------------------------------------------------------------------------------------------------

    async def _attempt(self, call: Call, endpoint: Endpoint) -> tuple[Attempt, httpx.Response | None]:
        """Send once. A response comes only with what can be delivered: whole, or with its first event at hand."""
        left = max(call.left, 0.001)
        limits = {"connect": min(budgets.CONNECT_LIMIT, left), "read": left, "write": left, "pool": left}
        try:
            response = await self._carrier.send(request_for(call, self._bases[endpoint.url], endpoint.key, limits))
        except httpcore.LocalProtocolError as error:
            # The caller's own request is not HTTP: nothing was sent, and no other engine would like it better.
            raise httpx.LocalProtocolError(str(error), request=call.request) from error
        except LOST as error:
            return Attempt(outcome_of(error)), None
        if call.route is Route.ONCE:
            # Read again by httpcore when the body starts: an event stream may be silent.
            limits["read"] = call.request.extensions.get("timeout", {}).get("read")
            upstream = self._carrier.upstream(response, self.upstreams)
            upstream.grant(limits["read"])
            return Attempt(Outcome.ANSWER, response.status), self._passed_on(response, upstream, [], None, call)
        headers = {name.lower(): value for name, value in response.headers}
        if 200 <= response.status < 300 and headers.get(b"content-type", b"").startswith(b"text/event-stream"):
            return await self._open(call, response)
        return await self._read(call, response, headers)

    async def _open(self, call: Call, response: httpcore.Response) -> tuple[Attempt, httpx.Response | None]:
        """Read a stream up to its first event: comments before it are no part of the answer, so until then the request
        can still be sent again."""
        watch = StreamWatch(strict=wants_terminator(call.request.url.path, call.body))
        upstream = self._carrier.upstream(response, self.upstreams)
        head: list[bytes] = []
        try:
            outcome = await read_on(upstream, call, head, watch.feed, lambda: watch.started)
            if watch.started:
                upstream.grant(call.deadline - call.started)
                delivered = self._passed_on(response, upstream, head, watch, call)
                return Attempt(Outcome.ANSWER, response.status), delivered
        except BaseException:
            await upstream.aclose()
            raise
        await upstream.aclose()
        if outcome is Outcome.STREAM_ENDED:
            return watched(outcome, watch, first_byte=False), None
        return Attempt(outcome), None

    async def _read(
        self, call: Call, response: httpcore.Response, headers: dict[bytes, bytes]
    ) -> tuple[Attempt, httpx.Response | None]:
        """Read an answer whole before the caller sees any of it."""
        upstream = self._carrier.upstream(response, self.upstreams)
        pieces: list[bytes] = []
        try:
            outcome = await read_on(upstream, call, pieces)
        finally:
            await upstream.aclose()
        if outcome is Outcome.SILENT:
            return Attempt(outcome), None
        body, status = b"".join(pieces), response.status
        if outcome is Outcome.STREAM_CUT or is_cut(headers, status, body):
            return Attempt(Outcome.BODY_CUT), None
        told = headers.get(b"retry-after", b"")
        attempt = Attempt(
            Outcome.ANSWER,
            status,
            sender=sender_of(body) if status >= 400 else Sender.SERVER,
            told_s=float(told) if told.isdigit() and len(told) < 10 else None,  # else it may be no number that there is
        )
        extensions = dict(response.extensions)
        extensions.pop("network_stream", None)
        whole = httpx.Response(status, headers=response.headers, stream=httpx.ByteStream(body), extensions=extensions)
        return attempt, whole

    def _passed_on(
        self,
        response: httpcore.Response,
        upstream: Upstream,
        head: list[bytes],
        watch: StreamWatch | None,
        call: Call,
    ) -> httpx.Response:
        return httpx.Response(
            response.status,
            headers=response.headers,
            stream=self._carrier.passed_on(upstream, head, watch, call.about),
            extensions=response.extensions,
        )


async def read_on(
    upstream: Upstream,
    call: Call,
    pieces: list[bytes],
    feed: Callable[[bytes], object] = lambda _: None,
    is_enough: Callable[[], bool] = lambda: False,
) -> Outcome:
    """Read an answer into `pieces` until there is enough of it: then it is ANSWER. Else it ended first (STREAM_ENDED), was cut
    (STREAM_CUT), or the request's time is over (SILENT). Each piece is fed to `feed`."""
    try:
        while not is_enough():
            if (piece := await upstream.piece()) is None:
                return Outcome.STREAM_ENDED
            pieces.append(piece)
            feed(piece)
            if call.left <= 0:
                return Outcome.SILENT
    except LOST as error:
        return broken_off(error, Outcome.STREAM_CUT)
    return Outcome.ANSWER


def _closed() -> QueenrightError:
    return QueenrightError("this client was closed while the request was held", "ask again with one that is open")
