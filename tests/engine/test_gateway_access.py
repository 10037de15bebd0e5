"""Who may come in at the gateway of a real keeper, and what its metrics say."""

from __future__ import annotations

import json
import os
import re
import socket
import stat
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest

from supervisor import identity
from supervisor.gateway.server import CONNECTIONS_MOST
from supervisor.identity import Liveness
from tests.engine.kit import Launch
from tests.engine.test_gateway import serving
from tests.support import free_port

if TYPE_CHECKING:
    from tests.engine.place import Place

pytestmark = pytest.mark.process
KEY = "sk-for-this-test-alone-0123456789abcdef"


def keyed(place: Place, **gateway: object) -> str:
    """A place whose gateway takes KEY; its URL to be."""
    path = place.home / "gateway.keys"
    path.touch(0o600)
    path.write_text(KEY + "\n")
    port = free_port()
    place.configure(
        {"chat": (Launch("chat"),)}, gateway={"listen": f"127.0.0.1:{port}", "api_key_file": str(path), **gateway}
    )
    return f"http://127.0.0.1:{port}"


def test_without_the_key_nobody_comes_in_and_it_is_nowhere_to_be_read__ollama_12476(place: Place) -> None:
    url = keyed(place, body_limit_mb=1)
    front = place.member()
    serving(place)
    with httpx.Client(base_url=url, trust_env=False, timeout=30) as client:
        for headers in ({}, {"authorization": "Bearer wrong-0123456789abcdef"}, {"x-api-key": KEY[:-1]}):
            found = client.post("/v1/chat/completions", json={"model": "chat"}, headers=headers)
            assert (found.status_code, found.json()["error"]["code"]) == (401, "invalid_api_key")
        mine = {"authorization": f"Bearer {KEY}"}
        assert client.get("/v1/models", headers=mine).json()["data"][0]["id"] == "chat"
        assert client.get("/v1/models", headers=mine | {"host": "evil.example"}).status_code == 421
        assert client.get("/v1/models", headers=mine | {"origin": "https://evil.example"}).status_code == 403
        assert client.post("/api/models/unload").status_code == 401
        assert client.get("/health").status_code == 200
        large = client.post("/v1/embeddings", content=b"x" * (8 << 20), headers=mine)
        assert (large.status_code, large.json()["error"]["code"]) == (413, "request_too_large")
        pieces = client.post("/v1/embeddings", content=iter([b"x" * (1 << 20)] * 8), headers=mine)
        assert pieces.json()["error"]["code"] == "request_too_large"
    assert front.ask("chat", "hello")

    family = place.family()
    for who in (family.warden, family.keeper, *family.proxies.values(), *family.servers.values()):
        for name in ("cmdline", "environ"):
            assert KEY.encode() not in Path(f"/proc/{who.pid}/{name}").read_bytes(), (who, name)
    readable = [path for path in place.home.rglob("*") if path.is_file() and path.name != "gateway.keys"]
    assert any(path.name == "events.jsonl" for path in readable)
    for path in readable:
        assert KEY.encode() not in path.read_bytes(), path
    assert KEY not in json.dumps(place.snapshot())
    assert KEY not in place.cli("status").stdout + place.cli("doctor").stdout + place.cli("logs", "chat").stdout


def test_another_users_ways_in_are_closed__ra_multiplex_42(place: Place) -> None:
    """That the control socket refuses another uid is tested where one can be had (unit/test_control)."""
    place.configure({"chat": (Launch("chat"),)})
    place.member()
    slot = place.slot
    assert stat.S_IMODE(os.stat(slot.path).st_mode) == 0o700
    assert stat.S_IMODE(os.stat(slot.control_socket).st_mode) == 0o600
    assert stat.S_IMODE(os.stat(slot.group_key("chat")).st_mode) == 0o600
    group = place.group()
    ports = [group["proxy"]["port"], *(server["port"] for server in group["servers"])]
    for port in ports:
        for headers in ({}, {"authorization": "Bearer wrong"}):
            url = f"http://127.0.0.1:{port}/v1/chat/completions"
            found = httpx.post(
                url, json={"model": "chat", "messages": []}, headers=headers, trust_env=False, timeout=30
            )
            assert found.status_code == 401, port


def test_a_key_file_that_others_can_read_keeps_the_gateway_shut_and_the_engine_runs(place: Place) -> None:
    url = keyed(place)
    (place.home / "gateway.keys").chmod(0o644)
    front = place.member()
    found = place.until(lambda: _failed(place), within=60, what="the gateway refuses")
    assert "gateway.keys is open to others (mode 0644)" in found
    assert "chmod 600" in found
    with pytest.raises(httpx.ConnectError):
        httpx.get(url, trust_env=False)
    assert front.ask("chat", "hello")


def _failed(place: Place) -> str:
    found = place.snapshot()["gateway"]
    return str(found["reason"]) if found["state"] == "failed" else ""


@pytest.mark.long
def test_connections_beyond_the_most_are_turned_away_with_a_reason(place: Place) -> None:
    port = free_port()
    place.configure({"chat": (Launch("chat"),)}, gateway={"listen": f"127.0.0.1:{port}"})
    place.member()
    serving(place)
    held: list[socket.socket] = []
    try:
        for _ in range(CONNECTIONS_MOST):
            held.append(socket.create_connection(("127.0.0.1", port)))

        def turned_away() -> bool:
            with socket.create_connection(("127.0.0.1", port)) as one:
                one.settimeout(1)
                try:
                    answer = one.recv(4096)
                except TimeoutError:
                    return False
                return answer.startswith(b"HTTP/1.1 503 ") and b'"code": "too_many_connections"' in answer

        place.until(turned_away, within=60, what="it is full")
    finally:
        for one in held:
            one.close()

    def lets_in() -> bool:
        return httpx.get(f"http://127.0.0.1:{port}/health", trust_env=False, timeout=30).status_code == 200

    place.until(lets_in, within=60, what="there is room again")


@pytest.mark.long
def test_scraping_neither_keeps_a_model_loaded_nor_loads_it__llama_cpp_23096(place: Place) -> None:
    port = free_port()
    place.configure({"chat": (Launch("chat", idle_ttl_s=2),)}, gateway={"listen": f"127.0.0.1:{port}"})
    front = place.member()
    serving(place)
    assert front.ask("chat", "hello")
    server = place.started()[-1]

    def page() -> str:
        found = httpx.get(f"http://127.0.0.1:{port}/metrics", trust_env=False, timeout=30)
        assert found.status_code == 200
        return found.text

    def unloaded() -> bool:
        assert 'queenright_up{group="chat"} 1.0' in page()
        return identity.liveness(server) is Liveness.DEAD

    place.until(unloaded, within=60, what="unloaded, scraped as it is")
    for _ in range(5):
        assert 'queenright_group_state{group="chat",state="running"} 1.0' in page()
    assert len(place.spawns()) == 1
    os.kill(place.group()["proxy"]["pid"], 9)
    place.until(lambda: 'queenright_recovery_seconds_count{group="chat"} 1.0' in page(), within=60, what="recovered")
    assert re.search(r'queenright_restarts_total\{cause="signal",group="chat"\} 1.0', page())
    assert "queenright_members 1.0" in page()


def test_what_cannot_be_read_as_http_gets_a_body__and_who_pipelines_and_leaves_frees_the_server(place: Place) -> None:
    port = free_port()
    place.configure({"chat": (Launch("chat", knobs={"rate": 50}),)}, gateway={"listen": f"127.0.0.1:{port}"})
    place.member()
    url = serving(place)["url"]

    def said(text: bytes) -> tuple[int, str]:
        with socket.create_connection(("127.0.0.1", port), timeout=30) as one:
            one.sendall(text)
            head, _, body = b"".join(iter(lambda: one.recv(65536), b"")).partition(b"\r\n\r\n")
        return int(head.split()[1]), json.loads(body)["error"]["code"]

    assert said(b"how are you\r\n\r\n") == (400, "bad_request")
    assert said(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n") == (400, "bad_request")
    assert said(b"GET / HTTP/1.1\r\n" + b"x: y\r\n" * 300_000) == (431, "head_too_large")
    chat = b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\n"
    assert said(chat + b"transfer-encoding: gzip\r\n\r\n") == (501, "transfer_coding")
    assert said(chat + b"transfer-encoding: chunked\r\n\r\nzz\r\n") == (400, "bad_request")
    ask = b"GET /nowhere HTTP/1.1\r\nhost: 127.0.0.1\r\n"
    assert said(ask + b"connection: upgrade, close\r\nupgrade: h2c\r\n\r\n") == (403, "control_needs_key")
    socket_like = b"connection: upgrade, close\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n\r\n"
    assert said(ask + b"origin: https://evil.example\r\n" + socket_like) == (403, "origin_not_allowed")
    assert said(ask + socket_like) == (403, "control_needs_key")

    before = httpx.get(f"{url}/props").json()["fake"]["cancels"]
    body = json.dumps({"messages": [{"role": "user", "content": "x"}], "max_tokens": 100_000, "stream": True}).encode()
    with socket.create_connection(("127.0.0.1", port), timeout=30) as one:
        one.sendall(chat + b"content-length: %d\r\n\r\n" % len(body) + body + ask + b"\r\n")
        assert one.recv(100).startswith(b"HTTP/1.1 200 ")
    place.until(
        lambda: httpx.get(f"{url}/props").json()["fake"]["cancels"] == before + 1, within=5, what="the server is free"
    )


@pytest.mark.parametrize("gateway", [{}, {"enabled": False}])
def test_a_service_managers_socket_on_which_nothing_is_served_says_so(place: Place, gateway: dict[str, object]) -> None:
    """Beyond loopback without a key, or with the gateway switched off: the socket is the manager's, and stays open."""
    with socket.create_server(("0.0.0.0", 0)) as given:
        url = f"http://127.0.0.1:{given.getsockname()[1]}"
        place.configure({"chat": (Launch("chat"),)}, gateway=gateway or {"listen": "127.0.0.1:11411"})
        words = [
            "bash",
            "-c",
            f'LISTEN_FDS=1 LISTEN_PID=$$ exec "$@" 3<&{given.fileno()}',
            "bash",
            *place.command("run"),
        ]
        run = subprocess.Popen(
            words,
            pass_fds=[given.fileno()],
            env=place.environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            found = httpx.get(f"{url}/v1/models", trust_env=False, timeout=60)
            assert (found.status_code, found.json()["error"]["code"]) == (403, "gateway_off")
            assert place.snapshot()["gateway"]["state"] == "off" if gateway else "failed"
        finally:
            run.terminate()
            run.wait(60)
