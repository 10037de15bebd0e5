"""A long stream, read straight from its connection.

httpcore and h11 take 200 us and a dozen calls for each piece of a chunked body (measured), and a stream of an agent has
thousands. What they do for a piece is little: to wait, to read, and to take off the chunks' frames. So the rest of a
stream that turned out to be long is read by hand, from between two chunks on; at its end h11 is given the empty chunk that
it waits for, and the connection can be used again.
"""

from __future__ import annotations

import os
import re
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, Final, Protocol

import httpcore

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterable

LONG: Final = 8
"""Pieces from which a stream counts as long."""

END: Final = b"0\r\n\r\n"
"""The end of a body, to whoever is between two of its chunks."""

_MOST: Final = 64 * 1024
"""Bytes that are read at once."""

_LINE_MOST: Final = 4096
"""Bytes of a line between chunks. What is longer is no chunked coding of anybody's."""

_SIZE: Final = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;.*)?", re.DOTALL)


class _At(Enum):
    SIZE = auto()
    DATA = auto()
    END_OF_DATA = auto()
    TRAILER = auto()


class Chunks:
    """A body in chunked coding (RFC 9112, 7.1) out of what a connection brings, which may be cut anywhere. Pure."""

    __slots__ = ("_at", "_left", "_rest", "is_over")

    def __init__(self) -> None:
        self.is_over = False
        """Whether the last chunk and the trailer were there."""
        self._at = _At.SIZE
        self._left = 0
        self._rest = b""

    @property
    def is_between(self) -> bool:
        """Whether what came ended where a chunk did."""
        return self._at is _At.SIZE and not self._rest

    @property
    def is_clean(self) -> bool:
        """Whether the body is over, and nothing came after it."""
        return self.is_over and not self._rest

    def feed(self, data: bytes) -> bytes:
        """The part of the body that is in the next bytes of the connection. Raises ValueError for what is no chunked
        coding. What comes after the end is left alone."""
        text = self._rest + data if self._rest else data
        found: list[bytes] = []
        at = 0
        while not self.is_over:
            if self._at is _At.DATA:
                piece = text[at : at + self._left]
                if not piece:
                    break
                found.append(piece)
                at += len(piece)
                self._left -= len(piece)
                if not self._left:
                    self._at = _At.END_OF_DATA
                continue
            end = text.find(b"\r\n", at)
            if end < 0:
                if len(text) - at > _LINE_MOST:
                    raise ValueError("a line without end between chunks")
                break
            self._line(text[at:end])
            at = end + 2
        self._rest = text[at:]
        return found[0] if len(found) == 1 else b"".join(found)

    def _line(self, line: bytes) -> None:
        if self._at is _At.SIZE:
            size = _SIZE.fullmatch(line)
            if size is None:
                raise ValueError(f"no size of a chunk: {line[:40]!r}")
            self._left = int(size[1], 16)
            self._at = _At.DATA if self._left else _At.TRAILER
        elif self._at is _At.END_OF_DATA:
            if line:
                raise ValueError(f"a chunk is longer than its size: {line[:40]!r}")
            self._at = _At.SIZE
        elif not line:
            self.is_over = True


class _Rest:
    """The rest of a body. `piece` of its two forms is what there is of it next, None at its end; it raises what httpcore
    raises for a connection that is lost, breaks HTTP, or is silent for too long."""

    def __init__(self, chunks: Chunks, first: bytes) -> None:
        self._chunks, self._first = chunks, first

    @property
    def is_clean(self) -> bool:
        """Whether the connection is at the end of the body, so that it can be used again."""
        return self._chunks.is_clean

    def _known(self) -> bytes | None:
        """What there is without a read; b"" where one is needed."""
        first, self._first = self._first, b""
        return first or (None if self._chunks.is_over else b"")

    def _came(self, data: bytes) -> bytes:
        if not data:
            raise httpcore.RemoteProtocolError("the connection was closed in the middle of the answer")
        try:
            return self._chunks.feed(data)
        except ValueError as error:
            raise httpcore.RemoteProtocolError(str(error)) from error


class _Connection(Protocol):
    def fileno(self) -> int:
        """-1 once it is closed."""


class Straight(_Rest):
    """For trio."""

    def __init__(self, connection: _Connection, chunks: Chunks, first: bytes, silence_s: float | None) -> None:
        import trio  # here alone: whoever uses threads does without

        super().__init__(chunks, first)
        self._connection = connection
        self._silence_s = float("inf") if silence_s is None else silence_s
        self._wait_at_most, self._wait_readable = trio.move_on_after, trio.lowlevel.wait_readable
        self._closed = trio.ClosedResourceError

    async def piece(self) -> bytes | None:
        """See _Rest. Its descriptor is asked for at each step: whoever closes the transport closes the connection under us,
        and the number is then somebody else's."""
        while (found := self._known()) == b"":
            try:
                with self._wait_at_most(self._silence_s) as scope:
                    await self._wait_readable(self._open())
                if scope.cancelled_caught:
                    raise httpcore.ReadTimeout
                data = os.read(self._open(), _MOST)
            except BlockingIOError:
                continue
            except (OSError, self._closed) as error:
                raise httpcore.ReadError(str(error)) from error
            if found := self._came(data):
                break
        return found

    def _open(self) -> int:
        if (descriptor := self._connection.fileno()) < 0:
            raise httpcore.ReadError("the connection was closed here")
        return descriptor


class BlockingStraight(_Rest):
    """For threads."""

    def __init__(self, connection: socket.socket, chunks: Chunks, first: bytes, silence_s: float | None) -> None:
        super().__init__(chunks, first)
        self._connection = connection
        connection.settimeout(silence_s)  # httpcore sets it at each read and write of its own

    def piece(self) -> bytes | None:
        """See _Rest."""
        while (found := self._known()) == b"":
            try:
                data = self._connection.recv(_MOST)
            except TimeoutError as error:
                raise httpcore.ReadTimeout(str(error)) from error
            except OSError as error:
                raise httpcore.ReadError(str(error)) from error
            if found := self._came(data):
                break
        return found


def rest_of(network: Any, headers: Iterable[tuple[bytes, bytes]], delivered: int) -> tuple[Chunks, bytes] | None:
    """How far the answer has come that this connection (a OneWrite, or an AsyncOneWrite) is in the middle of: the state of
    its chunks, and what was read of its body beyond the `delivered` bytes. None where the rest cannot be read by hand: the
    body is not chunked, what came stops in the middle of a chunk, or it is not known any more."""
    is_chunked = any(name.lower() == b"transfer-encoding" and value.lower() == b"chunked" for name, value in headers)
    came = getattr(network, "came", None)
    if not came or not is_chunked:
        return None
    if came.endswith(END):  # all of it is here, most likely
        network.came = None
        return None
    head, separator, rest = bytes(came).partition(b"\r\n\r\n")
    if not separator or not head.startswith(b"HTTP/1.1 2"):
        return None
    chunks = Chunks()
    try:
        first = chunks.feed(rest)[delivered:]
    except ValueError:  # h11 takes more for a line's end than we do, and goes on
        return None
    if not chunks.is_between:
        return None
    network.came = None
    return chunks, first
