"""One model: its state, its server, and the requests it answers now.

States are llama-swap's: stopped, starting, ready, stopping. A server's death is noticed at once and is only a state
here: what happens next is for the next request to say.
"""

from __future__ import annotations

import signal
from enum import Enum
from typing import TYPE_CHECKING

import trio

from workers.proxy import limits
from workers.proxy.child import Child
from workers.proxy.upstream import UpstreamError, probe

if TYPE_CHECKING:
    from collections.abc import Callable

    from workers.proxy.config import ModelSpec
    from workers.proxy.logbook import LogBook


class State(Enum):
    """What /running and /api/events call it."""

    STOPPED = "stopped"
    STARTING = "starting"
    READY = "ready"
    STOPPING = "stopping"


class LoadError(Exception):
    """The model did not come up; the text goes to the client after `unspecific error: `."""


class Model:
    """Loads, watches and stops one server. `load` and `stop` are called by the scheduler only.

    Invariants: a child exists exactly while the state is not STOPPED; at most one child exists; `in_flight` counts
    requests between grant and last byte.
    """

    def __init__(
        self,
        spec: ModelSpec,
        *,
        health_check_timeout: float,
        lock_fd: int | None,
        logs: LogBook,
        nursery: trio.Nursery,
        on_change: Callable[[], None],
    ) -> None:
        self.spec = spec
        self.state = State.STOPPED
        self.reserved = 0
        """Requests that count against concurrencyLimit: waiting and running."""
        self.in_flight = 0
        self.exchanges: set[trio.CancelScope] = set()
        """One scope per exchange with the server; `stop` cancels them all."""
        self._health_check_timeout = health_check_timeout
        self._lock_fd = lock_fd
        self._logs = logs
        self._nursery = nursery
        self._on_change = on_change
        self._child: Child | None = None
        self._gone = trio.Event()
        self._stop_asked = False
        self._last_use = 0.0

    def begin(self) -> None:
        """A request was granted."""
        self.in_flight += 1

    def end(self) -> None:
        """A request's last byte went out (or its client left). The idle time counts from here."""
        self.in_flight -= 1
        self._last_use = trio.current_time()

    async def load(self) -> None:
        """Start the server and return when it is ready; nothing to do if it is. One caller at a time, after `settled`.

        Raises:
            LoadError: it cannot be started, ended before it was ready, was not ready in time, or was stopped meanwhile.
        """
        if self.state is State.READY:
            return
        try:
            child = Child(self.spec, self._lock_fd, lambda data: self._logs.output(self.spec.id, data))
        except OSError as error:
            raise LoadError(f"failed to start command '{self.spec.cmd}': fork/exec {error}") from error
        self._gone = trio.Event()
        self._stop_asked = False
        self._child = child
        self._enter(State.STARTING)
        self._nursery.start_soon(self._watch, child)
        await self._until_ready(self._gone)
        self._last_use = trio.current_time()
        self._enter(State.READY)
        if self.spec.ttl > 0:
            self._nursery.start_soon(self._unload_when_idle, child)

    async def settled(self) -> None:
        """Return when no server of this model is on its way out."""
        if self._stop_asked:
            await self._gone.wait()

    async def stop(self) -> None:
        """End the server and return when it is gone. Safe to call at any time, by any number of tasks."""
        child, gone = self._child, self._gone
        if child is None:
            return
        if not self._stop_asked:
            self._stop_asked = True
            self._enter(State.STOPPING)
            # An engine waits for open requests before it ends (llama-server for 30 s), so ours are closed first.
            for scope in self.exchanges:
                scope.cancel()
            # In the nursery, not here: the caller may be a client that goes away, and SIGKILL must still follow.
            self._nursery.start_soon(self._end, child, gone)
        await gone.wait()

    async def _end(self, child: Child, gone: trio.Event) -> None:
        child.signal(signal.SIGTERM)
        with trio.move_on_after(self.spec.unload_timeout):
            await gone.wait()
        if not gone.is_set():
            self._logs.line("warn", f"<{self.spec.id}> did not end within {self.spec.unload_timeout:g}s, killing it")
            child.signal(signal.SIGKILL)

    async def _watch(self, child: Child) -> None:
        try:
            await child.watch()
        finally:
            if not self._stop_asked:
                self._logs.line("warn", f"<{self.spec.id}> upstream process exited unexpectedly ({child.status})")
            self._child = None
            self._enter(State.STOPPED)
            self._gone.set()

    async def _until_ready(self, gone: trio.Event) -> None:
        began = trio.current_time()
        ready = False
        async with trio.open_nursery() as nursery:

            async def give_up_when_gone() -> None:
                await gone.wait()
                nursery.cancel_scope.cancel()

            nursery.cancel_scope.deadline = began + self._health_check_timeout
            nursery.start_soon(give_up_when_gone)
            ready = self.spec.check_path is None or await self._probe_until_ok(began)
            nursery.cancel_scope.cancel()
        if self._stop_asked:
            raise LoadError("group: model unloaded")
        if gone.is_set():
            raise LoadError("upstream command exited prematurely")
        if not ready:
            await self.stop()
            raise LoadError(f"health check timed out after {self._health_check_timeout:g}s")

    async def _probe_until_ok(self, began: float) -> bool:
        budget = self.spec.response_header_timeout or limits.PROBE_BUDGET
        while True:
            with trio.move_on_after(min(budget, limits.PROBE_BUDGET)):
                try:
                    if await probe(self.spec) == 200:
                        return True
                except UpstreamError:
                    pass  # not listening yet
            await trio.sleep(probe_pause(trio.current_time() - began))

    async def _unload_when_idle(self, child: Child) -> None:
        while self._child is child and self.state is State.READY:
            await trio.sleep(limits.TTL_TICK)
            idle = trio.current_time() - self._last_use
            if self._child is child and not self._stop_asked and not self.reserved and idle > self.spec.ttl:
                self._logs.line("info", f"<{self.spec.id}> Unloading model, TTL of {self.spec.ttl:g}s reached")
                await self.stop()

    def _enter(self, state: State) -> None:
        self._logs.line("info", f"<{self.spec.id}> {self.state.value} -> {state.value}")
        self.state = state
        self._on_change()


def probe_pause(waited: float) -> float:
    """Seconds to wait before the next probe, having waited `waited` in all."""
    return min(limits.MOST_PROBE_PAUSE, max(limits.LEAST_PROBE_PAUSE, waited / 10))
