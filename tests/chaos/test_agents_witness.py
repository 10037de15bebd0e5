"""What stands between a program and the gateway sees each request, how long it took and how it ended."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from chaos.agents.witness import standing_by
from tests.support import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

STREAM = b'data: {"choices":[]}\n\n'


class _Gateway(ThreadingHTTPServer):
    daemon_threads = False
    block_on_close = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.go_on = threading.Event()
        self.asked: list[tuple[str, str | None, bytes]] = []


class _Handler(BaseHTTPRequestHandler):
    server: _Gateway

    def do_GET(self) -> None:
        self.do_POST()

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        self.server.asked.append((self.path, self.headers.get("authorization"), body))
        self.close_connection = True
        what = body.decode() or "plain"
        self.send_response(503 if what == "refused" else 200)
        self.send_header("content-type", "application/json" if what in ("plain", "refused") else "text/event-stream")
        self.end_headers()
        try:
            if what in ("plain", "refused"):
                self.wfile.write(b'{"said": "%s"}' % what.encode())
                return
            self.wfile.write(STREAM)
            self.server.go_on.wait(60)
            self.wfile.write(STREAM)
            while what == "endless":  # until nobody reads it any more
                self.wfile.write(STREAM)
            if what == "stream":
                self.wfile.write(b"data: [DONE]\n\n")
        except OSError:
            pass

    def log_message(self, *_: object) -> None:
        """Nothing."""


@contextmanager
def serving() -> Iterator[_Gateway]:
    server = _Gateway()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.go_on.set()
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.mark.parametrize(
    ("what", "outcome"),
    [("plain", "complete"), ("stream", "complete"), ("cut", "interrupted"), ("refused", "failed"), ("endless", "left")],
)
def test_each_request_is_seen_with_its_end(what: str, outcome: str) -> None:
    told: list[dict[str, Any]] = []
    with (
        serving() as gateway,
        standing_by(f"http://127.0.0.1:{gateway.server_address[1]}", lambda **one: told.append(one)) as url,
    ):
        headers = {"authorization": "Bearer none"}
        with httpx.stream(
            "POST", f"{url}/v1/chat/completions?a=b", content=what, headers=headers, timeout=30
        ) as answer:
            pieces = answer.iter_raw()
            first = next(pieces)
            assert told == [] or what in ("plain", "refused")  # it is not over
            gateway.go_on.set()
            if what != "endless":
                whole = b"".join([first, *pieces])
                assert answer.status_code == (503 if what == "refused" else 200)
                assert whole.endswith(b"[DONE]\n\n") == (what == "stream")
        wait_until(lambda: told, within=30, what="it is told")
        assert gateway.asked == [("/v1/chat/completions?a=b", "Bearer none", what.encode())]
    (one,) = told
    assert (one["role"], one["outcome"], one["ended"] > one["began"]) == ("chat", outcome, True)
    assert ("503" in one["why"]) == (what == "refused")


def test_a_gateway_that_is_not_there_is_a_failed_request() -> None:
    told: list[dict[str, Any]] = []
    with serving() as gateway:
        nobody = f"http://127.0.0.1:{gateway.server_address[1]}"
    with standing_by(nobody, lambda **one: told.append(one)) as url, pytest.raises(httpx.HTTPError):
        httpx.post(f"{url}/v1/embeddings", content="x", timeout=30)
    assert [(one["role"], one["outcome"]) for one in told] == [("embed", "failed")]
    assert "ConnectError" in told[0]["why"]


def test_what_is_no_request_for_work_is_passed_on_and_not_told_of() -> None:
    told: list[dict[str, Any]] = []
    with (
        serving() as gateway,
        standing_by(f"http://127.0.0.1:{gateway.server_address[1]}", lambda **one: told.append(one)) as url,
    ):
        assert httpx.get(f"{url}/v1/models", timeout=30).json() == {"said": "plain"}
    assert told == []
