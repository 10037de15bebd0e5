"""The gateway of a real keeper, over fake llama-servers."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from supervisor.errors import ExitCode
from supervisor.straight import Chunks
from tests.engine.fronts import PATIENCE
from tests.engine.kit import Kit, Launch
from tests.engine.place import Place
from tests.fakes.llama_server import story
from tests.support import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

pytestmark = pytest.mark.process


def serving(place: Place) -> dict[str, Any]:
    """What the snapshot says of the gateway, once it serves."""

    def there() -> dict[str, Any] | None:
        found: dict[str, Any] = place.snapshot()["gateway"]
        return found if found["state"] == "serving" else None

    found = place.until(there, within=PATIENCE, what="the gateway serves")
    assert found is not None
    return found


@pytest.fixture(scope="module")
def shared(kit: Kit) -> Iterator[Gate]:
    """One engine with a gateway, for what leaves it as it is."""
    place = Place(kit)
    try:
        yield gate(place, {"chat": (Launch("chat", knobs={"rate": 200}),), "embed": (Launch("embed", kit.embed),)})
    finally:
        place.close()


@dataclass
class Gate:
    """A place, and a client of its gateway."""

    place: Place
    url: str

    def post(self, path: str, **body: Any) -> httpx.Response:
        return httpx.post(self.url + path, json=body, timeout=PATIENCE)

    def chat(self, prompt: str, **more: Any) -> httpx.Response:
        return self.post(
            "/v1/chat/completions", **{"model": "chat", "messages": asking(prompt), "max_tokens": 8} | more
        )

    @contextmanager
    def stream(self, prompt: str, **more: Any) -> Iterator[httpx.Response]:
        body = {"model": "chat", "messages": asking(prompt), "max_tokens": 8, "stream": True} | more
        with httpx.stream("POST", f"{self.url}/v1/chat/completions", json=body, timeout=PATIENCE) as response:
            yield response

    def counts(self) -> dict[str, float]:
        """What /metrics says of the group `chat`, by name without prefix and suffix, requests by outcome."""
        found = httpx.get(f"{self.url}/metrics").text
        rows = re.findall(
            r'^queenright_gateway_(\w+?)(?:_total)?\{group="chat"(?:,outcome="(\w+)")?\} (\S+)$', found, re.M
        )
        return {outcome or name: float(value) for name, outcome, value in rows}

    def fake(self) -> dict[str, Any]:
        """What the fake chat server counted."""
        found: dict[str, Any] = httpx.get(f"{self.url}/props").json()["fake"]
        return found


def asking(prompt: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": prompt}]


def gate(place: Place, groups: Mapping[str, tuple[Launch, ...]] | None = None, **gateway: object) -> Gate:
    place.configure(groups, gateway={"listen": f"127.0.0.1:{free_port()}", **gateway})
    place.member()
    return Gate(place, serving(place)["url"])


def drain(response: httpx.Response, pieces: list[bytes]) -> None:
    """All that comes, also where what comes last is an exception."""
    for piece in response.iter_raw():
        pieces.append(piece)


def told(prompt: str, count: int = 8) -> str:
    return "".join(story(prompt, 0, count))


def test_a_whole_answer_is_put_together_from_a_stream(shared: Gate) -> None:
    found = shared.chat("whole")
    assert found.status_code == 200
    body = found.json()
    assert (body["object"], body["choices"][0]["finish_reason"]) == ("chat.completion", "stop")
    assert body["choices"][0]["message"] == {"role": "assistant", "content": told("whole")}
    assert body["usage"]["completion_tokens"] == body["timings"]["predicted_n"] == 8


def test_a_stream_passes_as_it_comes(shared: Gate) -> None:
    with shared.stream("stream") as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        events = [line.removeprefix("data: ") for line in response.iter_lines() if line]
    assert events.pop() == "[DONE]"
    words = [json.loads(event)["choices"][0]["delta"].get("content", "") for event in events]
    assert "".join(words) == told("stream")
    assert len(words) == 9


def test_what_becomes_of_requests_is_counted_as_it_happens(shared: Gate) -> None:
    def new() -> dict[str, float]:
        return {name: value - before[name] for name, value in shared.counts().items() if value != before[name]}

    before = shared.counts()
    words = {"prompt_tokens": 1, "completion_tokens": 8}
    shared.chat("whole")
    assert new() == words | {"answered": 1}
    before = shared.counts()
    with shared.stream("stream") as response:
        response.read()
    assert new() == words | {"answered": 1}
    before = shared.counts()
    assert httpx.post(f"{shared.url}/v1/other?model=chat", content=b"{").status_code == 400  # the server's
    assert new() == {"rejected": 1}
    before = shared.counts()
    with shared.stream("leave", max_tokens=100_000) as response:
        pieces = response.iter_raw()  # dropped, it would hang up
        next(pieces)
        assert new() == {"requests_running": 1}
    shared.place.until(lambda: new() == {"left": 1}, within=PATIENCE, what="its caller left")


@pytest.mark.parametrize("path", ["/v1/embeddings", "/embeddings"])
@pytest.mark.parametrize(
    "more", [{}, {"model": "embed"}, {"model": "text-embedding-3-small", "num_predict": 3, "top_k": 1}]
)
def test_embeddings_go_to_the_embed_model_whatever_is_asked_for(shared: Gate, path: str, more: dict[str, Any]) -> None:
    found = shared.post(path, input=["a", "b"], **more)
    assert found.status_code == 200
    assert [row["index"] for row in found.json()["data"]] == [0, 1]


def test_every_refusal_has_a_body_that_says_what_there_is(shared: Gate) -> None:
    found = shared.chat("x", model="gpt-9")
    assert (found.status_code, found.json()["error"]["code"]) == (404, "model_not_found")
    assert "chat, embed" in found.json()["error"]["message"]
    assert httpx.get(f"{shared.url}/v1/models/nobody").json()["error"]["code"] == "model_not_found"
    assert httpx.get(f"{shared.url}/no/such/page").json()["error"]["message"]


def test_tokenize_and_other_routes_reach_the_server(shared: Gate) -> None:
    assert shared.post("/tokenize", content="one three").json() == {"tokens": [3, 5]}
    found = httpx.post(
        f"{shared.url}/v1/echo?model=embed&x=1", content=b"abc", headers={"Authorization": "Bearer mine"}
    )
    assert (found.json()["target"], found.json()["bytes"]) == ("/v1/echo?model=embed&x=1", 3)
    assert "mine" not in found.text


def test_a_caller_that_leaves_frees_the_server(shared: Gate) -> None:
    """llama-server notices by itself only where it streams, which the gateway has it do."""
    before = shared.fake()["cancels"]
    body = {"model": "chat", "messages": asking("leave"), "max_tokens": 100_000}
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{shared.url}/v1/chat/completions", json=body, timeout=0.3)
    shared.place.until(lambda: shared.fake()["cancels"] == before + 1, within=3, what="the server lets go of it")
    with shared.stream("leave", max_tokens=100_000) as response:
        next(response.iter_raw())
    shared.place.until(lambda: shared.fake()["cancels"] == before + 2, within=3, what="the server lets go of it")


@pytest.mark.parametrize("is_stream", [False, True], ids=["whole", "stream"])
def test_a_caller_that_asks_for_the_end_of_the_connection_gets_it(shared: Gate, is_stream: bool) -> None:
    """Who reads to the end of the connection, as HTTP/1.0 had it, would wait until its idle time was over."""
    where = httpx.URL(shared.url)
    body = json.dumps({"model": "chat", "messages": asking("bye"), "max_tokens": 8, "stream": is_stream}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {where.netloc.decode()}\r\nConnection: close\r\n"
    with socket.create_connection((where.host, where.port), timeout=PATIENCE) as plain:
        plain.sendall(f"{head}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
        text = b"".join(iter(lambda: plain.recv(1 << 16), b""))
    assert text.startswith(b"HTTP/1.1 200")
    assert text.endswith(b"0\r\n\r\n" if is_stream else b"}")


@pytest.mark.long
def test_who_waits_when_the_engine_is_stopped_gets_no_empty_500(own: Place) -> None:
    """A 503 with a body, or the end of the connection: every answer that is none says why."""
    served = gate(own, {"chat": (Launch("chat", knobs={"think": 60}),)})
    with ThreadPoolExecutor() as pool:
        asked = pool.submit(served.chat, "never answered")
        own.until(lambda: served.fake()["active"] == 1, within=PATIENCE, what="the server has it")
        own.cli("stop")
        try:
            answer = asked.result(PATIENCE)
        except httpx.TransportError:
            return
    assert answer.status_code == 503, answer.text
    assert answer.json()["error"]["message"]


@pytest.mark.long
def test_a_caller_that_reads_slowly_misses_nothing(own: Place) -> None:
    """The kernel takes a part of what it has no room for; the rest must follow it, and no piece come in between."""
    count = 12_000
    served = gate(own, {"chat": (Launch("chat", context=16_384),)})
    where = httpx.URL(served.url)
    body = json.dumps({"model": "chat", "messages": asking("slow"), "max_tokens": count, "stream": True}).encode()
    with socket.socket() as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.connect((where.host, where.port))
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {where.netloc.decode()}\r\nConnection: close\r\n"
        slow.sendall(f"{head}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
        looks = [-2, -1]

        def is_still() -> bool:
            looks.append(int(served.fake()["tokens"]))
            return looks[-1] == looks[-2] > 0

        own.until(is_still, within=PATIENCE, what="all is said, or no buffer on the way has room: nothing is read")
        slow.settimeout(PATIENCE)
        text = b"".join(iter(lambda: slow.recv(1 << 16), b""))
    body, chunks = text.partition(b"\r\n\r\n")[2], Chunks()
    words = re.findall(rb'"content": ?"([^"]*)"', chunks.feed(body))
    assert chunks.is_clean
    assert b"".join(words).decode() == told("slow", count)


def test_the_models_of_an_engine_are_listed(shared: Gate) -> None:
    assert f'"{shared.url.removeprefix("http://")}"' in shared.place.config.read_text(), "where it was to listen"
    assert serving(shared.place) == {"url": shared.url, "state": "serving", "reason": ""}
    found = httpx.get(f"{shared.url}/v1/models").json()
    assert [row["id"] for row in found["data"]] == ["chat", "embed"]
    assert found["data"][0]["meta"]["n_ctx"] == 4096
    assert httpx.get(f"{shared.url}/health").json()["groups"] == {"chat": "running", "embed": "running"}
    assert f'"gateway": "{shared.url}"' in shared.place.slot.keeper_record.read_text()


@pytest.fixture
def own(kit: Kit) -> Iterator[Place]:
    """A place whose engine a test may harm."""
    place = Place(kit)
    try:
        yield place
    finally:
        place.close()


def test_a_request_is_held_over_a_killed_proxy_and_the_stream_is_told_why(own: Place) -> None:
    """unslothai/unsloth#10911: a client gives a silent stream up. liliMozi/openhanako#2517: so does one whose model loads."""
    found = gate(own, {"chat": (Launch("chat", knobs={"load": 1.5}),)}, comment_after_s=0.3)
    os.kill(own.family().proxies["chat"].pid, signal.SIGKILL)
    own.until(lambda: own.group()["state"] != "running", within=PATIENCE, what="its death is seen")
    with found.stream("held") as response:
        counted = found.counts()
        lines = [line for line in response.iter_lines() if line]
    assert (counted["held"], counted["requests_waiting"], counted["requests_running"]) == (1, 1, 0)
    assert found.counts()["requests_waiting"] == 0
    comments = [line for line in lines if line.startswith(":")]
    assert response.status_code == 200
    assert comments, lines
    assert "queued: group chat is rebuilding" in comments[0]
    assert lines[-1] == "data: [DONE]"
    assert own.receipts() == 1
    assert told("held") == "".join(
        json.loads(line[6:])["choices"][0]["delta"].get("content", "") for line in lines if line.startswith("data: {")
    )


@pytest.mark.parametrize("is_stream", [False, True])
def test_a_request_whose_server_died_before_a_byte_is_sent_again(own: Place, is_stream: bool) -> None:
    """Its second completion kills the server, the next one after that is answered: whole answers are put together from
    streams, and one that is cut has not reached anybody."""
    found = gate(own, {"chat": (Launch("chat", knobs={"die_at_request": 2}),)})
    assert found.chat("first").status_code == 200
    if is_stream:
        with found.stream("second") as response:
            text = "".join(response.iter_text())
        assert text.endswith("data: [DONE]\n\n")
    else:
        assert found.chat("second").json()["choices"][0]["message"]["content"] == told("second")
    assert len(own.spawns()) == 2
    assert found.counts()["replayed"] >= 1
    assert found.counts()["answered"] == 2


@pytest.mark.long
def test_a_whole_answer_cut_in_the_middle_is_asked_for_again(own: Place) -> None:
    found = gate(own, {"chat": (Launch("chat", knobs={"die_at_token": 5}),)})
    answer = found.chat("short", max_tokens=4)
    assert answer.json()["choices"][0]["message"]["content"] == told("short", 4)
    answer = found.chat("long", max_tokens=9)  # every server dies of it: twice, and no third time
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "engine_unavailable")
    assert own.receipts() == 3


def test_a_stream_cut_in_the_middle_never_looks_whole(own: Place) -> None:
    found = gate(own, {"chat": (Launch("chat", knobs={"die_at_token": 5}),)})
    pieces: list[bytes] = []
    with found.stream("cut", max_tokens=9) as response, pytest.raises(httpx.RemoteProtocolError):
        drain(response, pieces)
    text = b"".join(pieces)
    assert b"[DONE]" not in text
    event = json.loads(text.split(b"event: error\ndata: ")[1].split(b"\n")[0])
    assert event["error"]["code"] == "interrupted"


def test_past_the_deadline_a_503_says_group_state_and_reason(own: Place) -> None:
    """tobocop2/lilbee#547: without holding, each request failed at once while the engine was rebuilt."""
    found = gate(own, {"chat": (Launch("chat"),)}, deadline_s=1, comment_after_s=0.4)
    assert own.cli("hold", "a driver update").returncode == 0
    began = time.monotonic()
    answer = found.chat("late")
    assert time.monotonic() - began > 0.9
    assert answer.status_code == 503
    assert int(answer.headers["retry-after"]) >= 1
    error = answer.json()["error"]
    assert (error["group"], error["state"]) == ("chat", "held")
    assert "a driver update" in error["reason"]
    assert httpx.get(f"{found.url}/v1/models").json()["data"][0]["meta"]["state"] == "held"
    with found.stream("late") as response:  # the status was sent with the first comment
        text = response.read()
    assert response.status_code == 200
    assert text.startswith(b": queued: group chat is held")
    assert b"[DONE]" not in text
    assert json.loads(text.split(b"event: error\ndata: ")[1])["error"]["code"] == "engine_unavailable"


def test_a_keeper_that_is_killed_is_followed_by_one_at_the_same_url(own: Place) -> None:
    found = gate(own, {"chat": (Launch("chat"),)})
    os.kill(own.family().keeper.pid, signal.SIGKILL)

    def answered() -> bool:
        with suppress(httpx.TransportError):
            return found.chat("again").status_code == 200
        return False

    own.until(answered, within=PATIENCE, what="the next keeper's gateway answers")


def test_a_keeper_that_makes_room_ends_its_answers_first(own: Place) -> None:
    found = gate(own, {"chat": (Launch("chat", knobs={"rate": 20}),)})
    with found.stream("slow", max_tokens=20) as response:
        pieces = response.iter_raw()
        text = next(pieces)
        restart = subprocess.Popen(own.command("restart-keeper"), env=own.environment, stdout=subprocess.DEVNULL)
        text += b"".join(pieces)
    assert text.endswith(b"data: [DONE]\n\n")
    assert restart.wait(PATIENCE) == 0


@pytest.mark.long
def test_what_had_no_byte_when_the_keeper_made_room_is_told_to_come_again(own: Place) -> None:
    found = gate(own, {"chat": (Launch("chat", knobs={"rate": 1}),)})
    body = {"model": "chat", "max_tokens": 60, "messages": [{"role": "user", "content": "go on"}]}
    with ThreadPoolExecutor() as threads:
        asked = threads.submit(httpx.post, f"{found.url}/v1/chat/completions", json=body, timeout=PATIENCE)
        own.until(
            lambda: own.group()["queue"].get("chat", {}).get("running"), within=PATIENCE, what="it is being answered"
        )
        assert own.cli("restart-keeper").returncode == 0
        answer = asked.result(PATIENCE)
    assert (answer.status_code, answer.headers["x-should-retry"]) == (503, "true")
    assert int(answer.headers["retry-after"]) > 0
    assert answer.json()["error"]["code"] == "engine_unavailable"


def test_a_port_that_is_taken_is_said_and_the_engine_goes_on(own: Place) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        own.configure(gateway={"listen": f"127.0.0.1:{port}"})
        own.member()
        own.until(lambda: own.snapshot()["gateway"]["state"] == "failed", within=PATIENCE, what="it cannot listen")
        shown = own.snapshot()
        doctor = own.cli("doctor").stdout
    assert "serves nobody" in doctor
    assert shown["state"] == "running"
    assert shown["gateway"]["url"] is None
    assert f"127.0.0.1:{port} is taken" in shown["gateway"]["reason"]
    assert serving(own)["url"] == f"http://127.0.0.1:{port}", "once the other one has ended, with no word of anybody"
    assert own.slot.keeper_log.read_text().count("is taken") == 1, "each try says it anew"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        own.configure(gateway={"listen": f"127.0.0.1:{port}"})
        refused = own.cli("apply")
    assert refused.returncode == ExitCode.ERROR, "it is not as the configuration says"
    assert f"127.0.0.1:{port} is taken" in refused.stderr


@pytest.mark.long
def test_no_client_is_refused_while_keepers_are_killed__and_a_gateway_that_is_switched_off_refuses(
    own: Place,
) -> None:
    port = free_port()
    own.configure(gateway={"listen": f"127.0.0.1:{port}"})
    own.member()
    url = serving(own)["url"]
    for _ in range(2):
        keeper = own.snapshot()["keeper"]["pid"]
        os.kill(keeper, signal.SIGKILL)
        with httpx.Client(timeout=PATIENCE) as client:  # each its own connection, and each is taken in the end
            assert client.get(f"{url}/v1/models").status_code == 200
    own.configure(gateway={"enabled": False})
    assert own.cli("apply").returncode == 0
    own.until(lambda: own.snapshot()["gateway"]["state"] == "off", within=PATIENCE, what="the gateway is off")
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{url}/v1/models")
    own.configure(gateway={"listen": f"127.0.0.1:{port}"})
    assert own.cli("apply").returncode == 0
    assert serving(own)["url"] == url
    assert httpx.get(f"{url}/v1/models").status_code == 200
