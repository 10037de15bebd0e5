"""What passes through, and how: bytes, headers, framing, names, errors."""

from __future__ import annotations

import http.client
import json
import socket
import time
import zlib
from typing import TYPE_CHECKING

import pytest

from tests.proxy.rig import JSON, all_at_once, in_thread
from tests.support import wait_until

if TYPE_CHECKING:
    from tests.proxy.rig import Proxy, Rig

pytestmark = pytest.mark.process


def echo(proxy: Proxy, path: str = "/upstream/a/echo", **kwargs: object) -> dict[str, object]:
    """What the fake says it received."""
    answer = proxy.request("POST", path, **kwargs)  # type: ignore[arg-type]
    assert answer.status == 200, answer
    said: dict[str, object] = answer.json()
    return said


def raw(proxy: Proxy, data: bytes, *, until: bytes | None = None) -> bytes:
    """Send bytes as they are; what comes back until `until` or the end."""
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=20) as sock:
        sock.sendall(data)
        received = b""
        while until is None or until not in received:
            piece = sock.recv(65536)
            if not piece:
                break
            received += piece
        return received


def test_large_bodies_pass_unchanged_in_both_framings(rig: Rig) -> None:
    proxy = rig.start(rig.model("a"))
    body = bytes(range(256)) * 8192  # 2 MiB
    said = echo(proxy, body=body)
    assert (said["bytes"], said["crc32"]) == (len(body), zlib.crc32(body))
    pieces = [body[i : i + 100_000] for i in range(0, len(body), 100_000)]
    connection = http.client.HTTPConnection("127.0.0.1", proxy.port, timeout=20)
    try:
        connection.request("POST", "/upstream/a/echo", iter(pieces), encode_chunked=True)
        said = json.load(connection.getresponse())
    finally:
        connection.close()
    assert (said["bytes"], said["crc32"]) == (len(body), zlib.crc32(body))


def test_the_json_body_reaches_the_server_byte_for_byte(rig: Rig) -> None:
    a = rig.model("a")
    proxy = rig.start(a)
    body = b'{ "b":1.50,\n "model" : "a","prompt":"\\u00e4 \xc3\xa4", "max_tokens":2}'
    plain = proxy.request("POST", "/v1/completions", body, JSON)
    assert plain.status == 200
    # /v/x is /x to the server, so this reaches its echo with the model named in the body
    routed = proxy.request("POST", "/v/rerank", body, JSON)
    assert routed.status == 200
    said = echo(proxy, body=body)
    assert said["crc32"] == zlib.crc32(body)


def test_one_connection_serves_many_requests(rig: Rig) -> None:
    proxy = rig.start(rig.model("a"))
    connection = http.client.HTTPConnection("127.0.0.1", proxy.port, timeout=20)
    try:
        local = None
        for number in range(20):
            body = json.dumps({"model": "a" if number % 3 else "nope", "prompt": "x", "stream": number % 2 == 0})
            connection.request("POST", "/v1/completions", body, JSON)
            response = connection.getresponse()
            response.read()
            assert response.status == (200 if number % 3 else 404)
            assert connection.sock is not None
            local = local or connection.sock.getsockname()
            assert connection.sock.getsockname() == local
    finally:
        connection.close()


def test_pipelined_requests_are_answered_in_order(rig: Rig) -> None:
    proxy = rig.start(rig.model("a"))
    one = b"GET /upstream/a/echo?n=%d HTTP/1.1\r\nHost: x\r\n\r\n"
    proxy.ask("a")
    data = raw(proxy, one % 1 + one % 2 + b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    assert data.count(b"HTTP/1.1 200") == 3
    assert data.index(b"n=1") < data.index(b"n=2")
    assert data.endswith(b"OK")


def test_head_has_the_headers_and_no_body(rig: Rig) -> None:
    proxy = rig.start(rig.model("a"))
    proxy.ask("a")
    for path in ("/health", "/upstream/a/props"):
        head, get = proxy.request("HEAD", path), proxy.get(path)
        assert (head.status, head.body) == (200, b"")
        assert get.body
        assert head.headers["Content-Type"] == get.headers["Content-Type"]


def test_expect_continue_is_answered(rig: Rig) -> None:
    proxy = rig.start(rig.model("a"))
    proxy.ask("a")
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=5) as sock:
        sock.sendall(b"POST /upstream/a/echo HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n")
        assert sock.recv(4096).startswith(b"HTTP/1.1 100")
        sock.sendall(b"abc")
        received = b""
        while b'"bytes": 3' not in received:
            piece = sock.recv(65536)
            assert piece, received
            received += piece


def test_http_1_0_gets_its_stream_to_the_end_of_the_connection(rig: Rig) -> None:
    proxy = rig.start(rig.model("a"))
    body = b'{"model":"a","stream":true,"max_tokens":2}'
    data = raw(
        proxy,
        b"POST /v1/completions HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
        % (len(body), body),
    )
    assert b"chunked" not in data
    assert data.endswith(b"data: [DONE]\n\n")


def test_headers_pass_in_both_directions(rig: Rig) -> None:
    proxy = rig.start(rig.model("a"))
    sent = {
        "X-Request-Id": "r1",
        "Authorization": "Bearer k",
        "Connection": "X-Drop, close",
        "X-Drop": "1",
        "Host": "h",
    }
    answer = proxy.request("POST", "/upstream/a/echo", b"{}", sent)
    assert answer.headers["X-Fake-Nonce"]
    got = answer.json()["headers"]
    assert got["x-request-id"] == "r1"
    assert got["authorization"] == "Bearer k"
    assert got["host"] == "h"
    assert got["x-forwarded-for"] == "127.0.0.1"
    assert "x-drop" not in got


def test_streams_pass_as_they_come(rig: Rig) -> None:
    proxy = rig.start(rig.model("a", rate=4))
    proxy.ask("a", max_tokens=0)
    with proxy.stream("a", max_tokens=8) as response:
        arrivals = [time.monotonic() for line in response if line.startswith(b"data:")]
    assert arrivals[7] - arrivals[0] > 0.5, "all at once: somebody buffers"
    assert response.headers["X-Accel-Buffering"] == "no"


def test_sixteen_streams_at_once_are_all_whole(rig: Rig) -> None:
    proxy = rig.start(rig.model("a", {"concurrencyLimit": 16}, rate=50))

    def stream(number: int) -> bytes:
        with proxy.stream("a", prompt=f"p{number}", max_tokens=40) as response:
            return response.read()

    bodies = all_at_once(16, stream)
    assert all(body.count(b"data:") == 42 and body.endswith(b"data: [DONE]\n\n") for body in bodies)
    assert len(set(bodies)) == 16


@pytest.mark.parametrize("asked", ["a", "nickname", "org/nick"])
def test_a_model_answers_to_its_id_and_aliases(rig: Rig, asked: str) -> None:
    a = rig.model("a", {"aliases": ["nickname", "org/nick"]})
    proxy = rig.start(a)
    assert proxy.ask(asked).status == 200
    assert proxy.states() == {"a": "ready"}
    assert proxy.get(f"/upstream/{asked}/health").status == 200


def test_use_model_name_renames_in_the_body(rig: Rig) -> None:
    a = rig.model("a", {"useModelName": "inner"})
    proxy = rig.start(a)
    assert proxy.ask("a").json()["model"] == "inner"
    assert proxy.ask("inner").status == 404


def test_models_are_found_in_queries_and_forms(rig: Rig) -> None:
    proxy = rig.start(rig.model("a"))
    assert proxy.get("/props?model=a").status == 200
    form = b'--B\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\n\x00\xff\r\n'
    form += b'--B\r\nContent-Disposition: form-data; name="model"\r\n\r\na\r\n--B--\r\n'
    kind = {"Content-Type": "multipart/form-data; boundary=B"}
    found = proxy.request("POST", "/v1/audio/transcriptions", form, kind)
    missing = proxy.request("POST", "/v1/audio/transcriptions", form.replace(b'"model"', b'"mode"'), kind)
    assert (found.status, missing.status) == (400, 404)  # 400 is the fake's own: it knows no forms
    assert b"llama-swap" not in found.body


ERRORS = [
    ("POST", "/v1/completions", b'{"model":"b"}', 404, "no router for requested model"),
    ("POST", "/v1/completions", b'{"prompt":"x"}', 404, "no model id could be identified"),
    ("POST", "/v1/completions", b'{"model":', 404, "no model id could be identified"),
    ("POST", "/v1/completions", b"", 404, "no model id could be identified"),
    ("GET", "/upstream/b/health", None, 404, "model not found"),
    ("GET", "/logs/stream/b", None, 400, "invalid logger. Use 'proxy', 'upstream' or a model's ID"),
    ("GET", "/upstream/a/favicon.ico", None, 409, "model a is not loaded; path matches upstream.ignorePaths"),
]


def test_errors_say_what_llama_swap_says(rig: Rig) -> None:
    proxy = rig.start(rig.model("a"))
    for method, path, body, status, message in ERRORS:
        answer = proxy.request(method, path, body, JSON)
        assert (answer.status, answer.message) == (status, message)
        assert answer.json()["src"] == "llama-swap"
        assert answer.headers["Content-Type"] == "application/json"
        text = proxy.request(method, path, body, JSON | {"Accept": "text/plain"})
        assert text.body.decode() == f"llama-swap: {message}"
    assert proxy.states() == {}


def test_a_wrong_method_is_405_and_an_unknown_path_404(rig: Rig) -> None:
    proxy = rig.start(rig.model("a"))
    assert proxy.get("/api/models/unload").status == 405
    assert proxy.get("/v1/completions").status == 405
    assert proxy.request("POST", "/running").status == 405
    assert proxy.get("/nowhere").status == 404


def test_upstream_without_a_slash_redirects(rig: Rig) -> None:
    proxy = rig.start(rig.model("a"))
    answer = proxy.get("/upstream/a?x=1")
    assert (answer.status, answer.headers["Location"]) == (301, "/upstream/a/?x=1")
    assert proxy.request("POST", "/upstream/a", b"").status == 308
    assert proxy.states() == {}


def test_upstream_keeps_path_and_query_as_sent(rig: Rig) -> None:
    proxy = rig.start(rig.model("a"))
    assert echo(proxy, "/upstream/a/echo?x=%2F&y=a+b")["target"] == "/echo?x=%2F&y=a+b"
    assert proxy.get("/upstream/a/tok%65nize").status == 404


def test_the_lists_of_models(rig: Rig) -> None:
    a = rig.model("a", {"aliases": ["nick"], "name": "Model A", "description": "first"})
    proxy = rig.start(a, rig.model("b", {"unlisted": True}), groups={"g": {"swap": False, "members": ["a", "b"]}})
    before = proxy.get("/v1/models").json()
    assert before["object"] == "list"
    (row,) = before["data"]
    assert row.pop("created") > 0
    assert row == {
        "id": "a",
        "object": "model",
        "owned_by": "llama-swap",
        "name": "Model A",
        "description": "first",
        "meta": {"llamaswap": {"type": "model", "aliases": ["nick"]}},
        "status": {"value": "unloaded"},
    }
    assert proxy.ask("b").status == proxy.ask("a").status == 200
    assert proxy.get("/models").json()["data"][0]["status"] == {"value": "loaded"}
    running = proxy.get("/running").json()["running"]
    assert running[0] == {
        "model": "a",
        "state": "ready",
        "cmd": a.config["cmd"],
        "proxy": a.config["proxy"],
        "ttl": 0,
        "name": "Model A",
        "description": "first",
    }
    assert [row["model"] for row in running] == ["a", "b"]
    assert set(proxy.get("/api/version").json()) == {"build_date", "commit", "version"}


def test_a_client_that_closes_its_sending_side_has_left(rig: Rig) -> None:
    a = rig.model("a", rate=20)
    proxy = rig.start(a)
    proxy.ask("a", max_tokens=0)
    body = b'{"model":"a","max_tokens":500}'
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=20) as sock:
        head = (
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
        )
        sock.sendall(head % len(body) + body)
        wait_until(lambda: a.props()["active"] == 1)
        sock.shutdown(socket.SHUT_WR)
        wait_until(lambda: a.props()["cancels"] == 1)


def test_a_client_that_does_not_read_holds_up_nobody_else(rig: Rig) -> None:
    a = rig.model("a")
    proxy = rig.start(a)
    with proxy.stream("a", max_tokens=300_000) as response:
        response.readline()
        wait_until(lambda: proxy.ask("a").status == 200)
    wait_until(lambda: a.props()["active"] == 0)


def test_response_header_timeout_is_an_empty_502(rig: Rig) -> None:
    a = rig.model("a", {"timeouts": {"responseHeader": 1}}, think=30)
    proxy = rig.start(a)
    answer = proxy.ask("a")
    assert (answer.status, answer.body) == (502, b"")
    assert proxy.states() == {"a": "ready"}
    wait_until(lambda: a.props()["active"] == 0)


@pytest.mark.long
@pytest.mark.parametrize("path", ["/v1/completions", "/upstream/a/v1/completions"])
def test_the_limit_counts_waiting_and_running_requests(rig: Rig, path: str) -> None:
    a = rig.model("a", {"concurrencyLimit": 3}, load=2)
    proxy = rig.start(a)
    cold = all_at_once(5, lambda i: proxy.ask("a", path=path, id=str(i)))
    assert sorted(answer.status for answer in cold) == [200, 200, 200, 429, 429]
    refused = next(answer for answer in cold if answer.status == 429)
    assert refused.headers["Retry-After"] == "1"
    assert refused.message == "Too many requests"
    assert ("src" in refused.json()) is proxy.traits.limit_error_names_source
    assert len(a.receipts) == 3


@pytest.mark.long
def test_the_default_limit_is_ten(rig: Rig) -> None:
    a = rig.model("a", load=2)  # long enough for all of them to have come, on a busy machine too
    proxy = rig.start(a)
    answers = all_at_once(12, lambda i: proxy.ask("a", id=str(i)))
    assert sorted(answer.status for answer in answers) == [200] * 10 + [429] * 2


@pytest.mark.long
def test_a_client_that_stops_waiting_gives_its_place_back(rig: Rig) -> None:
    a = rig.model("a", {"concurrencyLimit": 1}, load=1.5)
    proxy = rig.start(a)
    with pytest.raises(TimeoutError), proxy.stream("a", timeout=0.3) as response:
        response.read()
    assert wait_until(lambda: proxy.ask("a").status == 200)


def test_no_request_is_lost_when_many_clients_come_and_go(rig: Rig) -> None:
    a = rig.model("a", {"concurrencyLimit": 50}, rate=100)
    proxy = rig.start(a)

    def client(number: int) -> bool:
        if number % 3 == 0:
            with proxy.stream("a", max_tokens=500) as response:
                response.readline()
            return True
        return proxy.ask("a", max_tokens=5, id=str(number)).status == 200

    assert all(all_at_once(24, client))
    wait_until(lambda: a.props()["active"] == 0)
    with in_thread(lambda: proxy.ask("a")) as last:
        assert last().status == 200
    assert len(a.spawns) == 1
