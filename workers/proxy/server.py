"""The trio side of the proxy: accept, serve, and leave in order when told to."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import h11
import trio

from workers.proxy import limits
from workers.proxy.app import App, refuse
from workers.proxy.downstream import ClientGone, Downstream, Request
from workers.proxy.events import Hub, log_data
from workers.proxy.logbook import LogBook, Stdout
from workers.proxy.refusal import Refusal, failed
from workers.proxy.scheduler import Scheduler

if TYPE_CHECKING:
    import socket
    from collections.abc import AsyncIterator, Callable

    from workers.proxy.config import ProxyConfig

_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def run(config: ProxyConfig, listener: socket.socket, lock_fd: int | None, version: Callable[[], str]) -> None:
    """Serve until SIGTERM or SIGINT, then end every server and return."""
    trio.run(_main, config, listener, lock_fd, version)


async def _main(config: ProxyConfig, listener: socket.socket, lock_fd: int | None, version: Callable[[], str]) -> None:
    logs = LogBook(config.log_level, config.log_to_stdout, Stdout(1), tuple(config.models))
    hub = Hub()
    _publish_logs(logs, hub)
    with trio.open_signal_receiver(*_STOP_SIGNALS, signal.SIGHUP) as signals:
        async with trio.open_nursery() as models, trio.open_nursery() as connections:
            apps: list[App] = []
            scheduler = Scheduler(
                config,
                nursery=models,
                logs=logs,
                lock_fd=lock_fd,
                on_change=lambda: apps[0].publish_states(),
            )
            app = App(config, scheduler=scheduler, logs=logs, hub=hub, version=version)
            apps.append(app)
            door = _Door(app, logs, connections)
            connections.start_soon(door.accept, trio.SocketListener(trio.socket.from_stdlib_socket(listener)))
            logs.line("info", f"queenright's built-in proxy listening on {_address(listener)}")
            await _told_to_stop(signals, logs)
            door.close()
            app.close_streams()
            scheduler.close()
            with trio.move_on_after(limits.DRAIN_BUDGET):
                async with trio.open_nursery() as waiting:

                    async def until_drained() -> None:
                        await scheduler.drained()
                        waiting.cancel_scope.cancel()

                    waiting.start_soon(until_drained)
                    await _told_to_stop(signals, logs)  # told again: no more waiting
                    waiting.cancel_scope.cancel()
            # The grace of the slowest server, then SIGKILL; not for ever, if one cannot be killed.
            grace = max((m.spec.unload_timeout for m in scheduler.models.values()), default=0)
            with trio.move_on_after(grace + limits.KILL_BUDGET):
                await scheduler.unload(scheduler.models)
            connections.cancel_scope.cancel()
            models.cancel_scope.cancel()
    for (
        number
    ) in _STOP_SIGNALS:  # nothing is left to end, and Python would complain of a signal while trio is taken down
        signal.signal(number, signal.SIG_IGN)


class _Door:
    """Accepts connections, and at the end lets go of those that are idle."""

    def __init__(self, app: App, logs: LogBook, nursery: trio.Nursery) -> None:
        self._app = app
        self._logs = logs
        self._nursery = nursery
        self._accepting = trio.CancelScope()
        self._idle: set[trio.CancelScope] = set()
        self._closed = False

    async def accept(self, listener: trio.SocketListener) -> None:
        """Serve every connection until `close`."""
        with self._accepting:
            async with listener:
                await trio.serve_listeners(self._serve, [listener], handler_nursery=self._nursery)

    def close(self) -> None:
        """No new connections and no further requests on those there are."""
        self._closed = True
        self._accepting.cancel()
        for scope in self._idle:
            scope.cancel()

    async def _serve(self, stream: trio.SocketStream) -> None:
        client = Downstream(stream)
        try:
            while not self._closed:
                request = await self._next(client)
                if request is None or not await self._answer(request, client) or not client.next_cycle():
                    await client.read_away()
                    break
        except ClientGone:
            pass
        finally:
            client.close()

    async def _next(self, client: Downstream) -> Request | None:
        with trio.CancelScope() as scope:
            self._idle.add(scope)
            try:
                return await client.next_request(self._app.trusts)
            except Refusal as refusal:
                await refuse(refusal, client, "")
            finally:
                self._idle.discard(scope)
        return None

    async def _answer(self, request: Request, client: Downstream) -> bool:
        """Answer; True if the connection can go on. The client's leaving cancels the work at once."""
        done = False
        async with trio.open_nursery() as nursery:

            async def watch() -> None:
                await client.wait_gone()
                nursery.cancel_scope.cancel()

            nursery.start_soon(watch)
            try:
                await self._app.answer(request, client)
                done = True
            except ClientGone:
                pass
            except (h11.LocalProtocolError, OSError, ValueError, LookupError, TypeError) as error:
                # The boundary of one request: a bug met by it must not end everybody else's streams.
                self._logs.line("error", f"{request.method} {request.path}: {type(error).__name__}: {error}")
                await refuse(failed("internal error of the proxy"), client, "")
            nursery.cancel_scope.cancel()
        return done


async def _told_to_stop(signals: AsyncIterator[int], logs: LogBook) -> None:
    async for number in signals:
        if number in _STOP_SIGNALS:
            logs.line("info", f"{signal.Signals(number).name}: stopping")
            return
        logs.line("warn", "SIGHUP ignored: the built-in proxy does not reload; start a new one")


def _publish_logs(logs: LogBook, hub: Hub) -> None:
    def forward(source: str) -> Callable[[bytes], None]:
        return lambda data: hub.publish("logData", lambda: log_data(source, data))

    logs.proxy.listen(forward("proxy"))
    logs.upstream.listen(forward("upstream"))


def _address(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
