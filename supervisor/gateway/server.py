"""The gateway on its socket: Hypercorn's connections, under a drain of our own.

Hypercorn's own `serve` ends within a time only if no client stops reading: it sends under a shield. So the connections
are ours to count and, when the time is up, to break off.
"""

from __future__ import annotations

import socket
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, cast

import trio
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.config import Config
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ConnectionState

from supervisor import budgets, logfiles
from supervisor.gateway import saying
from supervisor.gateway.app import application
from supervisor.gateway.connection import Connection, read_away
from supervisor.gateway.forwarding import Forwarding

if TYPE_CHECKING:
    from supervisor.gateway.upkeep import Keeper

HEAD_MOST_BYTES: Final = 64 * 1024
"""Of a request line with its headers; beyond it h11 says 431. Cookies of every other program on localhost come with a
browser's requests, for cookies know no ports: so more than the 16 KiB that are usual."""
CONNECTIONS_MOST: Final = 1024
"""At once. A held request is two descriptors, one of either side, and a service manager may allow no more than 4096."""

_FULL: Final = saying.error(
    f"the gateway has {CONNECTIONS_MOST} connections already, which is the most; come again",
    "unavailable_error",
    "too_many_connections",
)

PIECE_BYTES: Final = 16 * 1024
"""A read that brings as much is part of a large body. Those take turns, one in each round of the loop: 64 bodies of 2 MB
that were read at once kept a health check waiting for 270 ms of CPU time, each of its steps behind 64 pieces (measured)."""

LAST_WORDS = 0.2
"""Part of a drain that is for telling those who are left."""


class Server:
    """Serves the gateway's application on a socket that listens. `run` it once."""

    def __init__(self, keeper: Keeper, listener: socket.socket) -> None:
        self._tally = keeper.gateway.tally
        self._forwarding = Forwarding(keeper)
        self.admission = self._forwarding.admission
        self._app = ASGIWrapper(cast("Any", application(keeper, self._forwarding)))
        self._listener = trio.SocketListener(trio.socket.from_stdlib_socket(listener))
        self._config = _config()
        self._context = WorkerContext(None)
        self._streams: set[trio.SocketStream] = set()
        self._accepting = trio.CancelScope()
        self._turn = trio.Lock()
        self._quiet = trio.Event()
        self._quiet.set()

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until cancelled, or until `close` has ended the last connection."""
        async with trio.open_nursery() as nursery:
            with self._accepting:
                async with self._listener:
                    task_status.started()
                    await trio.serve_listeners(self._handle, [self._listener], handler_nursery=nursery)

    async def close(self, limit_s: float) -> None:
        """Accept nobody any more; wait `limit_s` seconds at most for the answers under way, the last part of it for those
        to be told that there will be none; then hang up."""
        self._accepting.cancel()
        await self._context.terminated.set()
        with trio.move_on_after(limit_s * (1 - LAST_WORDS)):
            await self._quiet.wait()
        self._forwarding.cut("the keeper is making room for another one")
        with trio.move_on_after(limit_s * LAST_WORDS):
            await self._quiet.wait()
        for stream in list(self._streams):
            stream.socket.close()  # wakes whoever sends or waits on it, shielded or not

    async def _handle(self, stream: trio.SocketStream) -> None:
        if len(self._streams) >= CONNECTIONS_MOST:
            self._tally.refused("too_many_connections")
            await _turn_away(stream, _whole("503 Service Unavailable", _FULL, budgets.RETRY_AFTER))
            return
        if hasattr(socket, "TCP_USER_TIMEOUT"):  # tcp(7): of Linux
            stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(budgets.GATEWAY_UNREAD * 1000))
        self._streams.add(stream)
        self._quiet = self._quiet if not self._quiet.is_set() else trio.Event()
        try:
            paced = cast("Any", _Paced(stream, self._turn))
            await Connection(self._app, self._config, self._context, ConnectionState({}), paced).run()
        except Exception as error:  # noqa: BLE001 - one connection must not end the others, nor the keeper
            if not isinstance(error, trio.ClosedResourceError | OSError):
                logfiles.complain(f"gateway: a connection ended with {error!r}")
        finally:
            self._streams.discard(stream)
            if not self._streams:
                self._quiet.set()


class _Paced:
    """A stream whose large pieces wait for their turn. trio's own is not to be subclassed."""

    def __init__(self, stream: trio.SocketStream, turn: trio.Lock) -> None:
        self._stream, self._turn = stream, turn

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    async def receive_some(self, most: int | None = None) -> bytes:
        data = bytes(await self._stream.receive_some(most))
        if len(data) >= PIECE_BYTES:
            async with self._turn:  # trio's locks are fair
                await trio.lowlevel.checkpoint()
        return data


async def turn_away(listener: socket.socket, status: str, body: bytes) -> None:
    """Answer everybody who connects, until cancelled: the socket is another's to close, and who connects to it must not
    wait for nobody. `status` is of a status line."""
    text = _whole(status, body)
    found = trio.SocketListener(trio.socket.from_stdlib_socket(listener.dup()))

    async def handle(stream: trio.SocketStream) -> None:
        await _turn_away(stream, text)

    await trio.serve_listeners(handle, [found])


async def _turn_away(stream: trio.SocketStream, text: bytes) -> None:
    """Say it, and close once that can have been read."""
    with suppress(trio.BrokenResourceError, trio.ClosedResourceError, OSError):
        async with stream:
            with trio.move_on_after(budgets.TURN_AWAY):
                await stream.send_all(text)
                await read_away(stream, budgets.TURN_AWAY)


def _whole(status: str, body: bytes, retry_after_s: int = 0) -> bytes:
    head = (
        f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: {len(body)}\r\n"
    )
    return (head + (f"retry-after: {retry_after_s}\r\n" if retry_after_s else "") + "\r\n").encode() + body


def _config() -> Config:
    config = Config()
    config.errorlog = config.accesslog = None
    config.include_server_header = config.include_date_header = False
    config.keep_alive_timeout = budgets.GATEWAY_KEEP_ALIVE
    config.keep_alive_max_requests = 1 << 30
    config.h11_max_incomplete_size = HEAD_MOST_BYTES
    config.h11_pass_raw_headers = False
    return config
