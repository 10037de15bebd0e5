"""Somebody else on our ports: he takes them while nobody watches, answers everything with 200, and counts."""

from __future__ import annotations

import signal
import socketserver
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from chaos import observer
from chaos.soak.faults.ground import Fault, Hit, is_dead

if TYPE_CHECKING:
    from chaos.soak.faults.ground import Ground

TAKE_LIMIT: Final = 20.0  # budget: from a proxy's kill to its ports being free, on a busy machine
ANSWER: Final = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}"


class Thief(socketserver.ThreadingTCPServer):
    """A program that answers 200 to whatever comes. `heard` has the first line of each request."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, port: int, heard: list[str]) -> None:
        self.heard = heard
        super().__init__(("127.0.0.1", port), _Answer)
        self.thread = threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True)
        self.thread.start()

    def close(self) -> None:
        """Give the port back."""
        self.shutdown()
        self.thread.join()
        self.server_close()

    def handle_error(self, request: object, client_address: object) -> None:
        """Clients that leave are no matter."""


class _Answer(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        line = self.rfile.readline(4096).decode("latin-1").strip()
        length, header = 0, b"-"
        while header.strip():
            header = self.rfile.readline(65536)
            name, _, value = header.partition(b":")
            if name.lower() == b"content-length":
                length = int(value)
        with suppress(OSError):
            self.rfile.read(length)
            assert isinstance(self.server, Thief)  # noqa: S101 - it is whose handler this is
            self.server.heard.append(line)
            self.wfile.write(ANSWER)


class PortThief(Fault):
    """The keeper is stopped for the moment in which the ports change hands, or it would have them back first."""

    name, what = "port thief", "a proxy is killed, and somebody who answers 200 takes its ports and its servers'"

    def invoke(self, ground: Ground) -> Hit:
        """The group comes up on others, and no prompt is said to him."""
        group = ground.a_group()
        members = ground.before.group(group)
        ports = sorted({port for who in members for port in observer.listening_ports(who)})
        heard: list[str] = []
        ground.undo.callback(ground.kill, ground.keeper, signal.SIGCONT)
        ground.kill(ground.keeper, signal.SIGSTOP)
        ground.kill(ground.before.leaders[group], signal.SIGKILL)
        observer.wait_until("the group's processes are gone", lambda: all(map(is_dead, members)) or None, TAKE_LIMIT)
        for port in ports:
            thief = observer.wait_until(f"port {port} is free", lambda port=port: _take(port, heard), TAKE_LIMIT)  # type: ignore[misc]
            ground.undo.callback(thief.close)
        ground.kill(ground.keeper, signal.SIGCONT)

        def wrong() -> str:
            asked = [line for line in heard if line.startswith("POST")]
            return f"the stranger on {ports} was told {len(asked)} requests, the first: {asked[0]}" if asked else ""

        return Hit(tuple(members), frozenset([group]), wrong=wrong)


def _take(port: int, heard: list[str]) -> Thief | None:
    try:
        return Thief(port, heard)
    except OSError:
        return None
