"""One question to a port: what each way of answering it is called."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

import pytest
import trio

from supervisor.kinds import Answer
from tests.support import free_port
from workers import loopback

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


def saying(*pieces: bytes, stay: bool = False) -> Callable[[trio.SocketStream], Awaitable[None]]:
    """A server that reads a request, says this, and closes; or stays."""

    async def serve(stream: trio.SocketStream) -> None:
        async with stream:
            await stream.receive_some(65536)
            for piece in pieces:
                await stream.send_all(piece)
                await trio.lowlevel.checkpoint()
            if stay:
                await trio.sleep_forever()

    return serve


def ask(serve: Callable[[trio.SocketStream], Awaitable[None]], question: Callable[[int], Awaitable[object]]) -> object:
    """What a question makes of a server."""

    async def main() -> object:
        with trio.fail_after(10):
            async with trio.open_nursery() as nursery:
                listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
                nursery.start_soon(trio.serve_listeners, serve, listeners)
                found = await question(listeners[0].socket.getsockname()[1])
                nursery.cancel_scope.cancel()
        return found

    return trio.run(main)


@pytest.mark.parametrize(
    ("pieces", "answer"),
    [
        ((b"HTTP/1.1 200 OK\r\n", b"Content-Length: 2\r\n\r\nO", b"K"), Answer.ANSWERED),
        ((b"HTTP/1.0 204 No Content\r\n\r\n",), Answer.ANSWERED),
        ((b"HTTP/1.1 503 Service Unavailable\r\n\r\nloading",), Answer.NOT_YET),
        ((b"HTTP/1.1 401\r\n\r\n",), Answer.NOT_YET),
        ((), Answer.BROKE_OFF),
        ((b"220 mail.example ESMTP\r\n",), Answer.BROKE_OFF),
        ((b"HTTP/1.1 two hundred\r\n\r\n",), Answer.BROKE_OFF),
    ],
)
def test_what_an_answer_is_called(pieces: tuple[bytes, ...], answer: Answer) -> None:
    assert ask(saying(*pieces), loopback.health) is answer


def test_a_server_that_keeps_the_connection_is_not_waited_for() -> None:
    kept = saying(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nOK", stay=True)
    assert ask(kept, lambda port: loopback.work(port, "/", b"{}", "key")) is Answer.ANSWERED


def test_what_stands_behind_the_status_of_a_health_page_is_not_waited_for() -> None:
    assert ask(saying(b"HTTP/1.1 200 OK\r\n", stay=True), loopback.health) is Answer.ANSWERED


def test_a_port_on_which_nobody_listens_refuses() -> None:
    assert trio.run(loopback.health, free_port()) is Answer.REFUSED
    assert trio.run(loopback.work, free_port(), "/v1/completions", b"{}", "key") is Answer.REFUSED


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.EADDRNOTAVAIL, errno.ENOBUFS])
def test_what_fails_on_our_side_is_unknown(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(trio.socket, "socket", fail)
    assert trio.run(loopback.health, 1) is Answer.UNKNOWN
    assert trio.run(loopback.work, 1, "/", b"{}", "key") is Answer.UNKNOWN


@pytest.mark.parametrize("status", [200, 400, 500])
def test_any_status_of_work_is_an_answer(status: int) -> None:
    heard = []

    async def serve(stream: trio.SocketStream) -> None:
        async with stream:
            heard.append(await stream.receive_some(65536))
            await stream.send_all(b"HTTP/1.1 %d X\r\n\r\n{}" % status)

    found = ask(serve, lambda port: loopback.work(port, "/v1/completions", b'{"a": 1}', "the-key"))
    assert found is Answer.ANSWERED
    head, _, body = heard[0].partition(b"\r\n\r\n")
    assert head.startswith(b"POST /v1/completions HTTP/1.1\r\n")
    assert b"\r\nAuthorization: Bearer the-key\r\n" in head + b"\r\n"
    assert body == b'{"a": 1}'


def test_a_probe_carries_no_key() -> None:
    heard = []

    async def serve(stream: trio.SocketStream) -> None:
        async with stream:
            heard.append(await stream.receive_some(65536))
            await stream.send_all(b"HTTP/1.1 200 OK\r\n\r\n")

    assert ask(serve, loopback.health) is Answer.ANSWERED
    assert heard[0].startswith(b"GET /health HTTP/1.1\r\n")
    assert b"authorization" not in heard[0].lower()


def test_an_answer_without_end_is_cut_off() -> None:
    async def flood(stream: trio.SocketStream) -> None:
        await stream.receive_some(65536)
        try:
            await stream.send_all(b"HTTP/1.1 200 OK\r\n\r\n")
            while True:
                await stream.send_all(b"x" * 65536)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            await stream.aclose()

    found = ask(flood, lambda port: loopback.exchange(port, "GET", "/"))
    assert isinstance(found, tuple)
    assert found[0] == 200
    assert len(found[1]) <= loopback.MOST_BYTES + loopback.READ_BYTES
