"""A TCP server that loses requests in every way there is, and a directory that says where it went.

Each request that arrives, on whatever connection, takes the next step of the script. Sockets and threads are real.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from attrs import define, field, frozen

from supervisor.contract import Endpoint, State
from supervisor.errors import EngineStartError, QueenrightError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

PATIENCE = 10.0
"""Longest wait of a test for something that should happen at once."""


@frozen
class Received:
    """One request as it came in."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes


@define
class Talk:
    """One request being answered: what a step of a script acts on."""

    connection: socket.socket
    request: Received

    def send(self, data: bytes) -> None:
        self.connection.sendall(data)

    def reply(self, status: int, body: bytes = b"", *headers: str, content_type: str = "application/json") -> None:
        lines = [f"HTTP/1.1 {status} Some", f"Content-Type: {content_type}", f"Content-Length: {len(body)}", *headers]
        self.send("\r\n".join(lines).encode() + b"\r\n\r\n" + body)

    def start_chunks(self, content_type: str = "text/event-stream") -> None:
        self.send(f"HTTP/1.1 200 OK\r\nContent-Type: {content_type}\r\nTransfer-Encoding: chunked\r\n\r\n".encode())

    def chunk(self, data: bytes) -> None:
        self.send(b"%x\r\n%s\r\n" % (len(data), data))

    def end_chunks(self) -> None:
        self.send(b"0\r\n\r\n")

    def close(self) -> None:
        """A process that ends: FIN, or RST if something is unread."""
        self.connection.shutdown(socket.SHUT_RDWR)

    def reset(self) -> None:
        """RST, by closing with SO_LINGER of zero seconds."""
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()

    def wait(self, event: threading.Event) -> None:
        assert event.wait(PATIENCE), "the test never let the script go on"

    def wait_for_hangup(self) -> None:
        """Until the client has let go of the connection."""
        self.connection.settimeout(PATIENCE)
        with contextlib.suppress(ConnectionResetError):
            assert self.connection.recv(1) == b""


Step = Callable[[Talk], None]


class ScriptedServer:
    """Listens at once; as a context manager it stops, and joins its threads, at the end."""

    def __init__(self, *script: Step, port: int = 0) -> None:
        self._script = list(script)
        self._lock = threading.Lock()
        self._connections: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self.received: list[Received] = []
        self.connected = 0
        self._listener = socket.create_server(("127.0.0.1", port))
        self.port: int = self._listener.getsockname()[1]
        self._acceptor = threading.Thread(target=self._accept, name="scripted-accept")
        self._acceptor.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def endpoint(self, generation: str = "g1", *, group: str = "chat", key: str = "group-key") -> Endpoint:
        return endpoint_at(self.port, generation, group=group, key=key)

    def die(self, *, reset: bool = False) -> None:
        """Close the port and every connection, as the kernel does for a killed process."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._acceptor.join(PATIENCE)
        with self._lock:
            for connection in self._connections:
                with contextlib.suppress(OSError):
                    if reset:
                        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(PATIENCE)
            assert not thread.is_alive(), "a script hangs"

    def __enter__(self) -> ScriptedServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.die()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                self.connected += 1
                self._connections.append(connection)
                thread = threading.Thread(target=self._serve, args=(connection,), name="scripted-serve")
                self._threads.append(thread)
                thread.start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            for request in _requests(connection):
                with self._lock:
                    self.received.append(request)
                    step = self._script.pop(0) if self._script else unscripted
                step(Talk(connection, request))


def unscripted(talk: Talk) -> None:
    talk.reply(418, b'{"error":"the script has no step for this request"}')


def _requests(connection: socket.socket) -> Iterator[Received]:
    buffer = b""
    while True:
        while b"\r\n\r\n" not in buffer:
            piece = connection.recv(65536)
            if not piece:
                return
            buffer += piece
        head, _, buffer = buffer.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        length = int(headers.get("content-length", "0"))
        while len(buffer) < length:
            piece = connection.recv(65536)
            if not piece:
                return
            buffer += piece
        method, target, _ = first.split(" ")
        yield Received(method, target, headers, buffer[:length])
        buffer = buffer[length:]


def endpoint_at(port: int, generation: str = "g1", *, group: str = "chat", key: str = "group-key") -> Endpoint:
    return Endpoint(group, "chat", "smol", f"http://127.0.0.1:{port}", key, generation)


def closed_port() -> int:
    """A port on which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


@define
class FakeDirectory:
    """Answers `wait` with what is next in `then`: an endpoint, or an error to raise. Keeps what it was asked."""

    endpoint: Endpoint | None
    then: list[Endpoint | QueenrightError] = field(factory=list)
    now: State | None = State.RUNNING
    before_wait: Callable[[], object] | None = None
    waits: list[str | None] = field(factory=list)
    """`unlike` of each wait."""
    strangers: set[int] = field(factory=set)
    """Ports that are somebody else's by now."""

    def current(self, group: str) -> Endpoint | None:
        assert group == "chat"
        return self.endpoint

    def wait(self, group: str, *, unlike: str | None, deadline: float) -> Endpoint:
        assert group == "chat"
        self.waits.append(unlike)
        if self.before_wait is not None:
            self.before_wait()
        answer = self.then.pop(0) if self.then else EngineStartError("the group did not come back in time", "Look.")
        if isinstance(answer, QueenrightError):
            raise answer
        self.endpoint = answer
        return answer

    async def wait_async(self, group: str, *, unlike: str | None, deadline: float) -> Endpoint:
        return self.wait(group, unlike=unlike, deadline=deadline)

    def state(self, group: str) -> State | None:
        assert group == "chat"
        return self.now

    def vouches(self, port: int) -> bool:
        return port not in self.strangers
