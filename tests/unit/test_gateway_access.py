"""Who may come in at the gateway: the decision, the file of keys, and the layer that carries it out."""

from __future__ import annotations

import os
import re
import time
from typing import TYPE_CHECKING, Any

import httpx
import pytest
import trio
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from supervisor.errors import GatewayError
from supervisor.gateway import access, keys
from supervisor.gateway.access import Allowed, Facts, Preflight, Refused, Route, Rules, decide, route_of
from supervisor.gateway.guard import Guard

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

KEY = "sk-0123456789abcdef-0123456789abcdef"
LOCAL = Rules()
KEYED = Rules(keys=(b"sk-another-one-0123456789", KEY.encode()))
WIDE = Rules(listen="0.0.0.0", keys=(KEY.encode(),), hosts=frozenset({"engine.lan"}))
CHAT = "/v1/chat/completions"


def ask(rules: Rules, path: str = CHAT, method: str = "POST", **headers: str) -> Allowed | Preflight | Refused:
    given = {"host": "127.0.0.1:11411", **{name.replace("_", "-"): value for name, value in headers.items()}}
    return decide(Facts(method, path, {name: (value,) for name, value in given.items()}), rules)


def status(answer: Allowed | Preflight | Refused) -> int:
    return answer.status if isinstance(answer, Refused) else 200


# --- the decision -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:8080", "127.0.0.1:11411", "127.9.9.9", "[::1]:11411"])
def test_loopback_names_and_addresses_are_ours_on_any_port(host: str) -> None:
    assert ask(LOCAL, host=host) == Allowed()


@pytest.mark.parametrize(
    "host",
    [
        "evil.example:11411", "127.0.0.1.evil.example", "localhost.evil.example", "192.168.1.5:11411", "0.0.0.0", "", "a@localhost",
        "localhost:x", "localhost/..", "[::1", "localhost:99999", "local\thost", "::1", "127.0.0.1:11411,evil.example",
    ],
)  # fmt: skip
def test_a_name_that_was_made_to_point_at_us_is_none_of_ours(host: str) -> None:
    """DNS rebinding: the page's own name resolves to 127.0.0.1, and its browser sends that name."""
    assert status(ask(LOCAL, host=host)) == 421
    assert status(ask(LOCAL, "/metrics", "GET", host=host)) == 421


def test_two_hosts_or_none_are_refused() -> None:
    for hosts in ((), ("localhost", "localhost")):
        assert status(decide(Facts("GET", "/health", {"host": hosts}), LOCAL)) == 421


def test_beyond_loopback_addresses_and_the_configured_names_are_ours() -> None:
    for host in ("192.168.1.5:11411", "[fe80::1]:11411", "engine.lan", "ENGINE.lan:80", "localhost"):
        assert ask(WIDE, host=host, authorization=f"Bearer {KEY}") == Allowed(), host
    assert status(ask(WIDE, host="other.lan", authorization=f"Bearer {KEY}")) == 421
    named = evolve(WIDE, listen="box.lan")
    assert ask(named, host="box.lan:11411", authorization=f"Bearer {KEY}") == Allowed()


def test_a_page_of_elsewhere_is_refused_and_one_that_is_configured_is_not() -> None:
    for origin in ("https://evil.example", "null", "http://localhost:3000", "http://127.0.0.1", "file://", "", "x"):
        assert status(ask(LOCAL, origin=origin)) == 403, origin
    assert ask(LOCAL, origin="http://127.0.0.1:11411") == Allowed()
    allowed = evolve(LOCAL, origins=frozenset({"http://localhost:3000", "app://obsidian.md"}))
    assert ask(allowed, origin="http://LOCALHOST:3000") == Allowed("http://LOCALHOST:3000")
    assert ask(allowed, origin="app://obsidian.md") == Allowed("app://obsidian.md")
    assert status(ask(allowed, origin="http://localhost:3001")) == 403


def test_a_preflight_is_answered_for_pages_that_may_ask_and_for_no_others() -> None:
    allowed = evolve(KEYED, origins=frozenset({"http://localhost:3000"}))
    asked = {"access_control_request_method": "POST", "access_control_request_headers": "authorization,x-stainless-os"}
    found = ask(allowed, method="OPTIONS", origin="http://localhost:3000", **asked)
    assert found == Preflight("http://localhost:3000", "authorization,x-stainless-os")
    assert status(ask(allowed, method="OPTIONS", origin="https://evil.example", **asked)) == 403
    split = {**asked, "access_control_request_headers": "a\r\nset-cookie: x"}
    assert ask(allowed, method="OPTIONS", origin="http://localhost:3000", **split) == Preflight(
        "http://localhost:3000", ""
    )
    assert status(ask(allowed, method="OPTIONS")) == 401, "without a page behind it, it is a request like others"


def test_a_key_is_asked_for_where_there_is_one_in_either_header() -> None:
    assert status(ask(KEYED)) == 401
    for wrong in (f"Bearer {KEY}x", f"Bearer {KEY[:-1]}", "Bearer ", f"Basic {KEY}", KEY, "Bearer kéy", "bearer"):
        assert status(ask(KEYED, authorization=wrong)) == 401, wrong
    assert ask(KEYED, authorization=f"Bearer {KEY}") == Allowed()
    assert ask(KEYED, authorization=f"bearer  {KEY} ") == Allowed()
    assert ask(KEYED, x_api_key=KEY) == Allowed()
    assert ask(KEYED, x_api_key=KEY, authorization="Bearer something-else") == Allowed()
    assert ask(LOCAL, authorization="Bearer whatever") == Allowed(), (
        "clients must send one, also where none is asked for"
    )


def test_health_is_open_and_metrics_are_open_to_this_machine_alone() -> None:
    assert ask(WIDE, "/health", "GET", host="engine.lan") == Allowed()
    assert ask(KEYED, "/metrics", "GET") == Allowed()
    assert status(ask(WIDE, "/metrics", "GET", host="engine.lan")) == 401
    assert status(ask(WIDE, "/metrics", "GET")) == 401, "who came through another machine may say `localhost`"
    behind = evolve(KEYED, hosts=frozenset({"engine.lan"}))
    assert status(ask(behind, "/metrics", "GET", host="engine.lan")) == 401, "a proxy of ours passes others on"
    assert ask(WIDE, "/metrics", "GET", host="engine.lan", authorization=f"Bearer {KEY}") == Allowed()


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/api/models/unload"), ("GET", "/unload"), ("GET", "/running"), ("GET", "/logs/stream"), ("POST", "/props"),
        ("GET", "/upstream/chat/v1/models"), ("POST", "/slots/0"), ("POST", "/lora-adapters"), ("POST", "/models/load"),
        ("GET", "//unload"), ("GET", "/v1/../unload"), ("GET", "/./api/events"), ("GET", "/v1/.././API/logs"), ("PUT", "/health"),
        ("GET", "/health/"), ("GET", "//health"), ("GET", "/HEALTH"), ("GET", "/v1/./health"), ("GET", "/metrics/"),
    ],
)  # fmt: skip
def test_control_always_takes_a_key_and_is_closed_where_there_is_none(method: str, path: str) -> None:
    assert route_of(method, path) is Route.CONTROL
    assert status(ask(LOCAL, path, method)) == 403
    assert status(ask(KEYED, path, method)) == 401
    assert ask(KEYED, path, method, x_api_key=KEY) == Allowed()


def test_what_takes_no_key_is_the_gateways_own_and_is_passed_on_to_nobody() -> None:
    from supervisor.gateway.app import OWN

    assert {*access.HEALTH, access.METRICS} <= set(OWN)


def test_a_page_that_names_no_origin_loads_no_model() -> None:
    """`<img src="http://127.0.0.1:11411/v1/x?model=embed">` on some page."""
    for site in ("cross-site", "same-site"):
        assert status(ask(LOCAL, "/v1/x", "GET", sec_fetch_site=site)) == 403
        assert ask(LOCAL, "/health", "GET", sec_fetch_site=site) == Allowed()
    for site in ("none", "same-origin"):  # typed by a person; asked by a page of ours
        assert ask(LOCAL, "/v1/models", "GET", sec_fetch_site=site) == Allowed()


@pytest.mark.parametrize(
    "path", ["/v1/responses", "/v1/messages", "/tokenize", "/rerank", "/completion", "/chat/completions", "/"]
)
def test_routes_of_models_are_known(path: str) -> None:
    assert route_of("POST", path) is Route.MODELS


@given(
    st.text(), st.text(),
    st.dictionaries(
        st.sampled_from(["host", "origin", "authorization", "x-api-key", "access-control-request-method"]),
        st.lists(st.text(), max_size=2).map(tuple),
    ),
    st.sampled_from([LOCAL, KEYED, WIDE]),
)  # fmt: skip
def test_it_decides_on_whatever_comes_and_lets_no_stranger_in(
    method: str, path: str, headers: dict[str, tuple[str, ...]], rules: Rules
) -> None:
    found = decide(Facts(method, path, headers), rules)
    if isinstance(found, Allowed):
        assert headers["host"][0], "a name of ours was sent"
        assert not rules.keys or route_of(method, path) in (Route.HEALTH, Route.METRICS), "no text drawn here is a key"
    if isinstance(found, Refused):
        assert found.message.isprintable()
        assert KEY not in found.message


def test_what_a_refusal_says_never_holds_what_was_sent_as_a_key() -> None:
    secret = "sk-somebody-elses-0123456789"
    found = ask(KEYED, authorization=f"Bearer {secret}")
    assert isinstance(found, Refused)
    assert secret not in found.message
    facts = Facts("POST", CHAT, {"host": ("localhost",), "authorization": (f"Bearer {secret}",)})
    assert secret not in repr(facts)
    assert KEY not in repr(KEYED)


# --- the file of keys ---------------------------------------------------------------------------------------------------


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "keys"
    path.touch(0o600)
    path.write_text(f"{KEY}\n\n  sk-second-0123456789 \r\n")
    return path


def test_each_line_of_the_file_is_a_key(key_file: Path) -> None:
    assert keys.read(str(key_file)) == (KEY.encode(), b"sk-second-0123456789")


def test_a_file_that_others_may_read_is_refused(key_file: Path) -> None:
    for mode in (0o640, 0o604, 0o620, 0o666):
        key_file.chmod(mode)
        with pytest.raises(GatewayError, match=rf"open to others \(mode {mode:04o}\)") as raised:
            keys.read(str(key_file))
        assert raised.value.next_step == f"chmod 600 {key_file}"
    key_file.chmod(0o400)
    assert keys.read(str(key_file))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives a file away")
def test_a_file_of_another_user_is_refused(key_file: Path) -> None:
    os.chown(key_file, 12345, -1)
    with pytest.raises(GatewayError, match="belongs to user id 12345"):
        keys.read(str(key_file))


def as_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path, 0o600)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda path: path.unlink(), "cannot be read: No such file"),
        (lambda path: (path.unlink(), path.mkdir(0o700)), "not a regular file"),
        (as_fifo, "not a regular file"),
        (lambda path: (path.rename(path.with_name("k")), path.symlink_to("k")), "symbolic link"),
        (lambda path: path.write_text(" \n"), "is empty"),
        (lambda path: path.write_text("tooshort\n"), "something that is no key"),
        (lambda path: path.write_text(f"{KEY} {KEY}\n"), "something that is no key"),
        (lambda path: path.write_bytes(b"\xff" * 40), "something that is no key"),
        (lambda path: path.write_text("k" * 70_000), "something that is no key"),
    ],
)
def test_a_file_that_holds_no_keys_is_refused_in_one_line(
    key_file: Path, make: Callable[[Path], object], says: str
) -> None:
    make(key_file)
    with pytest.raises(GatewayError, match=re.escape(says)) as raised:
        keys.read(str(key_file))
    assert "\n" not in raised.value.what
    assert "tooshort" not in str(raised.value)
    assert KEY not in str(raised.value)


# --- the layer ----------------------------------------------------------------------------------------------------------


class Inner:
    """An application that reads the whole of a body, in a nursery as a forwarding one would, and says how long it was."""

    def __init__(self) -> None:
        self.calls = 0
        self.held: list[int] = []
        self.guard: Guard | None = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.calls += 1
        size = 0

        async def read() -> None:
            nonlocal size
            more = True
            while more:
                message = await receive()
                size += len(message.get("body", b""))
                more = message.get("more_body", False)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
        assert self.guard is not None
        self.held.append(self.guard.held_bytes)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": str(size).encode()})


def guarded(rules: Rules = LOCAL, **limits: Any) -> tuple[httpx.AsyncClient, Inner, list[str]]:
    inner, told = Inner(), list[str]()
    inner.guard = Guard(inner, lambda: rules, told.append, **limits)
    transport = httpx.ASGITransport(inner.guard)
    return httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:11411", timeout=30), inner, told


class Pieces(httpx.AsyncByteStream):
    """A body of so many pieces, which may be left unread."""

    def __init__(self, count: int, size: int) -> None:
        self._pieces = [b"x" * size] * count

    def __aiter__(self) -> Any:
        return self

    async def __anext__(self) -> bytes:
        if not self._pieces:
            raise StopAsyncIteration
        return self._pieces.pop()


async def in_pieces(client: httpx.AsyncClient, count: int, size: int) -> httpx.Response:
    """Send such a body."""
    url = client.base_url.join(CHAT)
    return await client.send(httpx.Request("POST", url, headers={"host": url.host}, stream=Pieces(count, size)))


@pytest.mark.trio
async def test_a_refusal_has_openais_shape_and_reaches_no_application() -> None:
    client, inner, told = guarded(KEYED)
    found = await client.post(CHAT, json={})
    assert found.status_code == 401
    assert found.headers["www-authenticate"] == "Bearer"
    error = found.json()["error"]
    assert (error["code"], error["type"], error["param"]) == ("invalid_api_key", "authentication_error", None)
    assert error["message"]
    assert (inner.calls, told) == (0, ["invalid_api_key"])
    assert (await client.post(CHAT, json={}, headers={"x-api-key": KEY})).status_code == 200


@pytest.mark.trio
async def test_a_body_that_says_that_it_is_too_large_is_not_read() -> None:
    client, inner, told = guarded(evolve(LOCAL, body_most_bytes=1000))
    found = await client.post(CHAT, content=b"x" * 1001)
    assert (found.status_code, found.json()["error"]["code"], inner.calls) == (413, "request_too_large", 0)
    assert told == ["request_too_large"]
    assert (await client.post(CHAT, content=b"x" * 1000)).text == "1000"


@pytest.mark.trio
async def test_a_body_that_does_not_say_it_is_counted() -> None:
    client, inner, told = guarded(evolve(LOCAL, body_most_bytes=1000))
    found = await in_pieces(client, 11, 100)
    assert (found.status_code, told) == (413, ["request_too_large"])
    assert (await in_pieces(client, 10, 100)).text == "1000"
    assert inner.guard is not None
    assert inner.guard.held_bytes == 0, "what was counted is given back, also by one that was refused"
    assert inner.held[-1] == 1000


@pytest.mark.trio
async def test_what_all_requests_hold_together_is_bounded() -> None:
    client, inner, _ = guarded(evolve(LOCAL, body_most_bytes=1000), held_most_bytes=1500)
    assert inner.guard is not None
    inner.guard.held_bytes = 1000
    found = await in_pieces(client, 8, 100)
    assert (found.status_code, found.headers["retry-after"]) == (503, "5")
    assert found.json()["error"]["code"] == "gateway_full"
    assert (await client.post(CHAT, content=b"x" * 501)).status_code == 503
    assert (await in_pieces(client, 5, 100)).text == "500"
    assert inner.guard.held_bytes == 1000


@pytest.mark.trio
async def test_a_body_that_trickles_ends_with_an_answer(autojump_clock: object) -> None:
    async def trickle() -> Any:
        while True:
            yield b"x"
            await trio.sleep(1)

    client, _, told = guarded(body_limit=30)
    found = await client.post(CHAT, content=trickle())
    assert (found.status_code, told) == (408, ["request_too_slow"])


@pytest.mark.trio
async def test_a_page_that_may_ask_may_read_answers_and_refusals() -> None:
    rules = evolve(KEYED, origins=frozenset({"http://localhost:3000"}))
    client, inner, _ = guarded(rules)
    page = {"origin": "http://localhost:3000"}
    asked = {"access-control-request-method": "POST", "access-control-request-headers": "authorization"}
    found = await client.options(CHAT, headers=page | asked)
    assert (found.status_code, inner.calls) == (204, 0)
    assert found.headers["access-control-allow-origin"] == "http://localhost:3000"
    assert found.headers["access-control-allow-headers"] == "authorization"
    assert "POST" in found.headers["access-control-allow-methods"]
    for headers, code in ((page, 401), (page | {"x-api-key": KEY}, 200)):
        found = await client.post(CHAT, headers=headers)
        assert (found.status_code, found.headers["access-control-allow-origin"]) == (code, "http://localhost:3000")
        assert found.headers["vary"] == "Origin"
    found = await client.post(CHAT, headers={"x-api-key": KEY})
    assert "access-control-allow-origin" not in found.headers
    found = await client.post(CHAT, headers={"origin": "https://evil.example", "x-api-key": KEY})
    assert found.status_code == 403
    assert "access-control-allow-origin" not in found.headers


@pytest.mark.trio
async def test_a_header_that_is_there_thousands_of_times_costs_no_more_than_as_many_others() -> None:
    """Of whoever connects, with a key or without: it took the keeper's one thread for a second (measured)."""
    guard = Guard(Inner(), lambda: KEYED)
    same = [(b"a", b"b")] * 10_000
    others = [(b"%d" % number, b"b") for number in range(10_000)]

    async def receive() -> Any:
        return {"type": "http.request"}

    async def send(_: Any) -> None:
        pass

    async def takes(headers: list[tuple[bytes, bytes]]) -> float:
        scope = {"type": "http", "method": "GET", "path": "/v1/models", "headers": headers}
        began = time.process_time()
        await guard(scope, receive, send)
        return time.process_time() - began

    of_one = min([await takes(same) for _ in range(3)])
    assert of_one < 10 * min([await takes(others) for _ in range(3)])


@pytest.mark.trio
async def test_a_fault_of_the_application_is_its_own() -> None:
    async def broken(*_: Any) -> None:
        raise ZeroDivisionError

    async with httpx.AsyncClient(transport=httpx.ASGITransport(Guard(broken, lambda: LOCAL))) as client:
        with pytest.raises(ZeroDivisionError):
            await client.get("http://localhost/health")
