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
    from collections.abc import Callable, Iterable

MUCH: Final = 64 * 1024
"""Bytes that are not put by any more: as much as a loopback packet holds."""


class _PutBy:
    """What a connection has put by, and what is known of the answer that it is in. Its two forms write and read."""

    def __init__(self) -> None:
        self._held = b""
        self._limit: float | None = None
        self.patience: float | None = None
        """Seconds of silence that the rest of an answer is granted, once it began. httpcore takes the time limit for all of
        a body from when it was asked for, and a request that was held for long had little left then."""
        self.came: bytearray | None = None
        """What was read since the last request, for whoever goes on reading without httpcore; None once it was much."""
        self.instead = b""
        """What the next read gives, in place of what comes."""

    def _put_by(self, buffer: bytes, timeout: float | None) -> bool:
        """Whether all there is must be written now. With a new request what was known of the answer before it is over."""
        self._held += buffer
        self._limit, self.patience, self.came, self.instead = timeout, None, bytearray(), b""
        return bool(self._held) and (not buffer or len(self._held) >= MUCH)

    def _taken(self) -> bytes:
        """What was put by, to be written."""
        held, self._held = self._held, b""
        return held

    def _given(self) -> bytes:
        """What is to be read in place of what comes; b"" where nothing is."""
        data, self.instead = self.instead, b""
        return data

    def _silence(self, timeout: float | None) -> float | None:
        """Seconds that the next read may take, where httpcore says `timeout`."""
        return timeout if self.patience is None else self.patience

    def _kept(self, data: bytes) -> bytes:
        """What came, kept for whoever goes on reading."""
        if self.came is not None:
            self.came += data
            if len(self.came) > MUCH:
                self.came = None
        return data


class OneWrite(_PutBy, httpcore.NetworkStream):
    """A connection of httpcore that puts by what is written. Groups speak plain HTTP: nothing here starts TLS."""

    def __init__(self, inner: httpcore.NetworkStream) -> None:
        super().__init__()
        self._inner = inner

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        """As its inner one."""
        if self._held:
            with suppress(httpcore.WriteError):  # as httpcore has it: who hangs up early may have answered before
                self._inner.write(self._taken(), self._limit)
        return self._given() or self._kept(self._inner.read(max_bytes, self._silence(timeout)))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        """Put it by, or write all there is."""
        if self._put_by(buffer, timeout):
            self._inner.write(self._taken(), self._limit)

    def close(self) -> None:
        """As its inner one: what was not sent by now is not sent."""
        self._inner.close()

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


class AsyncOneWrite(_PutBy, httpcore.AsyncNetworkStream):
    """The same for trio."""

    def __init__(self, inner: httpcore.AsyncNetworkStream) -> None:
        super().__init__()
        self._inner = inner

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ASYNC109 - httpcore's
        """As its inner one."""
        if self._held:
            with suppress(httpcore.WriteError):
                await self._inner.write(self._taken(), self._limit)
        return self._given() or self._kept(await self._inner.read(max_bytes, self._silence(timeout)))

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ASYNC109 - httpcore's
        """Put it by, or write all there is."""
        if self._put_by(buffer, timeout):
            await self._inner.write(self._taken(), self._limit)

    async def aclose(self) -> None:
        """As its inner one."""
        await self._inner.aclose()

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
