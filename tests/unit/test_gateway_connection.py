"""A connection of the gateway whose application is cancelled."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any

import trio
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.config import Config
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ConnectionState

from supervisor.gateway.connection import Connection

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


def test_nothing_is_said_for_an_application_that_is_cancelled() -> None:
    """Hypercorn's last word for it would be a 500 without a body, which no caller asks again for."""
    came = trio.Event()

    async def app(scope: Any, receive: Callable[[], Awaitable[Any]], send: Callable[[Any], Awaitable[None]]) -> None:
        came.set()
        await trio.sleep_forever()

    async def handle(stream: trio.SocketStream) -> None:
        config, wrapped = Config(), ASGIWrapper(app)  # as plain as ASGI can be
        await Connection(wrapped, config, WorkerContext(None), ConnectionState({}), stream).run()  # type: ignore[arg-type]

    async def scene(listener: socket.socket) -> bytes:
        text = b""
        async with trio.open_nursery() as serving:
            found = trio.SocketListener(trio.socket.from_stdlib_socket(listener.dup()))
            serving.start_soon(trio.serve_listeners, handle, [found])
            stream = await trio.open_tcp_stream(*listener.getsockname())
            async with stream:
                await stream.send_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
                await came.wait()
                serving.cancel_scope.cancel()
                with trio.CancelScope(shield=True), trio.move_on_after(5):
                    try:
                        async for piece in stream:
                            text += piece
                    except trio.BrokenResourceError:
                        pass
        return text

    with socket.create_server(("127.0.0.1", 0)) as listener:
        assert trio.run(scene, listener) == b""
