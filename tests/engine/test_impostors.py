"""Strangers on our ports: they answer 200, and are never taken for the engine."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest

from tests.engine.kit import Launch
from tests.support import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.engine.place import Place

pytestmark = pytest.mark.process


class Impostor(ThreadingHTTPServer):
    """It answers everything with 200 and counts."""

    daemon_threads = True

    def __init__(self, port: int) -> None:
        self.asked: list[str] = []
        self.connected = 0
        super().__init__(("127.0.0.1", port), Answer)

    def get_request(self) -> Any:
        self.connected += 1
        return super().get_request()


class Answer(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        assert isinstance(self.server, Impostor)
        self.server.asked.append(f"{self.command} {self.path} {self.headers.get('Authorization', '')}")
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    do_POST = do_GET

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def impostor(port: int) -> Iterator[Impostor]:
    """Somebody on this port, as soon as it can be had."""

    def take() -> Impostor | None:
        try:
            return Impostor(port)
        except OSError:
            return None

    server = wait_until(take, within=20, what=f"port {port} is free")
    assert server is not None
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.long
def test_vllm_51275_a_port_that_is_taken_between_choice_and_bind_is_changed_and_not_held_against_the_engine(
    place: Place,
) -> None:
    place.configure({"chat": (Launch("chat", knobs={"bind_delay": 1.5}),)})
    place.front().open(wait=False)
    wait_until(place.spawns, within=30, what="the server is started")
    port = next(server["port"] for server in place.group()["servers"])
    with impostor(port) as thief:
        found = place.wait_state("running")
        (server,) = found["servers"]
        assert server["port"] != port
        assert (found["cause"]["word"], found["cause"]["detail"]) == ("port conflict", str(port))
        front = place.member()
        assert front.ask("chat", "hello")
        assert [asked for asked in thief.asked if "completions" in asked] == []
    assert len(place.spawns()) == 2


@pytest.mark.long
def test_nix_ai_1182_who_answers_on_the_port_of_a_dead_engine_is_never_asked(place: Place) -> None:
    """Whoever has the ports of the generation before, be it an orphan of it: the next one has others."""
    front = place.member()
    assert front.ask("chat", "before")
    keeper = place.family().keeper.pid
    group = place.group()
    ports = {group["proxy"]["port"], group["servers"][0]["port"]}
    os.kill(keeper, signal.SIGSTOP)  # so that they are taken before anything is started again
    try:
        os.kill(group["proxy"]["pid"], signal.SIGKILL)
        first, second = ports
        with impostor(first) as one, impostor(second) as other:
            # It has heard of nothing, and connects anew: what it says, and its key, would be the stranger's.
            held = front.begin("ask", role="chat", prompt="meanwhile", tokens=8)
            wait_until(
                lambda: one.connected + other.connected, within=30, what="the member has connected to the stranger"
            )
            os.kill(keeper, signal.SIGCONT)
            wait_until(lambda: place.group()["generation"] != group["generation"], within=30)
            again = place.wait_state("running")
            assert not ports & {again["proxy"]["port"], again["servers"][0]["port"]}
            assert front.result(held)
            assert front.ask("chat", "hello")
            assert [asked for asked in one.asked + other.asked if "completions" in asked] == []
    finally:
        os.kill(keeper, signal.SIGCONT)
