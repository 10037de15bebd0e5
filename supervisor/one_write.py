"""Connections that send the head of a request and its body in one write.

httpcore writes them one after the other: two system calls and two packets for what fits into one. What is written is
put by until the request ends, which httpcore says by writing nothing; or until something is read, or it is much. A tenth
of the time of a short request (measured). Not until something is read in any case: the server works meanwhile.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import httpcore

from supervisor.answers import StrangerError

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Iterable

MUCH: Final = 64 * 1024
"""Bytes that are not put by any more: as much as a loopback packet holds."""


class OneWrite(httpcore.NetworkStream):
    """A connection of httpcore that puts by what is written."""

    def __init__(self, inner: httpcore.NetworkStream) -> None:
        self._inner = inner
        self._held = b""
        self._limit: float | None = None
        self.patience: float | None = None
        """Seconds of silence that the rest of an answer is granted, once it began. httpcore takes the time limit for all of
        a body from when it was asked for, and a request that was held for long had little left then."""
        self.came: bytearray | None = None
        """What was read since the last request, for whoever goes on reading without httpcore; None once it was much."""
        self.instead = b""
        """What the next read gives, in place of what comes."""

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        """As its inner one."""
        if self.instead:
            data, self.instead = self.instead, b""
            return data
        if self._held:
            with suppress(httpcore.WriteError):  # as httpcore has it: who hangs up early may have answered before
                self._flush()
        data = self._inner.read(max_bytes, timeout if self.patience is None else self.patience)
        if self.came is not None:
            self.came += data
            if len(self.came) > MUCH:
                self.came = None
        return data

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        """Put it by, or write all there is."""
        self._held += buffer
        self._limit, self.patience, self.came, self.instead = timeout, None, bytearray(), b""
        if self._held and (not buffer or len(self._held) >= MUCH):
            self._flush()

    def _flush(self) -> None:
        held, self._held = self._held, b""
        self._inner.write(held, self._limit)

    def close(self) -> None:
        """As its inner one: what was not sent by now is not sent."""
        self._inner.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        """As its inner one. Groups speak plain HTTP; nobody asks."""
        return self._inner.start_tls(ssl_context, server_hostname, timeout)

    def get_extra_info(self, info: str) -> Any:
        """As its inner one."""
        return self._inner.get_extra_info(info)


class OneWriteBackend(httpcore.SyncBackend):
    """Makes them, for threads. `vouches` is asked of each new connection's port, once it stands: what cannot be the engine's
    is told nothing, and counts as refused."""

    def __init__(self, vouches: Callable[[int], bool]) -> None:
        self._vouches = vouches

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        """As SyncBackend."""
        stream = super().connect_tcp(host, port, timeout, local_address, socket_options)
        if not self._vouches(port):
            stream.close()
            raise StrangerError
        return OneWrite(stream)


class AsyncOneWrite(httpcore.AsyncNetworkStream):
    """The same for trio."""

    def __init__(self, inner: httpcore.AsyncNetworkStream) -> None:
        self._inner = inner
        self._held = b""
        self._limit: float | None = None
        self.patience: float | None = None
        """Seconds of silence that the rest of an answer is granted, once it began. httpcore takes the time limit for all of
        a body from when it was asked for, and a request that was held for long had little left then."""
        self.came: bytearray | None = None
        """What was read since the last request, for whoever goes on reading without httpcore; None once it was much."""
        self.instead = b""
        """What the next read gives, in place of what comes."""

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ASYNC109 - httpcore's
        """As its inner one."""
        if self._held:
            with suppress(httpcore.WriteError):
                await self._flush()
        if self.instead:
            data, self.instead = self.instead, b""
            return data
        data = await self._inner.read(max_bytes, timeout if self.patience is None else self.patience)
        if self.came is not None:
            self.came += data
            if len(self.came) > MUCH:
                self.came = None
        return data

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ASYNC109 - httpcore's
        """Put it by, or write all there is."""
        self._held += buffer
        self._limit, self.patience, self.came, self.instead = timeout, None, bytearray(), b""
        if self._held and (not buffer or len(self._held) >= MUCH):
            await self._flush()

    async def _flush(self) -> None:
        held, self._held = self._held, b""
        await self._inner.write(held, self._limit)

    async def aclose(self) -> None:
        """As its inner one."""
        await self._inner.aclose()

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - httpcore's
    ) -> httpcore.AsyncNetworkStream:
        """As its inner one."""
        return await self._inner.start_tls(ssl_context, server_hostname, timeout)

    def get_extra_info(self, info: str) -> Any:
        """As its inner one."""
        return self._inner.get_extra_info(info)


class TrioOneWriteBackend(httpcore.TrioBackend):
    """Makes them, for trio. As OneWriteBackend."""

    def __init__(self, vouches: Callable[[int], bool]) -> None:
        self._vouches = vouches

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 - httpcore's
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """As TrioBackend."""
        stream = await super().connect_tcp(host, port, timeout, local_address, socket_options)
        if not self._vouches(port):
            await stream.aclose()
            raise StrangerError
        return AsyncOneWrite(stream)
