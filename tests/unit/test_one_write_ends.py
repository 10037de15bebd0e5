"""A request goes out in one write, when it ends and not when its answer is read."""

from __future__ import annotations

from typing import Any

import httpcore
import pytest

from supervisor.one_write import MUCH, OneWrite

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class Wire(httpcore.NetworkStream):
    """Keeps what is written, and answers."""

    def __init__(self) -> None:
        self.written: list[bytes] = []

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        self.written.append(b"read")
        return ANSWER

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self.written.append(buffer)

    def close(self) -> None:
        pass

    def get_extra_info(self, info: str) -> Any:
        return None


class Watched(OneWrite):
    """Refuses to be read while something is put by."""

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        assert not self._held, "the server waits for what lies here"
        return super().read(max_bytes, timeout)


@pytest.mark.parametrize("body", [b"", b"{}"])
def test_what_is_put_by_goes_out_at_the_end_of_the_request(body: bytes) -> None:
    wire = Wire()
    connection = httpcore.HTTP11Connection(httpcore.Origin(b"http", b"localhost", 80), Watched(wire))
    headers = [("Host", "localhost"), ("Content-Length", str(len(body)))]
    answer = connection.handle_request(httpcore.Request("POST", "http://localhost/", headers=headers, content=body))
    assert answer.status == 200
    answer.read()
    first, *rest = wire.written
    assert first.startswith(b"POST / ")
    assert first.endswith(b"\r\n\r\n" + body)
    assert rest[0] == b"read"


def test_much_is_not_put_by() -> None:
    wire = Wire()
    stream = OneWrite(wire)
    stream.write(b"x" * (MUCH - 1))
    assert wire.written == []
    stream.write(b"x")
    assert wire.written == [b"x" * MUCH]
