"""Who is served when: joins loads, keeps the concurrency limits, swaps models by their groups' rules.

Every decision is synchronous, between two awaits, in one place (`_admit`, `_drain`); tasks only carry them out.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import trio

from workers.proxy.eviction import Verdict, decide, evictions, home_groups
from workers.proxy.model import LoadError, Model, State
from workers.proxy.refusal import failed, too_many, unknown_model

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterable

    from workers.proxy.config import ProxyConfig
    from workers.proxy.logbook import LogBook

SHUTTING_DOWN = "group is shutting down"


@dataclass(eq=False, slots=True)
class _Waiter:
    """A request that is not served yet. When `answered` is set, it is granted or `failure` says why not."""

    model: Model
    answered: trio.Event = field(default_factory=trio.Event)
    granted: bool = False
    failure: str | None = None


@dataclass(eq=False, slots=True)
class _Swap:
    """A model being loaded, those that leave for it, and who waits."""

    target: Model
    leaving: frozenset[str]
    waiters: list[_Waiter]
    called_off: bool = False


class Scheduler:
    """Owns the models. Loads run in `nursery`."""

    def __init__(
        self,
        config: ProxyConfig,
        *,
        nursery: trio.Nursery,
        logs: LogBook,
        lock_fd: int | None,
        on_change: Callable[[], None],
    ) -> None:
        self._nursery = nursery
        self._home = home_groups(config.groups.values())
        self._swaps: dict[str, _Swap] = {}
        self._queue: list[_Waiter] = []
        self._closing = False
        self._drained = trio.Event()
        self.models = {
            spec.id: Model(
                spec,
                health_check_timeout=config.health_check_timeout,
                lock_fd=lock_fd,
                logs=logs,
                nursery=nursery,
                on_change=on_change,
            )
            for spec in config.models.values()
        }

    @asynccontextmanager
    async def lease(self, name: str) -> AsyncGenerator[Model]:
        """The model, ready, for one request: `async with scheduler.lease(id) as model`. Loads it if need be.

        Raises:
            Refusal: unknown model, limit reached, the load failed, unloaded while waiting, or shutting down.
        """
        model = self.models.get(name)
        if model is None:
            raise unknown_model()
        if self._closing:
            raise failed(SHUTTING_DOWN)
        if model.reserved >= model.spec.concurrency_limit:
            raise too_many()
        model.reserved += 1
        waiter = _Waiter(model)
        try:
            self._admit(waiter)
            await waiter.answered.wait()
            if waiter.failure is not None:
                raise failed(waiter.failure)
            yield model
        finally:
            self._release(waiter)

    async def unload(self, names: Iterable[str]) -> None:
        """Stop these models, whatever they do, and return when they are gone. Requests waiting for them are refused."""
        names = set(names)
        self._refuse(names, "group: model unloaded")
        async with trio.open_nursery() as nursery:
            for name in names:
                nursery.start_soon(self.models[name].stop)
        self._drain()

    def close(self) -> None:
        """Serve nobody new, and refuse those who wait."""
        self._closing = True
        self._refuse(set(self.models), SHUTTING_DOWN)
        self._note_drained()

    async def drained(self) -> None:
        """Return when no request is being answered, after `close`."""
        await self._drained.wait()

    def _refuse(self, names: set[str], reason: str) -> None:
        for waiter in [w for w in self._queue if w.model.spec.id in names]:
            self._queue.remove(waiter)
            _fail(waiter, reason)
        for name in names & set(self._swaps):
            swap = self._swaps.pop(name)
            swap.called_off = True
            for waiter in swap.waiters:
                _fail(waiter, reason)

    def _release(self, waiter: _Waiter) -> None:
        waiter.model.reserved -= 1
        if waiter.granted:
            waiter.model.end()
            if not waiter.model.in_flight:
                self._drain()
            self._note_drained()
        elif waiter in self._queue:
            self._queue.remove(waiter)
        else:
            swap = self._swaps.get(waiter.model.spec.id)
            if swap is not None and waiter in swap.waiters:
                swap.waiters.remove(waiter)  # the load goes on without it

    def _admit(self, waiter: _Waiter) -> None:
        """Serve, swap, join a swap, or queue."""
        name = waiter.model.spec.id
        if name in self._swaps:
            self._swaps[name].waiters.append(waiter)
            return
        # A model about to be loaded counts as running: its task may not have begun.
        running = {m.spec.id for m in self.models.values() if m.state is not State.STOPPED} | self._swaps.keys()
        leaving = evictions(name, running, self._home)
        verdict = decide(
            name,
            ready=waiter.model.state is State.READY,
            leaving=leaving,
            busy=[m.spec.id for m in self.models.values() if m.in_flight],
            swaps={target: swap.leaving for target, swap in self._swaps.items()},
        )
        if verdict is Verdict.SERVE:
            _grant(waiter)
        elif verdict is Verdict.WAIT:
            self._queue.append(waiter)
        else:
            swap = self._swaps[name] = _Swap(waiter.model, leaving, [waiter])
            self._nursery.start_soon(self._swap, swap)

    def _drain(self) -> None:
        """Look at everybody in the queue again, first come first."""
        waiting, self._queue = self._queue, []
        for waiter in waiting:
            self._admit(waiter)

    async def _swap(self, swap: _Swap) -> None:
        failure: str | None = None
        async with trio.open_nursery() as nursery:
            for name in swap.leaving:
                nursery.start_soon(self.models[name].stop)
        await swap.target.settled()
        if not swap.called_off:  # from here to the spawn nothing waits, so an unload cannot come in between
            try:
                await swap.target.load()
            except LoadError as error:
                failure = str(error)
        if not swap.called_off:
            del self._swaps[swap.target.spec.id]
            for waiter in swap.waiters:
                _grant(waiter) if failure is None else _fail(waiter, failure)
        self._drain()

    def _note_drained(self) -> None:
        if self._closing and not any(m.in_flight for m in self.models.values()):
            self._drained.set()


def _grant(waiter: _Waiter) -> None:
    waiter.granted = True
    waiter.model.begin()
    waiter.answered.set()


def _fail(waiter: _Waiter, reason: str) -> None:
    waiter.failure = reason
    waiter.answered.set()
