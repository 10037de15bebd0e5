"""httpx transports that hold a request while its group is away, find the group again, and send it again.

They carry out `supervisor.request_policy`; the loop is in `supervisor.request_loop`. `httpx.Client(transport=
HoldingTransport(directory))`, or `httpx.AsyncClient(transport=AsyncHoldingTransport(directory))` on trio, works with any
library that takes an httpx client: URLs handed out earlier stay good when the group moved to another port, and the key
of the group replaces whatever key the library believes in.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Final, Protocol

import httpcore
import httpx

from supervisor import budgets
from supervisor.one_write import OneWriteBackend, TrioOneWriteBackend
from supervisor.request_loop import DEADLINE_EXTENSION, Holding, Known
from supervisor.stepping import step
from supervisor.streams import AnswerInterrupted, AsyncPassedOn, BlockingUpstream, PassedOn, TrioUpstream, Upstreams

if TYPE_CHECKING:
    from collections.abc import Iterable

    from supervisor.contract import Endpoint
    from supervisor.stream_watch import StreamWatch

__all__ = [
    "DEADLINE_EXTENSION",
    "AnswerInterrupted",
    "AsyncDirectory",
    "AsyncHoldingTransport",
    "Directory",
    "HoldingTransport",
]

KEPT_ALIVE: Final = 32
"""Idle connections that are kept. There is no limit on those in use: nothing must wait for another's answer."""


class Directory(Known, Protocol):
    """Where the groups of an engine are."""

    def wait(self, group: str, *, unlike: str | None, deadline: float) -> Endpoint:
        """Ask afresh, and block until the group can be used.

        `unlike` is a generation known not to be behind its URL any more: an endpoint of that one is no answer.
        `deadline` is on `time.monotonic()`. Raises a QueenrightError that says in what state the group is when it will
        not come (FailedForGoodError), or not in time (any other).
        """


class AsyncDirectory(Known, Protocol):
    """The same for trio."""

    async def wait_async(self, group: str, *, unlike: str | None, deadline: float) -> Endpoint:
        """As `Directory.wait`, but it lets other tasks run, and can be cancelled."""


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
        self._carrier = _Threads(directory)
        self._holding = Holding(directory, self._carrier, endpoints, deadline_s)
        self.learn = self._holding.learn

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Send, and hold and send again as `request_policy` says, until there is an answer for the caller.

        Raises AnswerInterrupted and UsageError as the class says; whatever keeps the group away is a 503, no exception.
        """
        try:
            return step(self._holding.answer(self._holding.call(request, request.read())))
        finally:
            if self._carrier.closed.is_set():  # meanwhile: what was being connected then is in nobody's list
                self._carrier.pool.close()

    def close(self) -> None:
        """Close all connections; requests that are held end with a 503."""
        self._carrier.closed.set()
        step(self._holding.upstreams.tidy())
        self._carrier.pool.close()


class AsyncHoldingTransport(httpx.AsyncBaseTransport):
    """As HoldingTransport, for trio. A cancelled request closes its connection at once, so that the server stops."""

    def __init__(
        self,
        directory: AsyncDirectory,
        endpoints: Iterable[Endpoint] = (),
        *,
        deadline_s: float = budgets.REQUEST_DEADLINE,
    ) -> None:
        self._carrier = TrioCarrier(directory)
        self._holding = Holding(directory, self._carrier, endpoints, deadline_s)
        self.learn = self._holding.learn

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """As HoldingTransport.handle_request."""
        body = await request.aread()
        try:
            return await self._holding.answer(self._holding.call(request, body))
        finally:
            if self._carrier.closed.is_set():
                await self._carrier.pool.aclose()  # takes no time, cancelled or not: it only closes sockets

    async def aclose(self) -> None:
        """Close all connections; requests that are held end with a 503."""
        self._carrier.closed.set()
        await self._holding.upstreams.tidy()
        await self._carrier.pool.aclose()


class _Threads:
    """The Carrier that blocks: none of its coroutines suspends."""

    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self.closed = threading.Event()
        # No proxy from the environment, no netrc, no certificates: httpcore has none of that by itself.
        self.pool = httpcore.ConnectionPool(
            max_connections=None,
            max_keepalive_connections=KEPT_ALIVE,
            keepalive_expiry=budgets.KEPT_FOR,
            network_backend=OneWriteBackend(directory.vouches),
        )

    async def send(self, request: httpcore.Request) -> httpcore.Response:
        return self.pool.handle_request(request)

    def upstream(self, response: httpcore.Response, owner: Upstreams) -> BlockingUpstream:
        return BlockingUpstream(response, owner)

    def passed_on(self, upstream: Any, head: list[bytes], watch: StreamWatch | None, about: str) -> PassedOn:
        return PassedOn(upstream, head, watch, about)

    async def find(self, group: str, unlike: str | None, deadline: float) -> Endpoint:
        return self._directory.wait(group, unlike=unlike, deadline=deadline)

    async def pause(self, seconds: float) -> bool:
        return self.closed.wait(seconds)


class TrioCarrier:
    """The Carrier of trio tasks."""

    def __init__(self, directory: AsyncDirectory) -> None:
        import trio  # here alone: whoever uses threads does without

        self._directory = directory
        self._wait_at_most = trio.move_on_after
        self.closed = trio.Event()
        self.pool = httpcore.AsyncConnectionPool(
            max_connections=None,
            max_keepalive_connections=KEPT_ALIVE,
            keepalive_expiry=budgets.KEPT_FOR,
            network_backend=TrioOneWriteBackend(directory.vouches),
        )

    async def send(self, request: httpcore.Request) -> httpcore.Response:
        return await self.pool.handle_async_request(request)

    def upstream(self, response: httpcore.Response, owner: Upstreams) -> TrioUpstream:
        return TrioUpstream(response, owner)

    def passed_on(self, upstream: Any, head: list[bytes], watch: StreamWatch | None, about: str) -> AsyncPassedOn:
        return AsyncPassedOn(upstream, head, watch, about)

    async def find(self, group: str, unlike: str | None, deadline: float) -> Endpoint:
        return await self._directory.wait_async(group, unlike=unlike, deadline=deadline)

    async def pause(self, seconds: float) -> bool:
        with self._wait_at_most(seconds):
            await self.closed.wait()
        return self.closed.is_set()
