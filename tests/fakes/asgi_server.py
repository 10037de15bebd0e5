"""A small real ASGI server on trio and h11, as a front end has one: it serves until SIGTERM, then in order."""

from __future__ import annotations

import signal
from functools import partial
from typing import TYPE_CHECKING, Any

import h11
import trio

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from supervisor.shutdown_route import App


async def serve(
    app: App,
    listening: Callable[[str], None] = lambda _: None,
    *,
    port: int = 0,
    stopped: Callable[[], Awaitable[None]] | None = None,
) -> None:
    """Serve on a port, by default one of the system's choice; `listening` is told the URL. Returns once `stopped` does,
    by default after SIGTERM."""
    async with trio.open_nursery() as connections:
        listeners = await trio.open_tcp_listeners(port, host="127.0.0.1")
        async with trio.open_nursery() as accepting:
            handler = partial(_connection, app)
            accepting.start_soon(partial(trio.serve_listeners, handler, listeners, handler_nursery=connections))
            listening(f"http://127.0.0.1:{listeners[0].socket.getsockname()[1]}")
            await (stopped or _sigterm)()
            accepting.cancel_scope.cancel()
        connections.cancel_scope.deadline = trio.current_time() + 2


async def _sigterm() -> None:
    with trio.open_signal_receiver(signal.SIGTERM) as signals:
        await anext(aiter(signals))


async def _connection(app: App, stream: trio.SocketStream) -> None:
    connection = h11.Connection(h11.SERVER)
    try:
        while True:
            request = await _next(connection, stream)
            if not isinstance(request, h11.Request):
                return
            await _request(app, connection, stream, request)
            if connection.our_state is not h11.DONE or connection.their_state is not h11.DONE:
                return
            connection.start_next_cycle()
    except (trio.BrokenResourceError, h11.RemoteProtocolError):
        return
    finally:
        await trio.aclose_forcefully(stream)


async def _request(app: App, connection: h11.Connection, stream: trio.SocketStream, request: h11.Request) -> None:
    async def receive() -> dict[str, Any]:
        event = await _next(connection, stream)
        if isinstance(event, h11.Data):
            return {"type": "http.request", "body": bytes(event.data), "more_body": True}
        if isinstance(event, h11.EndOfMessage):
            return {"type": "http.request", "body": b"", "more_body": False}
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            await _put(
                connection, stream, h11.Response(status_code=message["status"], headers=list(message["headers"]))
            )
        else:
            await _put(connection, stream, h11.Data(data=message.get("body", b"")))
            if not message.get("more_body", False):
                await _put(connection, stream, h11.EndOfMessage())

    await app(
        {
            "type": "http",
            "method": request.method.decode(),
            "path": request.target.decode().partition("?")[0],
            "headers": [(name, value) for name, value in request.headers],
        },
        receive,
        send,
    )
    while connection.their_state is h11.SEND_BODY:
        await _next(connection, stream)


async def _put(connection: h11.Connection, stream: trio.SocketStream, event: Any) -> None:
    if data := connection.send(event):
        await stream.send_all(data)


async def _next(connection: h11.Connection, stream: trio.SocketStream) -> Any:
    while (event := connection.next_event()) is h11.NEED_DATA:
        connection.receive_data(await stream.receive_some(65536))
    return event
