"""The load of `bench gateway`, as light as it can be: plain sockets in one thread, so that what is measured is not us.

`python -m chaos.bench_load PORT KEY COUNT BYTES` (a KEY of `-` is none) sends that many embedding requests of that size at once, and prints how many
were answered with 200.
"""

from __future__ import annotations

import http.client
import json
import re
import selectors
import socket
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from attrs import frozen

from chaos.bench_rig import POLL, NotMeasuredError

QUIET_LIMIT = 60.0  # budget: nothing at all is heard of any stream; 16 prompts on one core take a tenth of it
START_LIMIT = 30.0  # budget: imports, on a machine that does much else
HEALTH_LIMIT = 10.0  # budget: a hundred times the goal
SENT_LIMIT = 120.0  # budget: as of chaos.bench_gateway

_TOKEN: Final = re.compile(rb'"content":"([^"]+)"')


@frozen
class Target:
    """Where requests go."""

    host: str
    port: int
    key: str


@frozen
class Load:
    """So many streams at once, of so many tokens each; `rate` is for the stand-in, in tokens a second (0: a real model)."""

    streams: int
    tokens: int
    rate: int


@frozen
class Result:
    """`firsts` are the seconds to the first token, `latencies` those of each token that had the time of its sending in it,
    `rate` is tokens a second of all streams together, from the first token of any to the last."""

    firsts: list[float]
    latencies: list[float]
    rate: float


class _Stream:
    """One request."""

    def __init__(self, target: Target, body: bytes) -> None:
        self.socket = socket.create_connection((target.host, target.port), timeout=QUIET_LIMIT)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        key = f"Authorization: Bearer {target.key}\r\n" if target.key else ""
        head = (
            f"POST /v1/chat/completions HTTP/1.1\r\nHost: {target.host}:{target.port}\r\n{key}"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        self.began = time.monotonic()
        self.socket.sendall(head.encode() + body)
        self.socket.setblocking(False)
        self.first = 0.0
        self.count = 0
        self._rest = b""
        self._is_begun = False

    def read(self, latencies: list[float]) -> bool:
        """What has come; whether that was all. Raises NotMeasuredError."""
        try:
            data = self.socket.recv(1 << 16)
        except BlockingIOError:
            return False
        now = time.monotonic()
        text = self._rest + data
        if not self._is_begun and text:
            self._is_begun = True
            if not text.startswith(b"HTTP/1.1 200"):
                raise NotMeasuredError(f"a stream was answered with {text[:300]!r}")
        last = 0
        for found in _TOKEN.finditer(text):
            last = found.end()
            self.count += 1
            self.first = self.first or now
            if (stamp := found[1].rstrip()).isdigit() and len(stamp) > 10:
                latencies.append(now - int(stamp) / 1e9)
        self._rest = text[last:][-4096:]
        if b"data: [DONE]" in self._rest:
            return True
        if not data:
            raise NotMeasuredError(f"a stream ended in the middle: {text[-300:]!r}")
        return False


def run_load(target: Target, load: Load) -> Result:
    """Run it to its end. Raises NotMeasuredError for a stream that does not end as it must."""
    asked = {"model": "chat", "stream": True, "max_tokens": load.tokens, "temperature": 0, "cache_prompt": False}
    asked |= {"rate": load.rate} if load.rate else {"ignore_eos": True}
    latencies: list[float] = []
    with selectors.DefaultSelector() as selector:
        streams = []
        try:
            for number in range(load.streams):
                messages = [{"role": "user", "content": f"What do {number + 2} bees make?"}]
                streams.append(_Stream(target, json.dumps(asked | {"messages": messages}).encode()))
                selector.register(streams[-1].socket, selectors.EVENT_READ, streams[-1])
            left = len(streams)
            while left:
                ready = selector.select(QUIET_LIMIT)
                if not ready:
                    raise NotMeasuredError(f"{left} streams fell silent")
                for key, _ in ready:
                    if key.data.read(latencies):
                        selector.unregister(key.fileobj)
                        left -= 1
            ended = time.monotonic()
        finally:
            for stream in streams:
                stream.socket.close()
    began = min(stream.first for stream in streams)
    total = sum(stream.count for stream in streams)
    return Result([one.first - one.began for one in streams], latencies, total / (ended - began))


def health_seconds(target: Target) -> float | None:
    """One health check on a connection of its own; None where it is not answered with 200."""
    connection = http.client.HTTPConnection(target.host, target.port, timeout=HEALTH_LIMIT)
    began = time.monotonic()
    try:
        connection.request("GET", "/health")
        answer = connection.getresponse()
        answer.read()
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()
    return time.monotonic() - began if answer.status == 200 else None


def answering(port: int, what: str) -> Target:
    """Whoever is to serve there, once it does. Raises NotMeasuredError after START_LIMIT; `what` is its name there."""
    target, deadline = Target("127.0.0.1", port, ""), time.monotonic() + START_LIMIT
    while health_seconds(target) is None:
        if time.monotonic() > deadline:
            raise NotMeasuredError(f"{what} does not answer")
        time.sleep(POLL)
    return target


def _send(port: int, key: str, body: bytes) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=SENT_LIMIT)
    try:
        headers = {"Content-Type": "application/json"} | ({} if key == "-" else {"Authorization": f"Bearer {key}"})
        connection.request("POST", "/v1/embeddings", body, headers)
        answer = connection.getresponse()
        answer.read()
        return answer.status == 200
    finally:
        connection.close()


def main(port: int, key: str, count: int, size: int) -> None:
    """See the module."""
    text = "What do bees make of clover? " * (size // 29 // 100)
    body = json.dumps({"model": "embed", "input": [text] * 100}).encode()
    with ThreadPoolExecutor(count) as pool:
        print(sum(pool.map(lambda _: _send(port, key, body), range(count))))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], *map(int, sys.argv[3:5]))
