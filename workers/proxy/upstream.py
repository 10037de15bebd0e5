"""One exchange with a server: a fresh connection, one request, one response passed on as it comes.

A connection per exchange costs about 0.1 ms on loopback and saves every question about stale ones; closing it is how
a server learns that the client has left.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from typing import TYPE_CHECKING

import h11
import trio

from workers.proxy import limits

if TYPE_CHECKING:
    from types import TracebackType

    from workers.proxy.config import ModelSpec

Headers = Sequence[tuple[bytes, bytes]]


class UpstreamError(Exception):
    """The server refused the connection, went away, or did not speak HTTP."""


async def probe(spec: ModelSpec) -> int:
    """The status of a GET of the model's checkEndpoint. The caller sets the time limit.

    Raises:
        UpstreamError: no answer.
    """
    host = f"{spec.host}:{spec.port}".encode()
    target = (spec.path_prefix + (spec.check_path or "/")).encode()
    async with Exchange(spec.host, spec.port) as exchange:
        await exchange.send(b"GET", target, [(b"Host", host)], b"")
        return (await exchange.head()).status_code


class Exchange:
    """`async with Exchange(host, port)`; then `send`, `head`, and `data` until it returns None.

    Raises:
        UpstreamError: from every method.
    """

    def __init__(self, host: str, port: int) -> None:
        self._address = (host, port)
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=limits.MAX_HEAD_BYTES)
        self._stream: trio.SocketStream
        self._ended = False

    async def __aenter__(self) -> Exchange:
        try:
            with trio.fail_after(limits.CONNECT_BUDGET):
                self._stream = await _connect(*self._address)
        except (OSError, trio.TooSlowError) as error:
            raise UpstreamError(f"cannot connect: {error}") from error
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stream.socket.close()  # at once and without a checkpoint: the server must notice

    async def send(self, method: bytes, target: bytes, headers: Headers, body: bytes) -> None:
        """Send the whole request. A server that answers early and stops reading is no error here: `head` tells."""
        try:
            head = self._http.send(h11.Request(method=method, target=target, headers=list(headers)))
            data = self._http.send(h11.Data(data=body)) if body else b""
            end = self._http.send(h11.EndOfMessage())
        except h11.LocalProtocolError as error:
            raise UpstreamError(f"the request cannot be sent on: {error}") from error
        try:
            await self._stream.send_all(b"".join((head or b"", data or b"", end or b"")))
        except trio.BrokenResourceError:
            return

    async def head(self) -> h11.Response:
        """Status and headers; interim responses (1xx) are skipped."""
        while True:
            event = self._next()
            if event is h11.NEED_DATA:
                await self._receive()
            elif isinstance(event, h11.Response):
                return event
            elif not isinstance(event, h11.InformationalResponse):
                raise UpstreamError("the server closed the connection before it answered")

    async def data(self) -> bytes | None:
        """The next bytes of the body, all that have arrived; None at its proper end."""
        parts: list[bytes] = []
        while not self._ended:
            event = self._next()
            if isinstance(event, h11.Data):
                parts.append(bytes(event.data))
            elif event is h11.NEED_DATA:
                if parts:
                    return b"".join(parts)
                await self._receive()
            else:
                self._ended = True  # told by the next call, if there is something to deliver first
        return b"".join(parts) or None

    def _next(self) -> object:
        try:
            return self._http.next_event()
        except h11.RemoteProtocolError as error:
            raise UpstreamError(str(error)) from error

    async def _receive(self) -> None:
        try:
            data = await self._stream.receive_some(limits.READ_BYTES)
        except trio.BrokenResourceError as error:
            raise UpstreamError(f"connection lost: {error}") from error
        self._http.receive_data(data)


async def _connect(host: str, port: int) -> trio.SocketStream:
    try:
        family = trio.socket.AF_INET6 if ipaddress.ip_address(host).version == 6 else trio.socket.AF_INET
    except ValueError:
        return await trio.open_tcp_stream(host, port)
    sock = trio.socket.socket(family, trio.socket.SOCK_STREAM)
    try:
        await sock.connect((host, port))
    except BaseException:
        sock.close()
        raise
    return trio.SocketStream(sock)
