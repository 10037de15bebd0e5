"""An httpx transport that holds a request while its group is away, finds the group again, and sends it again.

It carries out `supervisor.request_policy`. `httpx.Client(transport=HoldingTransport(directory))` works with any library
that takes an httpx client: URLs handed out earlier stay good when the group moved to another port, and the key of the
group replaces whatever key the library believes in.
"""

from __future__ import annotations

import ssl
import threading
import time
from typing import TYPE_CHECKING, Final, Protocol

import httpx
from attrs import define, field

from supervisor import budgets
from supervisor.answers import is_cut, outcome_of, unavailable
from supervisor.contract import Endpoint, State
from supervisor.errors import FailedForGoodError, QueenrightError, UsageError
from supervisor.request_policy import Action, Attempt, Decision, Outcome, Route, Sender, decide, route_of, sender_of
from supervisor.stream_watch import StreamWatch, wants_terminator
from supervisor.streams import AnswerInterrupted, PassedOn, Upstream, Upstreams, watched

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["DEADLINE_EXTENSION", "AnswerInterrupted", "Directory", "HoldingTransport"]

DEADLINE_EXTENSION: Final = "queenright_deadline"
"""`extensions={"queenright_deadline": seconds}` of a request: how long it may take to the first byte of its answer."""

Origin = tuple[str, int | None]


class Directory(Protocol):
    """Where the groups of an engine are. Called from any thread; `current` and `state` must not block."""

    def current(self, group: str) -> Endpoint | None:
        """The endpoint as last heard, right or not; None if none was ever heard of."""

    def wait(self, group: str, *, unlike: str | None, deadline: float) -> Endpoint:
        """Ask afresh, and block until the group can be used.

        `unlike` is a generation known not to be behind its URL any more: an endpoint of that one is no answer.
        `deadline` is on `time.monotonic()`. Raises a QueenrightError that says in what state the group is when it will
        not come (FailedForGoodError), or not in time (any other).
        """

    def state(self, group: str) -> State | None:
        """What the group is doing, as last heard."""


@define
class _Call:
    """One request of the caller, over all its attempts."""

    request: httpx.Request
    body: bytes
    group: str
    route: Route
    started: float
    deadline: float
    counted: int = 0
    holds: int = 0
    tried: dict[str, int] = field(factory=dict)

    @property
    def left(self) -> float:
        return self.deadline - time.monotonic()

    def note(self, endpoint: Endpoint, decision: Decision) -> None:
        """Keep in mind what was tried: one line for many holds alike."""
        line = f"{endpoint.url} generation {endpoint.generation}: {decision.reason}"
        self.tried[line] = self.tried.get(line, 0) + 1
        self.counted += decision.counts

    @property
    def about(self) -> str:
        return f"{self.request.method} {self.request.url.path} to group {self.group}"


class HoldingTransport(httpx.BaseTransport):
    """See the module. Safe for many threads at once; belongs to one process (make a new one after a fork).

    `endpoints` are known from the start; `learn` adds those that are handed out later. `deadline_s` is for requests
    without DEADLINE_EXTENSION whose client sets no shorter read timeout.

    A request either gets an answer that is whole, or a 503 in OpenAI's error shape with `Retry-After` that names group,
    state, reason and tries, or AnswerInterrupted. Raises UsageError for a URL that no endpoint ever had.
    """

    def __init__(
        self, directory: Directory, endpoints: Iterable[Endpoint] = (), *, deadline_s: float = budgets.REQUEST_DEADLINE
    ) -> None:
        self._directory = directory
        self._deadline_s = deadline_s
        self._groups: dict[Origin, str] = {}
        self._bases: dict[str, httpx.URL] = {}
        self._closed = threading.Event()
        self._upstreams = Upstreams()
        # No proxy from the environment, no netrc. The context trusts nobody: groups speak plain HTTP on loopback, and
        # loading the machine's certificates takes 20 ms. Without a limit on connections nothing waits for another.
        self._inner = httpx.HTTPTransport(
            verify=ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT),
            trust_env=False,
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=32),
        )
        for endpoint in endpoints:
            self.learn(endpoint)

    def learn(self, endpoint: Endpoint) -> None:
        """Remember that the endpoint's URL means its group, now and after the group has moved."""
        base = self._bases.setdefault(endpoint.url, httpx.URL(endpoint.url))
        self._groups[_origin(base)] = endpoint.group

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Send, and hold and send again as `request_policy` says, until there is an answer for the caller.

        Raises AnswerInterrupted and UsageError as the class says; whatever keeps the group away is a 503, no exception.
        """
        self._upstreams.tidy()
        call = self._call(request)
        endpoint = self._directory.current(call.group)
        try:
            if endpoint is None:
                endpoint = self._find(call, None)
            while True:
                if endpoint.url not in self._bases:
                    self.learn(endpoint)
                attempt, response = self._attempt(call, endpoint)
                decision = decide(call.route, attempt, counted=call.counted, left_s=call.left)
                if decision.action is Action.DELIVER and response is not None:
                    return response
                call.note(endpoint, decision)
                if decision.action is Action.INTERRUPTED:
                    raise AnswerInterrupted(f"{call.about}: {decision.reason}")
                if decision.action is Action.WAIT_AS_TOLD:
                    self._pause(call, decision.wait_s)
                    endpoint = self._directory.current(call.group) or endpoint
                elif decision.action is Action.HOLD_AND_SEND_AGAIN:
                    endpoint = self._find(call, endpoint.generation if decision.gone else None)
                else:
                    return self._unavailable(call, decision.reason, told_s=decision.wait_s)
        except AnswerInterrupted:
            raise
        except FailedForGoodError as error:
            return self._unavailable(call, error.what, error.next_step, state=State.FAILED)
        except QueenrightError as error:
            return self._unavailable(call, error.what, error.next_step)

    def close(self) -> None:
        """Close all connections; requests that are held end with a 503."""
        self._closed.set()
        self._upstreams.tidy()
        self._inner.close()

    def _call(self, request: httpx.Request) -> _Call:
        group = self._groups.get(_origin(request.url))
        if group is None:
            host = f"{request.url.scheme}://{request.url.netloc.decode()}"
            raise UsageError(f"no group of this engine was ever at {host}", "Use the URL that base_url(role) gives.")
        limit = request.extensions.get(DEADLINE_EXTENSION)
        if limit is None:
            # A read timeout is how httpx spells how long a caller is ready to see nothing, held or not.
            read = request.extensions.get("timeout", {}).get("read")
            limit = self._deadline_s if read is None else min(read, self._deadline_s)
        now = time.monotonic()
        route = route_of(request.method, request.url.path)
        return _Call(request, request.read(), group, route, started=now, deadline=now + limit)

    def _find(self, call: _Call, unlike: str | None) -> Endpoint:
        """Hold, then ask the directory. The first hold for a generation that is gone needs no pause: `wait` blocks."""
        if call.holds or (unlike is None and call.tried):
            self._pause(call, budgets.HOLD_DELAYS[min(call.holds, len(budgets.HOLD_DELAYS) - 1)])
        call.holds += 1
        if call.left <= 0:
            raise QueenrightError("the deadline passed while the request was held")
        return self._directory.wait(call.group, unlike=unlike, deadline=call.deadline)

    def _unavailable(
        self, call: _Call, reason: str, next_step: str = "", *, state: State | None = None, told_s: float = 0.0
    ) -> httpx.Response:
        return unavailable(
            group=call.group,
            state=state or self._directory.state(call.group),
            reason=reason,
            next_step=next_step,
            tried=[line if times == 1 else f"{line} ({times} times)" for line, times in call.tried.items()],
            seconds=time.monotonic() - call.started,
            told_s=told_s,
        )

    def _pause(self, call: _Call, seconds: float) -> None:
        if self._closed.wait(max(0.0, min(seconds, call.left))):
            raise QueenrightError("this client was closed while the request was held")

    # --- one attempt ------------------------------------------------------------------------------------------------

    def _attempt(self, call: _Call, endpoint: Endpoint) -> tuple[Attempt, httpx.Response | None]:
        """Send once. A response comes only with what can be delivered: whole, or with its first event at hand."""
        timeouts = call.request.extensions.get("timeout", {})
        left = max(call.left, 0.001)
        limits = {"connect": min(budgets.CONNECT_LIMIT, left), "read": left, "write": left, "pool": left}
        try:
            response = self._inner.handle_request(_rewritten(call, self._bases[endpoint.url], endpoint.key, limits))
        except httpx.LocalProtocolError:
            raise  # the caller's own request is not HTTP: nothing was sent, and no other engine would like it better
        except httpx.TransportError as error:
            return Attempt(outcome_of(error)), None
        if call.route is Route.ONCE:
            limits["read"] = timeouts.get("read")  # read again when the body starts: an event stream may be silent
            upstream = Upstream(response, self._upstreams)
            return Attempt(Outcome.ANSWER, response.status_code), _passed_on(response, upstream, [], None, call)
        streams = response.headers.get("content-type", "").startswith("text/event-stream")
        if streams and response.is_success:
            return self._open(call, response)
        return self._read(call, response)

    def _open(self, call: _Call, response: httpx.Response) -> tuple[Attempt, httpx.Response | None]:
        """Read a stream up to its first event: comments before it are no part of the answer, so until then the request
        can still be sent again."""
        watch = StreamWatch(strict=wants_terminator(call.request.url.path, call.body))
        upstream = Upstream(response, self._upstreams)
        head: list[bytes] = []
        try:
            for piece in upstream.pieces:
                head.append(piece)
                watch.feed(piece)
                if watch.started:
                    delivered = _passed_on(response, upstream, head, watch, call)
                    return Attempt(Outcome.ANSWER, response.status_code), delivered
                if call.left <= 0:
                    upstream.close()
                    return Attempt(Outcome.SILENT), None
        except httpx.TransportError as error:
            upstream.close()
            return Attempt(Outcome.SILENT if isinstance(error, httpx.TimeoutException) else Outcome.STREAM_CUT), None
        upstream.close()
        return watched(Outcome.STREAM_ENDED, watch, first_byte=False), None

    def _read(self, call: _Call, response: httpx.Response) -> tuple[Attempt, httpx.Response | None]:
        """Read an answer whole before the caller sees any of it."""
        pieces: list[bytes] = []
        try:
            for piece in response.iter_raw():
                pieces.append(piece)
                if call.left <= 0:
                    return Attempt(Outcome.SILENT), None
        except httpx.TransportError as error:
            return Attempt(Outcome.SILENT if isinstance(error, httpx.TimeoutException) else Outcome.BODY_CUT), None
        finally:
            response.close()
        body = b"".join(pieces)
        if is_cut(response, body):
            return Attempt(Outcome.BODY_CUT), None
        told = response.headers.get("retry-after", "")
        attempt = Attempt(
            Outcome.ANSWER,
            response.status_code,
            sender=sender_of(body) if response.is_error else Sender.SERVER,
            told_s=float(told) if told.isascii() and told.isdigit() else None,
        )
        extensions = {key: value for key, value in response.extensions.items() if key != "network_stream"}
        whole = httpx.Response(
            response.status_code, headers=response.headers, stream=httpx.ByteStream(body), extensions=extensions
        )
        return attempt, whole


def _origin(url: httpx.URL) -> Origin:
    return url.host, url.port


def _rewritten(call: _Call, base: httpx.URL, key: str, limits: dict[str, float]) -> httpx.Request:
    """The caller's request as this endpoint wants it: its address, its key, the body at hand, nothing compressed (the
    end of a stream must be readable, and loopback has bandwidth)."""
    url, headers = call.request.url, call.request.headers.copy()
    for name in ("transfer-encoding", "content-length", "x-api-key"):
        headers.pop(name, None)
    headers["accept-encoding"] = "identity"
    if _origin(url) != _origin(base):
        url = url.copy_with(scheme=base.scheme, host=base.host, port=base.port)
        headers["host"] = base.netloc.decode()
    if key:
        headers["authorization"] = f"Bearer {key}"
    extensions = {**call.request.extensions, "timeout": limits}
    return httpx.Request(call.request.method, url, headers=headers, content=call.body, extensions=extensions)


def _passed_on(
    response: httpx.Response, upstream: Upstream, head: list[bytes], watch: StreamWatch | None, call: _Call
) -> httpx.Response:
    return httpx.Response(
        response.status_code,
        headers=response.headers,
        stream=PassedOn(upstream, head, watch, call.about),
        extensions=response.extensions,
    )
