"""One client connection: requests in, answers out, over h11.

A client that closes its sending side is taken to have left, as Go's server (and so llama-swap) takes it: on a socket
the two cannot be told apart without writing.
"""

from __future__ import annotations

import socket
import struct
from contextlib import suppress
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, unquote

import h11
import trio

from workers.proxy import limits
from workers.proxy.refusal import Refusal

if TYPE_CHECKING:
    from collections.abc import Callable

    from workers.proxy.upstream import Headers

_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


class ClientGone(Exception):
    """The client closed the connection; nobody is there to be told anything."""


@dataclass(frozen=True, slots=True)
class Request:
    """A whole request, body included."""

    method: str
    target: str
    version: str
    headers: Headers
    """As sent, in order, names in the client's spelling."""
    body: bytes
    client: str

    @property
    def raw_path(self) -> str:
        """The path as sent, percent-encoding and all."""
        return self.target.partition("?")[0]

    @property
    def path(self) -> str:
        """The path, decoded."""
        return unquote(self.raw_path)

    @property
    def query(self) -> str:
        """What follows the question mark."""
        return self.target.partition("?")[2]

    def parameter(self, name: str) -> str | None:
        """The first value of a query parameter ("" if it has none), or None."""
        return parse_qs(self.query, keep_blank_values=True).get(name, [None])[0]

    def header(self, name: str) -> str:
        """A header's first value, or ""."""
        wanted = name.lower().encode()
        return next((value.decode("latin-1") for key, value in self.headers if key.lower() == wanted), "")


class Downstream:
    """A client's connection. One request is read, answered, and then the next.

    Raises:
        ClientGone: from every method that writes.
    """

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=limits.MAX_HEAD_BYTES)
        self._head_only = False
        self._by_close = False
        self.status = 0
        self.sent = 0
        try:
            self.client = str(stream.socket.getpeername()[0])
        except OSError:
            self.client = "?"

    async def next_request(self, trusts: Callable[[Request], bool] = lambda _: True) -> Request | None:
        """The next request, or None when the client has no more. Nothing is read of the body of one whose head is not
        trusted: it is refused all the same, and any user of this machine could have us keep MAX_BODY_BYTES, and as often as
        he likes.

        Raises:
            Refusal: it is malformed or too large; answer it and close.
        """
        try:
            head = await self._event()
            if not isinstance(head, h11.Request):
                return None
            self._head_only = head.method == b"HEAD"
            self.status = self.sent = 0
            request = Request(
                method=head.method.decode("ascii"),
                target=head.target.decode("latin-1"),
                version=head.http_version.decode("ascii"),
                headers=list(head.headers.raw_items()),
                body=b"",
                client=self.client,
            )
            if (request.header("Content-Length") or request.header("Transfer-Encoding")) and not trusts(request):
                return request
            if self._http.they_are_waiting_for_100_continue:
                await self._write(self._http.send(h11.InformationalResponse(status_code=100, headers=[])))
            body = bytearray()  # no list: one of chunks of a byte or two takes thirty times their bytes
            while isinstance(event := await self._event(), h11.Data):
                if len(body) + len(event.data) > limits.MAX_BODY_BYTES:
                    raise Refusal(413, f"the request body is larger than {limits.MAX_BODY_BYTES} bytes")
                body += event.data
        except h11.RemoteProtocolError as error:
            raise Refusal(error.error_status_hint, f"malformed request: {error}") from error
        except (ClientGone, trio.BrokenResourceError, trio.ClosedResourceError):
            return None  # closed: an unload came right after the last byte of the answer before, and aborted it
        return replace(request, body=bytes(body))

    def next_cycle(self) -> bool:
        """Make ready for another request on this connection; False if it must be closed."""
        if self._http.our_state is not h11.DONE or self._http.their_state is not h11.DONE:
            return False
        self._http.start_next_cycle()
        return True

    async def wait_gone(self) -> None:
        """Return when the client has closed, while its request is being answered. Early next requests are kept."""
        while len(self._http.trailing_data[0]) < limits.MAX_HEAD_BYTES:
            try:
                data = await self._stream.receive_some(limits.READ_BYTES)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                return
            if not data:
                return
            self._http.receive_data(data)
        await trio.sleep_forever()  # a client that pipelines without end is there, and is not read

    async def start(self, status: int, headers: Headers, reason: bytes = b"") -> None:
        """Send status and headers. Without a length the body is chunked, or ends with the connection for HTTP/1.0."""
        self.status = status
        response = h11.Response(status_code=status, headers=list(headers), reason=reason or _reason(status))
        await self._write(self._http.send(response))
        self._by_close = self._http.their_http_version == b"1.0" and b"content-length" not in dict(response.headers)

    async def send(self, data: bytes) -> None:
        """Send a piece of the body, now. Nothing for HEAD."""
        if not self._head_only and data:
            self.sent += len(data)
            await self._write(self._http.send(h11.Data(data=data)))

    async def finish(self) -> None:
        """The body is complete."""
        await self._write(self._http.send(h11.EndOfMessage()))

    async def respond(self, status: int, headers: Headers, body: bytes) -> None:
        """A whole answer in one write."""
        self.status = status
        head = self._http.send(
            h11.Response(
                status_code=status,
                headers=[*headers, (b"Content-Length", str(len(body)).encode())],
                reason=_reason(status),
            )
        )
        data = b"" if self._head_only or not body else self._http.send(h11.Data(data=body))
        end = self._http.send(h11.EndOfMessage())
        self.sent = len(data or b"")
        await self._write(b"".join((head or b"", data or b"", end or b"")))

    @property
    def answered(self) -> bool:
        """Whether a status went out for the current request."""
        return self.status != 0

    def abort(self) -> None:
        """Close so that the client can tell the answer is incomplete: no last chunk, and a reset where only the
        connection's end would mark the body's."""
        if self._by_close:
            self._stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        self._stream.socket.close()

    async def read_away(self) -> None:
        """Where the client still sends to who has answered, read it for a while: closing on it would reset the connection,
        and the client would see that instead of the answer (RFC 9112, 9.6)."""
        if self._http.their_state not in (h11.SEND_BODY, h11.ERROR):
            return
        with (
            suppress(trio.BrokenResourceError, trio.ClosedResourceError),
            trio.move_on_after(limits.LINGER_BUDGET),
        ):
            await self._stream.send_eof()
            while await self._stream.receive_some(limits.READ_BYTES):
                pass

    def close(self) -> None:
        """Close the connection."""
        self._stream.socket.close()

    async def _event(self) -> h11.Event | type[h11.PAUSED]:
        while True:
            event = self._http.next_event()
            if event is not h11.NEED_DATA:
                return event  # type: ignore[return-value]
            self._http.receive_data(await self._stream.receive_some(limits.READ_BYTES))

    async def _write(self, data: bytes | None) -> None:
        try:
            await self._stream.send_all(data or b"")
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise ClientGone from error


def _reason(status: int) -> bytes:
    return HTTPStatus(status).phrase.encode() if status in HTTPStatus.__members__.values() else b""
