"""What a request costs through `engine.http`, against plain httpx to the same port.

The engine is a stand-in, a process of its own that answers at once: so what differs is our transport and nothing else,
and no model is needed. Both clients keep their connections.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from statistics import median
from typing import TYPE_CHECKING, Any, Final

import httpx

from supervisor.contract import Endpoint, State
from supervisor.transport import HoldingTransport

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

REQUESTS: Final = 20
"""In one measurement, of which the median is taken: one request is shorter than a clock of a busy machine is even."""
MANY_REQUESTS: Final = 5
"""In each of several threads."""
ANSWER_LIMIT = 30.0  # budget: one answer of the stand-in, which takes a millisecond

SHORT: Final = {"messages": [{"role": "user", "content": "Hello"}]}
STREAM: Final = SHORT | {"stream": True}

STAND_IN: Final = r"""
import selectors, socket
body = b'{"choices":[{"message":{"content":"hi"}}]}'
whole = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
event = b'data: {"choices":[{"finish_reason":null,"delta":{"content":"a"}}]}\n\n'
chunk = lambda data: b"%x\r\n%s\r\n" % (len(data), data)
stream = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
stream += chunk(event) * 64 + chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"
listener = socket.create_server(("127.0.0.1", 0), backlog=128)
print(listener.getsockname()[1], flush=True)
selector, pending = selectors.DefaultSelector(), {}
selector.register(listener, selectors.EVENT_READ)
while True:
    for key, _ in selector.select():
        if key.fileobj is listener:
            peer, _ = listener.accept()
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            pending[peer] = b""
            selector.register(peer, selectors.EVENT_READ)
            continue
        peer = key.fileobj
        data = peer.recv(65536)
        if not data:
            selector.unregister(peer)
            peer.close()
            continue
        head, blank, rest = (pending.pop(peer) + data).partition(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r")[0] or 0) if blank else 1
        if len(rest) < length:
            pending[peer] = head + blank + rest
            continue
        pending[peer] = b""
        peer.sendall(stream if b'"stream"' in rest else whole)
"""


class _Directory:
    """One endpoint that stays, looked up as a real directory does: with a stat."""

    def __init__(self, endpoint: Endpoint, record: Path) -> None:
        self._endpoint, self._record = endpoint, record

    def current(self, group: str) -> Endpoint:
        os.stat(self._record)
        return self._endpoint

    def state(self, group: str) -> State | None:
        return State.RUNNING

    def vouches(self, port: int) -> bool:
        return True

    def wait(self, group: str, *, unlike: str | None, deadline: float) -> Endpoint:
        return self._endpoint


@contextmanager
def clients(folder: Path) -> Iterator[tuple[httpx.Client, httpx.Client]]:
    """Ours and a plain one, to a stand-in that ends with the `with`."""
    stand_in = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", STAND_IN], stdout=subprocess.PIPE, text=True, process_group=0
    )
    try:
        assert stand_in.stdout is not None  # noqa: S101 - it is a pipe
        endpoint = Endpoint("chat", "chat", "m", f"http://127.0.0.1:{int(stand_in.stdout.readline())}", "key", "g1")
        transport = HoldingTransport(_Directory(endpoint, folder), [endpoint])
        facts: dict[str, Any] = {"base_url": endpoint.url, "timeout": ANSWER_LIMIT, "trust_env": False}
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=32)
        with (
            httpx.Client(transport=transport, **facts) as ours,
            httpx.Client(limits=limits, headers={"Authorization": "Bearer key"}, **facts) as plain,
        ):
            yield ours, plain
    finally:
        stand_in.kill()
        stand_in.communicate()


def seconds(client: httpx.Client, body: dict[str, Any], threads: int) -> float:
    """The median of REQUESTS requests, or of MANY_REQUESTS in each of `threads` threads at once; a stream is read line by line."""
    took: list[float] = []

    def one() -> float:
        began = time.perf_counter()
        with client.stream("POST", "/v1/chat/completions", json=body) as answer:
            for _ in answer.iter_lines():
                pass
        return time.perf_counter() - began

    def many() -> None:
        for _ in range(REQUESTS if threads == 1 else MANY_REQUESTS):
            took.append(one())

    _at_once(many, threads)
    return median(took)


def _at_once(work: Callable[[], None], threads: int) -> None:
    if threads == 1:
        work()
        return
    running = [threading.Thread(target=work, daemon=True) for _ in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
