"""`POST /api/shutdown`: who may, what is answered, and that the answer is whole before anything stops."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from supervisor.loopback import is_loopback_authority, is_loopback_host, is_loopback_url
from supervisor.shutdown_route import ShutdownRoute, stop_this_process

if TYPE_CHECKING:
    from collections.abc import Callable

BASE = "http://127.0.0.1:8080"
RIGHT = {"Authorization": "Bearer t0ken"}


class Stops:
    """Counts, and notes what the client had by then."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> None:
        self.count += 1


async def ask(app: Any, method: str = "POST", path: str = "/api/shutdown", **more: Any) -> httpx.Response:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=BASE) as client:
        return await client.request(method, path, **more)


@pytest.mark.trio
async def test_the_token_stops_it() -> None:
    stops = Stops()
    answer = await ask(ShutdownRoute("t0ken", stop=stops), headers=RIGHT)
    assert (answer.status_code, answer.json(), stops.count) == (202, {"stopping": True}, 1)
    assert answer.headers["content-length"] == str(len(answer.content))


@pytest.mark.trio
async def test_it_stops_once_however_often_it_is_asked() -> None:
    stops = Stops()
    app = ShutdownRoute("t0ken", stop=stops)
    assert [(await ask(app, headers=RIGHT)).status_code for _ in range(3)] == [202] * 3
    assert stops.count == 1


@pytest.mark.trio
async def test_a_stop_that_is_awaitable_is_awaited() -> None:
    done: list[str] = []

    async def stop() -> None:
        done.append("stopped")

    await ask(ShutdownRoute("t0ken", stop=stop), headers=RIGHT)
    assert done == ["stopped"]


@pytest.mark.trio
@pytest.mark.parametrize(
    "given", ["", "Bearer", "Bearer ", "Bearer wrong", "Bearer t0ken2", "Bearer t0ke", "Basic t0ken", "t0ken"]
)
async def test_without_the_token_nothing_stops(given: str) -> None:
    stops = Stops()
    answer = await ask(ShutdownRoute("t0ken", stop=stops), headers={"Authorization": given} if given else {})
    assert (answer.status_code, stops.count) == (401, 0)
    assert answer.headers["www-authenticate"] == "Bearer"


@pytest.mark.trio
async def test_two_tokens_are_none() -> None:
    stops = Stops()
    both = [("Authorization", "Bearer wrong"), ("Authorization", "Bearer t0ken")]
    assert (await ask(ShutdownRoute("t0ken", stop=stops), headers=both)).status_code == 401
    assert stops.count == 0


@pytest.mark.trio
async def test_the_schemes_name_is_written_as_one_likes() -> None:
    stops = Stops()
    answer = await ask(ShutdownRoute("t0ken", stop=stops), headers={"Authorization": "bearer  t0ken"})
    assert (answer.status_code, stops.count) == (202, 1)


@pytest.mark.trio
@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "DELETE", "OPTIONS"])
async def test_only_post(method: str) -> None:
    stops = Stops()
    answer = await ask(ShutdownRoute("t0ken", stop=stops), method, headers=RIGHT)
    assert (answer.status_code, answer.headers["allow"], stops.count) == (405, "POST", 0)


@pytest.mark.trio
@pytest.mark.parametrize(
    "extra",
    [
        {"Host": "rebound.example.org:8080"},
        {"Host": "127.0.0.1.example.org"},
        {"Host": "10.0.0.1:8080"},
        {"Host": "user@127.0.0.1"},
        {"Host": ""},
        {"Origin": "https://example.org"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1.example.org"},
    ],
)
async def test_a_browsers_page_cannot_stop_it_even_with_the_token(extra: dict[str, str]) -> None:
    stops = Stops()
    answer = await ask(ShutdownRoute("t0ken", stop=stops), headers=RIGHT | extra)
    assert (answer.status_code, stops.count) == (403, 0)


@pytest.mark.trio
@pytest.mark.parametrize("extra", [{"Origin": "http://localhost:3000"}, {"Host": "[::1]:8080"}, {"Host": "localhost"}])
async def test_this_machines_own_page_may(extra: dict[str, str]) -> None:
    assert (await ask(ShutdownRoute("t0ken", stop=Stops()), headers=RIGHT | extra)).status_code == 202


@pytest.mark.trio
async def test_every_other_path_is_the_applications_or_nobodys() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": scope["path"].encode()})

    stops = Stops()
    around = ShutdownRoute("t0ken", stop=stops, app=app)
    assert (await ask(around, path="/api/shutdown/not", headers=RIGHT)).text == "/api/shutdown/not"
    assert (await ask(around, path="/", headers=RIGHT)).text == "/"
    assert (await ask(around, headers=RIGHT)).status_code == 202
    assert (await ask(ShutdownRoute("t0ken", stop=stops), path="/", headers=RIGHT)).status_code == 404
    assert stops.count == 1


@pytest.mark.trio
@pytest.mark.parametrize(
    ("root", "path", "is_ours"),
    [
        ("/api", "/shutdown", True),  # what it is mounted under is cut off, as ASGI had it
        ("/api", "/api/shutdown", True),  # and as it has it now
        ("/app", "/app/api/shutdown", True),
        ("/api/shutdown", "/", True),
        ("/app", "/shutdown", False),
        ("", "/", False),
    ],
)
async def test_mounted_by_either_reading_of_asgi(root: str, path: str, is_ours: bool) -> None:
    stops, sent = Stops(), []
    headers = [(b"host", b"127.0.0.1"), (b"authorization", b"Bearer t0ken")]
    scope = {"type": "http", "method": "POST", "path": path, "root_path": root, "headers": headers}

    async def receive() -> dict[str, Any]:
        raise AssertionError("its body is nobody's business")

    async def send(message: Any) -> None:
        sent.append(message)

    await ShutdownRoute("t0ken", stop=stops)(scope, receive, send)
    assert sent[0]["status"] == (202 if is_ours else 404)
    assert stops.count == is_ours


@pytest.mark.trio
@pytest.mark.parametrize("breaks", [False, True])
async def test_the_answer_is_whole_before_anything_stops(breaks: bool) -> None:
    order: list[str] = []

    async def send(message: Any) -> None:
        order.append(message["type"])
        if breaks:
            raise BrokenPipeError

    async def receive() -> dict[str, Any]:
        return {"type": "http.request"}

    headers = [(b"host", b"127.0.0.1"), (b"authorization", b"Bearer t0ken")]
    scope = {"type": "http", "method": "POST", "path": "/api/shutdown", "headers": headers}
    await ShutdownRoute("t0ken", stop=lambda: order.append("stop"))(scope, receive, send)
    assert order == (
        ["http.response.start", "stop"] if breaks else ["http.response.start", "http.response.body", "stop"]
    )


@pytest.mark.trio
async def test_alone_it_lives_and_closes_sockets() -> None:
    sent: list[str] = []
    events = iter(["lifespan.startup", "lifespan.shutdown"])

    async def receive() -> dict[str, Any]:
        return {"type": next(events)}

    async def send(message: Any) -> None:
        sent.append(message["type"])

    app = ShutdownRoute("t0ken", stop=Stops())
    await app({"type": "lifespan"}, receive, send)
    await app({"type": "websocket", "path": "/"}, receive, send)
    assert sent == ["lifespan.startup.complete", "lifespan.shutdown.complete", "websocket.close"]


def test_a_route_without_a_token_is_none() -> None:
    with pytest.raises(ValueError, match="without a token"):
        ShutdownRoute("")


def test_the_default_runs_the_handler_of_sigterm_also_from_another_thread() -> None:
    heard = threading.Event()
    before = signal.signal(signal.SIGTERM, lambda *_: heard.set())
    try:
        threading.Thread(target=stop_this_process).start()
        assert heard.wait(10)
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.process
def test_a_main_thread_that_waits_hears_it_at_once() -> None:
    """raise(3) would signal the calling thread, and this program would never end."""
    code = (
        "import signal, sys, threading\n"
        "from supervisor.shutdown_route import stop_this_process\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))\n"
        "threading.Timer(0.1, stop_this_process).start()\n"
        "threading.Event().wait()\n"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=30, check=False).returncode == 5


@pytest.mark.parametrize(
    ("judge", "text", "is_loopback"),
    [
        (is_loopback_host, "127.0.0.1", True),
        (is_loopback_host, "127.9.9.9", True),
        (is_loopback_host, "::1", True),
        (is_loopback_host, "LocalHost", True),
        (is_loopback_host, "localhost.example.org", False),
        (is_loopback_host, "0.0.0.0", False),
        (is_loopback_host, "127.1", False),
        (is_loopback_host, "", False),
        (is_loopback_authority, "127.0.0.1:0", True),
        (is_loopback_authority, "127.0.0.1:", True),
        (is_loopback_authority, "127.0.0.1:x", False),
        (is_loopback_authority, "127.0.0.1/path", False),
        (is_loopback_authority, "127.0.0.1#", False),
        (is_loopback_authority, "[::1", False),
        (is_loopback_url, "http://127.0.0.1:80/base/", True),
        (is_loopback_url, "https://localhost", True),
        (is_loopback_url, "http://127.0.0.1/?x", False),
        (is_loopback_url, "http://[", False),
        (is_loopback_url, "//127.0.0.1", False),
    ],
)
def test_what_this_machine_is(judge: Callable[[str], bool], text: str, is_loopback: bool) -> None:
    assert judge(text) is is_loopback
