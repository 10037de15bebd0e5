"""dummy.c, for machines without a compiler: the same arguments, the same lines. Run as `python -I -S -E dummy.py`."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok"


def main(words: list[str]) -> int:
    """Serve until a signal ends it. Exit status: 2 wrong arguments, 3 the port is taken."""
    port, events, ignores, grandchild = 0, -1, False, False
    while words:
        match words.pop(0):
            case "--ignore-term":
                ignores = True
            case "--grandchild":
                grandchild = True
            case "--port":
                port = int(words.pop(0))
            case "--events":
                events = os.open(words.pop(0), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            case _:
                return 2

    def note(what: str) -> None:
        if events >= 0:
            os.write(events, f"{port} {os.getpid()} {time.monotonic_ns()} {what}\n".encode())

    def on_term(_: int, __: object) -> None:
        note("term")
        if not ignores:
            os._exit(0)

    note("start")
    signal.signal(signal.SIGTERM, on_term)
    signal.signal(signal.SIGINT, on_term)
    if grandchild and os.fork() == 0:
        note("grandchild")
        while True:
            signal.pause()
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(("127.0.0.1", port))
    except OSError:
        note("taken")
        return 3
    listener.listen(64)
    note("listen")
    while True:
        client, _ = listener.accept()
        with client:
            try:
                client.recv(4096)
                client.sendall(ANSWER)
            except OSError:
                continue


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
