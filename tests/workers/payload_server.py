"""A web server for payloads that can be as unhelpful as real ones are."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


class PayloadServer(ThreadingHTTPServer):
    """Serves `content` at every path. `cut_after`: bytes after which each of the next `cuts` answers breaks off."""

    daemon_threads = False
    block_on_close = True

    def __init__(self, content: bytes) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.content, self.etag, self.ranges = content, '"one"', True
        self.cut_after, self.cuts, self.status = 0, 0, 0
        self.type, self.announces = "application/octet-stream", True
        self.page, self.pages = b"", 0
        """What is served in place of the content, with status 200, and at how many of the next requests: a captive portal."""
        self.silent = threading.Event()
        """Set: the next requests are not answered before `stall` is."""
        self.stall = threading.Event()
        """Cleared by `stall_after`: the answer waits there until it is set."""
        self.stall.set()
        self.stalled = threading.Event()
        self.stall_after = 0
        self.asked: list[str] = []
        """The Range of each request, "" for none."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/model.gguf"


class _Handler(BaseHTTPRequestHandler):
    server: PayloadServer

    def do_GET(self) -> None:
        server, asked = self.server, self.headers.get("range", "")
        server.asked.append(asked)
        if server.silent.is_set():
            server.stalled.set()
            server.stall.wait(60)
            self.close_connection = True
            return
        if server.pages:
            server.pages -= 1
            self.send_response(200)
            self.send_header("content-type", server.type)
            if server.announces:
                self.send_header("content-length", str(len(server.page)))
            self.end_headers()
            self.wfile.write(server.page)
            self.close_connection = True
            return
        if server.status:
            self.send_error(server.status)
            return
        content, etag = server.content, server.etag
        fresh = self.headers.get("if-range", etag) == etag
        start = int(asked.removeprefix("bytes=").partition("-")[0]) if asked and server.ranges and fresh else 0
        if start > len(content):
            self.send_error(416)
            return
        body = content[start:]
        self.send_response(206 if start else 200)
        if start:
            self.send_header("content-range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.send_header("content-type", server.type)
        if etag:
            self.send_header("etag", etag)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        if server.cuts:
            server.cuts -= 1
            body = body[: server.cut_after]
        try:
            if server.stall_after and not server.stall.is_set():
                self.wfile.write(body[: server.stall_after])
                self.wfile.flush()
                body = body[server.stall_after :]
                server.stalled.set()
                server.stall.wait(60)
            self.wfile.write(body)
        except OSError:
            pass  # whoever asked was killed
        self.close_connection = True

    def log_message(self, *_: object) -> None:
        """Nothing."""


@contextmanager
def serving(content: bytes) -> Iterator[PayloadServer]:
    """Until the end of the block."""
    server = PayloadServer(content)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.stall.set()
        server.shutdown()
        server.server_close()
        thread.join()
