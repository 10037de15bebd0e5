"""Stands between a foreign program and the gateway, and sees each of its requests: when it came, when its answer was over, how.

What such a program says of itself is not gone by, and that it runs proves no request: it may be reading files all the while.
"""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Final

import httpx

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Tell = Callable[..., None]
    """role, began, ended, outcome, why: as chaos.agents.seen.Request has them."""

ROLES: Final = {"/chat/completions": "chat", "/completions": "chat", "/embeddings": "embed"}
"""By the end of a path. What else is asked (the list of models) is passed on and not told of."""
PASSED: Final = ("authorization", "content-type", "accept")
SILENCE: Final = (
    600.0  # budget: between two bytes of an answer; a gateway that holds a stream says something every few seconds
)
LAST_WORDS: Final = b"data: [DONE]"
KEPT: Final = 64
"""Bytes of an answer's end that are looked at for its last words."""


class _Handler(BaseHTTPRequestHandler):
    """HTTP/1.0: each answer ends with its connection."""

    server: Witness

    def do_GET(self) -> None:
        self._pass_on()

    def do_POST(self) -> None:
        self._pass_on()

    def _pass_on(self) -> None:
        began = time.monotonic()
        path = self.path.partition("?")[0]
        role = next((role for end, role in ROLES.items() if path.endswith(end)), "")
        outcome, why = "failed", ""
        try:
            outcome, why = self._exchange()
        except httpx.HTTPError as error:
            why = f"{type(error).__name__}: {error}"
        except OSError:  # whoever asked is gone, which is its right
            outcome = "left"
        finally:
            self.close_connection = True
            if role:
                self.server.tell(role=role, began=began, ended=time.monotonic(), outcome=outcome, why=why)

    def _exchange(self) -> tuple[str, str]:
        """Raises httpx.HTTPError for what the gateway broke off, OSError where nobody reads any more."""
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        headers = {name: self.headers[name] for name in PASSED if name in self.headers}
        with self.server.client.stream(self.command, self.path, content=body, headers=headers) as answer:
            self.send_response(answer.status_code)
            for name in ("content-type", "retry-after"):
                if name in answer.headers:
                    self.send_header(name, answer.headers[name])
            self.end_headers()
            end = b""
            for piece in answer.iter_bytes():
                self.wfile.write(piece)
                self.wfile.flush()
                end = (end + piece)[-KEPT:]
            if answer.is_error:
                return "failed", f"status {answer.status_code}: {end.decode('utf-8', 'replace')}"
            is_stream = answer.headers.get("content-type", "").startswith("text/event-stream")
            if is_stream and not end.rstrip().endswith(LAST_WORDS):
                return "interrupted", "a stream without its last words"
        return "complete", ""

    def log_message(self, *_: Any) -> None:
        """Nothing: what there is to say is told."""


class Witness(ThreadingHTTPServer):
    """Listens on a port of its own, on loopback."""

    daemon_threads = True

    def __init__(self, gateway: str, tell: Tell) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.tell = tell
        self.client = httpx.Client(base_url=gateway, timeout=SILENCE, trust_env=False)

    @property
    def url(self) -> str:
        """To be asked in the gateway's place."""
        return f"http://127.0.0.1:{self.server_address[1]}"


@contextmanager
def standing_by(gateway: str, tell: Tell) -> Iterator[str]:
    """The URL to give to the program, until the end of the block."""
    with Witness(gateway, tell) as witness:
        thread = threading.Thread(target=witness.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield witness.url
        finally:
            witness.shutdown()
            witness.client.close()
