"""Connections that write once, and grant the rest of an answer its own silence."""

from __future__ import annotations

from typing import Any

import httpcore
import trio

from supervisor.one_write import AsyncOneWrite, OneWrite


class Inner(httpcore.NetworkStream):
    """Keeps what it is asked."""

    def __init__(self) -> None:
        self.asked: list[Any] = []

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        self.asked.append(timeout)
        return b""

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self.asked.append((buffer, timeout))


class AsyncInner(httpcore.AsyncNetworkStream):
    """The same for trio."""

    def __init__(self) -> None:
        self.asked: list[Any] = []

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ASYNC109 - httpcore's
        self.asked.append(timeout)
        return b""

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ASYNC109 - httpcore's
        self.asked.append((buffer, timeout))


WANTED = [(b"headbody", 2.0), 1.0, 30.0, (b"next", 2.0), 1.0]


def test_a_request_is_one_write_and_the_patience_of_its_answer_ends_with_it() -> None:
    inner = Inner()
    stream = OneWrite(inner)
    stream.write(b"head", 2.0)
    stream.write(b"body", 2.0)
    stream.read(1, 1.0)
    stream.patience = 30.0
    stream.read(1, 1.0)
    stream.write(b"next", 2.0)
    stream.read(1, 1.0)
    assert inner.asked == WANTED


def test_a_request_of_trio_is_one_write_and_the_patience_of_its_answer_ends_with_it() -> None:
    inner = AsyncInner()
    stream = AsyncOneWrite(inner)

    async def talk() -> None:
        await stream.write(b"head", 2.0)
        await stream.write(b"body", 2.0)
        await stream.read(1, 1.0)
        stream.patience = 30.0
        await stream.read(1, 1.0)
        await stream.write(b"next", 2.0)
        await stream.read(1, 1.0)

    trio.run(talk)
    assert inner.asked == WANTED
