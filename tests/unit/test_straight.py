"""A long stream read by hand: chunked coding cut anywhere, and connections that are lost in every way."""

from __future__ import annotations

import functools
import os
import socket
from typing import TYPE_CHECKING

import httpcore
import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from supervisor.one_write import AsyncOneWrite
from supervisor.straight import END, BlockingStraight, Chunks, Straight, rest_of

if TYPE_CHECKING:
    from collections.abc import Callable

HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
CHUNKED = [(b"Transfer-Encoding", b"chunked")]


def framed(*pieces: bytes, extension: bytes = b"") -> bytes:
    return b"".join(b"%x%b\r\n%b\r\n" % (len(piece), extension, piece) for piece in pieces)


@given(
    pieces=st.lists(st.binary(min_size=1, max_size=40), max_size=6),
    extension=st.sampled_from([b"", b";a=b", b" ", b' ;q="x"']),
    trailer=st.sampled_from([b"", b"X-Sum: 1\r\n", b"A: b\r\nC: d\r\n"]),
    after=st.sampled_from([b"", b"HTTP/1.1 200 OK\r\n"]),
    cuts=st.lists(st.integers(1, 30), max_size=40),
)
def test_a_body_is_the_same_wherever_it_is_cut(
    pieces: list[bytes], extension: bytes, trailer: bytes, after: bytes, cuts: list[int]
) -> None:
    text = framed(*pieces, extension=extension) + b"0\r\n" + trailer + b"\r\n" + after
    chunks, found = Chunks(), []
    while text:
        size = cuts.pop() if cuts else len(text)
        came, text = text[:size], text[size:]
        was_over = chunks.is_over
        found.append(chunks.feed(came))
        assert not (was_over and found[-1])
    assert b"".join(found) == b"".join(pieces)
    assert chunks.is_over
    assert chunks.is_clean == (not after)


@given(st.lists(st.binary(min_size=1, max_size=20), min_size=1, max_size=4), st.integers(0, 99))
def test_between_two_chunks_it_can_be_ended_and_nowhere_else(pieces: list[bytes], where: int) -> None:
    text = framed(*pieces)[: 1 + where]
    ends = {len(framed(*pieces[:count])) for count in range(len(pieces) + 1)}
    chunks = Chunks()
    chunks.feed(text)
    assert chunks.is_between == (len(text) in ends)
    if chunks.is_between:
        assert chunks.feed(END) == b""
        assert chunks.is_clean


@pytest.mark.parametrize(
    "text",
    [b"\r\n", b"xyz\r\n", b"-1\r\n", b"0x5\r\n", b"1_0\r\n", b"3\r\nabcd\r\n", b"3\r\nabc0\r\n", b"f" * 5000],
)
def test_what_is_no_chunked_coding_is_said(text: bytes) -> None:
    with pytest.raises(ValueError, match="chunk"):
        Chunks().feed(text)


each_way_to_lose_it = pytest.mark.parametrize(
    ("happens", "raised"),
    [
        (lambda other: other.close(), httpcore.RemoteProtocolError),
        (lambda other: other.sendall(b"no size\r\n"), httpcore.RemoteProtocolError),
        (lambda other: None, httpcore.ReadTimeout),
        (lambda other: reset(other), httpcore.ReadError),
    ],
    ids=["closed", "garbage", "silent", "reset"],
)


@each_way_to_lose_it
def test_each_way_to_lose_it_is_what_httpcore_calls_it(
    happens: Callable[[socket.socket], None], raised: type[Exception]
) -> None:
    ours, other = connected()
    with ours, other:
        chunks = Chunks()
        chunks.feed(framed(b"before"))

        async def read() -> None:
            rest = Straight(ours, chunks, b"first", 0.2)
            assert await rest.piece() == b"first"
            other.sendall(framed(b"second"))
            assert await rest.piece() == b"second"
            happens(other)
            with pytest.raises(raised):
                await rest.piece()

        trio.run(read)


@each_way_to_lose_it
def test_each_way_to_lose_it_is_what_httpcore_calls_it_for_threads(
    happens: Callable[[socket.socket], None], raised: type[Exception]
) -> None:
    ours, other = connected()
    with ours, other:
        chunks = Chunks()
        chunks.feed(framed(b"before"))
        rest = BlockingStraight(ours, chunks, b"first", 0.2)
        assert rest.piece() == b"first"
        other.sendall(framed(b"second"))
        assert rest.piece() == b"second"
        happens(other)
        with pytest.raises(raised):
            rest.piece()


def test_a_connection_that_is_closed_under_it_is_lost_and_its_number_is_nobodys() -> None:
    """The transport is closed by another task: while it waits, or between two pieces; the number is then given away again."""

    async def lost(rest: Straight) -> None:
        with pytest.raises(httpcore.ReadError):
            await rest.piece()

    async def read(*, is_waiting: bool) -> None:
        ours, other = connected()
        strangers, another = socket.socketpair()
        number = ours.fileno()
        connection = trio.SocketStream(trio.socket.from_stdlib_socket(ours))
        rest = Straight(connection.socket, Chunks(), b"", 5.0)
        async with trio.open_nursery() as nursery:
            if is_waiting:
                nursery.start_soon(lost, rest)
                await trio.testing.wait_all_tasks_blocked()
            await connection.aclose()
        with other, strangers, another:
            os.dup2(strangers.fileno(), number)
            another.sendall(framed(b"of somebody else"))
            await lost(rest)
            assert os.read(number, 99) == framed(b"of somebody else")
            os.close(number)

    for is_waiting in (True, False):
        trio.run(functools.partial(read, is_waiting=is_waiting))


def test_it_ends_clean_and_keeps_nobody_from_being_cancelled() -> None:
    ours, other = connected()
    with ours, other:

        async def read() -> None:
            rest = Straight(ours, Chunks(), b"", None)
            with trio.move_on_after(0.05) as scope:
                await rest.piece()
            assert scope.cancelled_caught
            other.sendall(framed(b"a", b"b") + END)
            assert await rest.piece() == b"ab"
            assert await rest.piece() is None
            assert rest.is_clean

        trio.run(read)


class Reading(httpcore.AsyncNetworkStream):
    """A connection that brought this."""

    def __init__(self, came: bytes) -> None:
        self._came, self._socket = came, socket.socket()

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ASYNC109 - httpcore's
        return self._came

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ASYNC109 - httpcore's
        """Nobody reads it."""

    def get_extra_info(self, info: str) -> socket.socket:
        return self._socket


@pytest.mark.parametrize(
    ("came", "headers", "delivered", "rest"),
    [
        pytest.param(HEAD + framed(b"ab", b"cd"), CHUNKED, 2, b"cd", id="one piece is not delivered yet"),
        pytest.param(HEAD + framed(b"ab"), CHUNKED, 2, b"", id="all is"),
        pytest.param(HEAD + framed(b"ab") + b"2\r\nc", CHUNKED, 2, None, id="in the middle of a chunk"),
        pytest.param(HEAD + framed(b"ab") + b"2", CHUNKED, 2, None, id="in the middle of a size"),
        pytest.param(HEAD + framed(b"ab", b"cd") + END, CHUNKED, 2, None, id="all of it is here"),
        pytest.param(HEAD + framed(b"ab"), [(b"Content-Length", b"7")], 2, None, id="not chunked"),
        pytest.param(b"HTTP/1.1 100 Continue\r\n\r\n" + HEAD, CHUNKED, 0, None, id="something before the answer"),
        pytest.param(HEAD.replace(b"\r\n", b"\n") + framed(b"a\r\n\r\nzz"), CHUNKED, 7, None, id="lines end otherwise"),
        pytest.param(b"x" * 70000, CHUNKED, 0, None, id="more than is kept"),
    ],
)
def test_where_it_can_go_on_by_hand(
    came: bytes, headers: list[tuple[bytes, bytes]], delivered: int, rest: bytes | None
) -> None:
    async def scene() -> bytes | None:
        inner = Reading(came)
        network = AsyncOneWrite(inner)
        with inner.get_extra_info("socket"):
            await network.write(b"a request")
            await network.read(1 << 20)
            found = rest_of(network, headers, delivered)
            if found is None:
                return None
            network.instead = END
            assert await network.read(1) == END
            assert found[0].is_between
            return found[1]

    assert trio.run(scene) == rest


def connected() -> tuple[socket.socket, socket.socket]:
    """Two ends of a TCP connection; ours does not block."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ours = socket.create_connection(listener.getsockname())
        other, _ = listener.accept()
    ours.setblocking(False)
    return ours, other


def reset(other: socket.socket) -> None:
    """End it with a reset."""
    other.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    other.close()
