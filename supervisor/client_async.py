"""The engine for trio tasks: `supervisor.client.open_engine_async`."""

from __future__ import annotations

import threading
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import httpx
import trio

from supervisor import budgets, control_async
from supervisor.errors import UsageError
from supervisor.transport import AsyncHoldingTransport

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from supervisor.client import Engine
    from supervisor.contract import Endpoint
    from supervisor.slot import Slot


@asynccontextmanager
async def opened(make: Callable[[], Engine]) -> AsyncIterator[AsyncEngine]:
    """`make` blocks for seconds: it runs in a worker thread. A task that is cancelled meanwhile goes at once, and what
    the thread gets then is given back."""
    engine = AsyncEngine(await _got(make))
    try:
        yield engine
    finally:
        with trio.CancelScope(shield=True):  # bounded: it leaves, and waits for nothing
            await engine.aclose()


async def _got(make: Callable[[], Engine]) -> Engine:
    lock = threading.Lock()
    got: list[Engine] = []
    given_up = False

    def work() -> None:
        engine = make()
        with lock:
            if not given_up:
                got.append(engine)
                return
        engine.close()

    try:
        await trio.to_thread.run_sync(work, abandon_on_cancel=True)
    except trio.Cancelled:
        with lock:
            given_up = True
        for engine in got:
            engine.close()
        raise
    return got[0]


class AsyncEngine:
    """As client.Engine, for trio. Used in an `async with open_engine_async(...)`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.spec, self.how = engine.spec, engine.how
        self._http: httpx.AsyncClient | None = None
        self._transport: AsyncHoldingTransport | None = None

    @property
    def slot(self) -> Slot:
        """Where the engine is."""
        return self._engine.slot

    async def aclose(self, *, wait: bool = False) -> bool:
        """As Engine.close."""
        self._engine.directory.closed.set()
        if self._http is not None:
            await self._http.aclose()
            self._http = self._transport = None
        # Also for `wait`, a cancelled caller is not held up: the thread then waits alone, for at most HANDOFF_WAIT.
        return await trio.to_thread.run_sync(lambda: self._engine.close(wait=wait), abandon_on_cancel=wait)

    @property
    def http(self) -> httpx.AsyncClient:
        """A client whose requests are held and replayed. For the tasks of one trio loop."""
        if self._engine.directory.closed.is_set():
            raise UsageError("the engine was closed", "open it again with open_engine_async()")
        if self._http is None:
            self._transport = AsyncHoldingTransport(self._engine.directory, deadline_s=self._engine.deadline_s)
            self._http = httpx.AsyncClient(transport=self._transport, timeout=None, trust_env=False)  # noqa: S113
        return self._http

    async def base_url(self, role: str) -> str:
        """As Engine.base_url."""
        endpoint = await self.endpoint(role)
        self.http  # noqa: B018 - makes the transport, which must know each URL that was handed out
        assert self._transport is not None  # noqa: S101 - the line above
        self._transport.learn(endpoint)
        return f"{endpoint.url}/v1"

    async def endpoint(self, role: str) -> Endpoint:
        """As Engine.endpoint."""
        self._engine.tenure.watch()
        deadline = time.monotonic() + self._engine.deadline_s
        return await self._engine.directory.of_role_async(role, deadline)

    async def wait_ready(self, limit_s: float = budgets.START_LIMIT) -> None:
        """As Engine.wait_ready."""
        await self._engine.directory.wait_ready_async(time.monotonic() + limit_s)

    async def status(self) -> dict[str, Any]:
        """As Engine.status."""
        return await control_async.ask(self.slot, "status")

    async def events(self) -> AsyncIterator[dict[str, Any]]:
        """As Engine.events. A task that is cancelled leaves a worker thread that ends within WAIT_ROUND."""
        snapshots = self._engine.events()
        while True:
            snapshot = await trio.to_thread.run_sync(next, snapshots, None, abandon_on_cancel=True)
            if snapshot is None:
                return
            yield snapshot
