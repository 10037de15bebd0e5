"""A connection of the gateway: applications as plain as ASGI can be, and clients that are not."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any

import pytest
import trio
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.config import Config
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ConnectionState

from supervisor.gateway.connection import Connection

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    App = Callable[[Any, Callable[[], Awaitable[Any]], Callable[[Any], Awaitable[None]]], Awaitable[None]]


def heard(app: App, sent: bytes, stop: Callable[[], Awaitable[None]] | None = None) -> bytes:
    """All that a client hears who sends this, until the connection is closed. After `stop` the server is cancelled."""

    async def handle(stream: trio.SocketStream) -> None:
        await Connection(ASGIWrapper(app), Config(), WorkerContext(None), ConnectionState({}), stream).run()  # type: ignore[arg-type]

    async def scene(listener: socket.socket) -> bytes:
        text = b""
        async with trio.open_nursery() as serving:
            found = trio.SocketListener(trio.socket.from_stdlib_socket(listener.dup()))
            serving.start_soon(trio.serve_listeners, handle, [found])
            stream = await trio.open_tcp_stream(*listener.getsockname())
            async with stream:
                await stream.send_all(sent)
                if stop is not None:
                    await stop()
                    serving.cancel_scope.cancel()
                with trio.CancelScope(shield=True), trio.move_on_after(5):
                    try:
                        async for piece in stream:
                            text += piece
                    except trio.BrokenResourceError:
                        pass
            serving.cancel_scope.cancel()
        return text

    with socket.create_server(("127.0.0.1", 0)) as listener:
        return trio.run(scene, listener)


def test_nothing_is_said_for_an_application_that_is_cancelled() -> None:
    """Hypercorn's last word for it would be a 500 without a body, which no caller asks again for."""
    came = trio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        came.set()
        await trio.sleep_forever()

    assert heard(app, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", came.wait) == b""


@pytest.mark.parametrize("behind", [b"\r\n", b"GET /more HTTP/1.1\r\nHost: x\r\n\r\n"])
@pytest.mark.parametrize("head", [b"POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n", b"POST / HTTP/1.0\r\n"])
def test_what_is_sent_behind_a_last_request_is_read_over(head: bytes, behind: bytes) -> None:
    """h11 calls it an error, and the answer was lost (RFC 9112, 2.2 and 9.6)."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        assert (await receive())["body"] == b"hi"
        for _ in range(3):  # so that what came behind is seen to
            await trio.lowlevel.checkpoint()
        assert scope["path"] == "/"
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"4")]})
        await send({"type": "http.response.body", "body": b"well", "more_body": False})

    said = heard(app, head + b"Content-Length: 2\r\n\r\nhi" + behind)
    assert said.startswith(b"HTTP/1.1 200")
    assert said.endswith(b"\r\n\r\nwell")
    assert said.count(b"HTTP/1.1") == 1
