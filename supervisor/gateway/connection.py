"""One connection of the gateway: Hypercorn's, where that of its own leaves a client without words or a server at work."""

from __future__ import annotations

import os
import socket
import struct
from contextlib import suppress
from math import inf
from typing import TYPE_CHECKING, Any, Final

import h11
import trio
from hypercorn.events import Closed, RawData, Updated
from hypercorn.protocol.events import Body, EndBody, Request, Response, StreamClosed
from hypercorn.protocol.h11 import STREAM_ID, H11Protocol
from hypercorn.protocol.http_stream import HTTPStream
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.trio.worker_context import EventWrapper

from supervisor import budgets
from supervisor.gateway import saying

if TYPE_CHECKING:
    from hypercorn.events import Event
    from hypercorn.protocol.events import Event as StreamEvent
    from hypercorn.typing import ASGIReceiveEvent, ASGISendEvent

_TCP_ESTABLISHED: Final = 1
"""The first byte of TCP_INFO (tcp(7), <linux/tcp_states.h>): neither side has said that it ends."""

_MALFORMED: Final = {
    431: ("the head of the request is too large", "head_too_large"),
    501: ("the body has a transfer coding other than `chunked`", "transfer_coding"),
}
"""What h11 says of a request that it cannot read; for everything else it is 400."""


class ClientLeftError(Exception):
    """The client's end is closed, and what it sent last waits unread."""


class Connection(TCPServer):
    """Over with the client's end: Hypercorn's own goes on until its idle time is over, and keeps the descriptor.

    Also where the client has sent more requests than were answered (it pipelines): Hypercorn does not read then.
    """

    _is_over = False

    async def _read_data(self) -> None:
        plain: Any = self.protocol.protocol
        stream: Any = self.stream  # there is no TLS here
        self.protocol.protocol = _Protocol(plain, stream)
        try:
            await super()._read_data()
        except ClientLeftError:
            await self.protocol.handle(Closed())
        self._is_over = True
        await self.idle_task.stop()

    async def protocol_send(self, event: Event) -> None:
        # Nothing is sent by who is cancelled: Hypercorn's last word for an application that was would be a 500 without a body.
        if isinstance(event, RawData) and not self.send_lock.locked() and trio.current_effective_deadline() > -inf:
            left = event.data[self._taken_at_once(event.data) :]
            if not left:
                return
            event = RawData(data=left)
        if not (self._is_over and isinstance(event, Updated)):
            with suppress(
                trio.BusyResourceError
            ):  # this side of it is being ended by somebody: nothing more can be said
                await super().protocol_send(event)

    def _taken_at_once(self, data: bytes) -> int:
        """Bytes that the kernel took without a wait. The pieces of a stream are small, and a lock, a shield and three
        checkpoints for each were a tenth of what the gateway takes for one (measured). There is none here: who passes on a
        stream waits for its next piece, which is one."""
        stream: Any = self.stream
        try:
            return os.write(stream.socket.fileno(), data)
        except OSError:  # full, or broken: it is sent as ever, which says so
            return 0


class _Protocol(H11Protocol):
    """HTTP/1.1 and nothing else: who asks to change to HTTP/2 or to a websocket is answered as if it had not (RFC 9110,
    7.8), so that there is one way in, which the guard stands at. What cannot be read gets an answer with a body."""

    def __init__(self, plain: H11Protocol, stream: trio.SocketStream) -> None:
        super().__init__(
            plain.app,
            plain.config,
            plain.context,
            plain.task_group,
            plain.connection_state,
            plain.ssl,
            plain.client,
            plain.server,
            plain.send,
        )
        self.can_read = _Turn(stream)
        self.connection = _Words(h11.SERVER, max_incomplete_event_size=plain.config.h11_max_incomplete_size)
        self._socket_stream = stream
        self._is_chunked = False
        self._is_open_ended = False

    async def stream_send(self, event: StreamEvent) -> None:
        """As its own; but the chunks of a body after the first are framed here. h11 makes the same of them, by way of its
        states, which a chunk does not change (RFC 9112, 7.1)."""
        if not isinstance(event, Body):
            self._is_chunked = False
            if isinstance(event, Response):
                self._is_open_ended = _is_open_ended(self.connection, event)
            await super().stream_send(event)
            return
        chunk = b"%x\r\n%b\r\n" % (len(event.data), event.data)
        if not self._is_chunked:
            try:
                data = self.connection.send(h11.Data(data=event.data))
            except h11.LocalProtocolError:
                if self.connection.their_state != h11.ERROR:
                    raise
                return
            self._is_chunked = data == chunk
            chunk = data
        await self.send(RawData(data=chunk))

    async def _check_protocol(self, event: h11.Request) -> None:
        """There is no other."""

    async def _create_stream(self, request: h11.Request) -> None:
        self.stream = _Stream(
            self.app,
            self.config,
            self.context,
            self.task_group,
            self.ssl,
            self.client,
            self.server,
            self.stream_send,
            STREAM_ID,
        )
        await self.stream.handle(
            Request(
                stream_id=STREAM_ID,
                headers=[(name, value) for name, value in request.headers if name != b"upgrade"],
                http_version=request.http_version.decode(),
                method=request.method.decode("ascii").upper(),
                raw_path=request.target,
                state=self.connection_state,
            )
        )
        self.keep_alive_requests += 1

    async def _maybe_recycle(self) -> None:
        """As its own, once an answer was said. But what is still sent to who has answered is read away for a while: closing
        on it would reset the connection, and the client would see that instead (RFC 9112, 9.6). And an answer that breaks,
        and whose end is the connection's, is reset: else it would look whole."""
        ours = self.connection.our_state
        if ours is h11.SEND_BODY and self._is_open_ended:
            _reset(self._socket_stream)
        elif (
            isinstance(self.stream, _Stream)
            and self.connection.their_state is h11.SEND_BODY
            and ours in (h11.DONE, h11.MUST_CLOSE)
        ):
            with trio.move_on_after(budgets.GATEWAY_LINGER):
                await self.stream.has_come.wait()
        await super()._maybe_recycle()

    async def _send_error_response(self, status_code: int) -> None:
        what, code = _MALFORMED.get(status_code, ("this is no request of HTTP/1.1", "bad_request"))
        body = saying.error(what, "invalid_request_error", code)
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(body)),
            (b"connection", b"close"),
        ]
        await self._send_h11_event(h11.Response(status_code=status_code, headers=headers))
        await self._send_h11_event(h11.Data(data=body))
        await self._send_h11_event(h11.EndOfMessage())
        await read_away(self._socket_stream, budgets.GATEWAY_LINGER)


class _Words(h11.Connection):
    """What a client sends behind the last request that is answered here is read over (RFC 9112, 9.6), be it the line's end that
    some put behind a body (2.2). h11 calls it an error, and the answer that was being made would end with that."""

    def receive_data(self, data: bytes) -> None:
        if self.their_state is not h11.MUST_CLOSE:
            super().receive_data(data)

    def next_event(self) -> Any:
        return h11.NEED_DATA if self.their_state is h11.MUST_CLOSE else super().next_event()


class _Stream(HTTPStream):
    """One request. Hypercorn's own waits, with the next piece of a body in hand, for an application that has answered and
    takes no more: for ever, for it sees neither that nor its client's end."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.has_come = trio.Event()
        """All of it, or the end of its client."""
        self._is_answered = False
        self._giving: set[trio.CancelScope] = set()

    async def handle(self, event: StreamEvent) -> None:
        if isinstance(event, EndBody | StreamClosed):
            self.has_come.set()
        await super().handle(event)
        if isinstance(event, Request):
            self._put, self.app_put = self.app_put, self._give

    async def app_send(self, message: ASGISendEvent | None) -> None:
        if message is None or (message["type"] == "http.response.body" and not message.get("more_body", False)):
            self._is_answered = True
            for scope in self._giving:
                scope.cancel()
        await super().app_send(message)

    async def _give(self, message: ASGIReceiveEvent) -> None:
        if self._is_answered:
            return
        if message["type"] == "http.disconnect":  # who says so may be the application itself, in the middle of a word
            self.task_group.spawn(self._given, message)
        else:
            await self._given(message)

    async def _given(self, message: ASGIReceiveEvent) -> None:
        if self._is_answered:
            return
        with trio.CancelScope() as scope:
            self._giving.add(scope)
            try:
                await self._put(message)
            finally:
                self._giving.discard(scope)


class _Turn(EventWrapper):
    """The end of the answer before. Nobody reads until then, so that a client cannot make us keep what it sends; whether
    it is there yet the kernel is asked."""

    def __init__(self, stream: trio.SocketStream) -> None:
        super().__init__()
        self._stream = stream

    async def wait(self) -> None:
        while not self.is_set():
            with trio.move_on_after(budgets.GATEWAY_LOOK):
                await super().wait()
            if not self.is_set() and _has_left(self._stream):
                raise ClientLeftError


def _has_left(stream: trio.SocketStream) -> bool:
    try:
        return stream.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] != _TCP_ESTABLISHED
    except OSError:
        return True


def _is_open_ended(connection: Any, answer: Response) -> bool:
    """Whether the end of the connection is all that shows the end of this answer: so it is for who speaks HTTP/1.0 where no
    length is said. A stream of events has words of its own for an end."""
    said = {name.lower(): value for name, value in answer.headers}
    is_events = said.get(b"content-type", b"").startswith(b"text/event-stream")
    return connection.their_http_version == b"1.0" and b"content-length" not in said and not is_events


def _reset(stream: trio.SocketStream) -> None:
    with suppress(OSError):
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    stream.socket.close()


async def read_away(stream: trio.SocketStream, limit_s: float) -> None:
    """Read what a client still sends to somebody who said his last word: closing on it would reset the connection, and
    the client would see that instead of the answer (RFC 9112, 9.6)."""
    with suppress(trio.BrokenResourceError, trio.ClosedResourceError, OSError), trio.move_on_after(limit_s):
        with suppress(trio.BusyResourceError):  # an answer is on its way
            await stream.send_eof()
        while await stream.receive_some(65536):
            pass
