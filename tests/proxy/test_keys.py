"""apiKeys: what is open, what opens the rest."""

from __future__ import annotations

import base64
import socket
from typing import TYPE_CHECKING

import pytest

from tests.proxy.rig import JSON, request

if TYPE_CHECKING:
    from tests.proxy.rig import Rig

pytestmark = pytest.mark.process

CLOSED = ["/running", "/v1/models", "/models", "/unload", "/logs", "/api/version", "/api/events", "/upstream/a/health"]


def test_only_health_is_open(rig: Rig) -> None:
    proxy = rig.start(rig.model("a"), key="secret")
    for path in ("/health", "/wol-health"):
        assert request(proxy.port, "GET", path).status == 200
    for path in CLOSED:
        answer = request(proxy.port, "GET", path)
        assert answer.status == 401, path
        assert answer.message == "unauthorized: invalid or missing API key"
        assert answer.headers["WWW-Authenticate"] == 'Basic realm="llama-swap"'
    assert request(proxy.port, "POST", "/v1/completions", b'{"model":"a"}', JSON).status == 401
    assert proxy.states() == {}


def test_three_ways_to_offer_a_key(rig: Rig) -> None:
    proxy = rig.start(rig.model("a"), apiKeys=["one", "two"])
    basic = base64.b64encode(b"anybody:two").decode()
    for headers in (
        {"Authorization": "Bearer one"},
        {"authorization": "bearer two"},
        {"x-api-key": "one"},
        {"Authorization": f"Basic {basic}"},
    ):
        assert request(proxy.port, "GET", "/running", headers=headers).status == 200, headers
    for headers in (
        {"Authorization": "Bearer three"},
        {"Authorization": "one"},
        {"x-api-key": ""},
        {"Authorization": "Basic !!!"},
        {"Authorization": "Bearer three", "x-api-key": "one"},
    ):
        assert request(proxy.port, "GET", "/running", headers=headers).status == 401, headers


def test_the_key_reaches_the_server_and_its_own_check(rig: Rig) -> None:
    a = rig.model("a")
    a.config["cmd"] += " --api-key secret"
    proxy = rig.start(a, key="secret")
    assert proxy.ask("a").status == 200
    wrong = rig.model("b")
    wrong.config["cmd"] += " --api-key other"
    assert rig.start(wrong, key="secret").ask("b").status == 401


def test_of_who_has_no_key_no_body_is_read_and_he_is_told_all_the_same(built_in: Rig) -> None:
    proxy = built_in.start(built_in.model("a"), key="secret")
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=60) as plain:
        # Far more than the limit, and it is never sent.
        plain.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 999999999999\r\n\r\n{")
        assert plain.recv(65536).startswith(b"HTTP/1.1 401")
    # Sent in full, it does not cost its sender the answer.
    for path, status in (("/v1/completions", 401), ("/health", 200)):
        assert request(proxy.port, "GET", path, bytes(8 << 20), JSON).status == status
