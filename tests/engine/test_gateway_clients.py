"""OpenAI's own client and curl at the gateway of a real engine: whole conversations, and proxy and server killed in the middle.

What holds then: a request of which no byte was delivered does not fail, and every other one ends `interrupted`. The openai
client is told not to retry, so that all the patience is the gateway's.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from openai import APIError, OpenAI

from tests.engine.fronts import PATIENCE
from tests.engine.kit import CHAT, EMBED, ONE_THREAD, Launch
from tests.engine.place import Place
from tests.engine.seen import kill
from tests.support import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.engine.kit import Kit

pytestmark = [pytest.mark.process, pytest.mark.engine]

ASKED: list[Any] = [{"role": "user", "content": "Say hello in three words."}]
ANSWER: dict[str, Any] = {"messages": ASKED, "temperature": 0, "seed": 1, "max_tokens": 12}
FRESH: dict[str, Any] = {"cache_prompt": False}
"""What was computed before in other pieces may differ in its last bits, and so in a word."""
LASTING = 200
"""Tokens of an answer that must not be over before others wait for its place: 60 were, on an idle machine."""
ENDLESS: dict[str, Any] = ANSWER | {"max_tokens": 900, "ignore_eos": True}
"""Until somebody ends it; the context holds no more."""
WORKING: dict[str, Any] = ANSWER | {"max_tokens": 30, "ignore_eos": True}
SEQUENCES = 3


@dataclass
class Gate:
    """A place with both models, and its gateway."""

    place: Place
    url: str

    def openai(self) -> Any:
        """Untyped: its overloads take no dictionary."""
        return OpenAI(base_url=f"{self.url}/v1", api_key="none", timeout=PATIENCE, max_retries=0)

    def curl(self, path: str, body: dict[str, Any]) -> subprocess.Popen[str]:
        words = [
            "curl",
            "-sS",
            "-N",
            f"{self.url}{path}",
            "-H",
            "Content-Type: application/json",
            "-d",
            json.dumps(body),
        ]
        return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def curled(self, path: str, body: dict[str, Any]) -> Any:
        with self.curl(path, body) as running:
            said, complaint = running.communicate(timeout=PATIENCE)
        assert running.returncode == 0, complaint
        return json.loads(said)

    def busy(self) -> int:
        """How many sequences of the chat server compute."""
        port = self.place.group()["servers"][0]["port"]
        key = self.place.slot.group_key("chat").read_text().strip()
        slots = httpx.get(f"http://127.0.0.1:{port}/slots", headers={"Authorization": f"Bearer {key}"}).json()
        return sum(slot["is_processing"] for slot in slots)

    def wait_busy(self, number: int) -> None:
        self.place.until(lambda: self.busy() == number, within=PATIENCE, what=f"{number} sequences compute")

    def wait_queued(self, number: int) -> None:
        self.place.until(
            lambda: self.place.group()["queue"]["chat"]["waiting"] == number, within=PATIENCE, what=f"{number} wait"
        )

    def kill(self, chat: str, embed: str) -> None:
        """`proxy` or `server` of each group."""
        family = self.place.family()
        for group, victim in (("chat", chat), ("embed", embed)):
            kill((family.proxies if victim == "proxy" else family.servers)[group])


@pytest.fixture(scope="module")
def gate(real_kit: Kit) -> Iterator[Gate]:
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    place = Place(real_kit)
    chat = Launch("chat", CHAT, arguments=ONE_THREAD, context=1024, sequences=SEQUENCES)
    embed = Launch("embed", EMBED, arguments=("--embeddings", *ONE_THREAD), context=512)
    place.configure({"chat": (chat,), "embed": (embed,)}, gateway={"listen": f"127.0.0.1:{free_port()}"})
    try:
        place.member()
        place.until(lambda: place.snapshot()["gateway"]["state"] == "serving", within=PATIENCE, what="it serves")
        yield Gate(place, place.snapshot()["gateway"]["url"])
    finally:
        place.close()


def texts_of(lines: list[str]) -> str:
    """What a stream's events say."""
    events = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    return "".join(event["choices"][0]["delta"].get("content") or "" for event in events if event["choices"])


def test_openais_client_converses_embeds_streams_and_leaves(gate: Gate) -> None:
    with gate.openai() as client:
        assert [model.id for model in client.models.list()] == ["chat", "embed"]
        first = client.chat.completions.create(model="chat", **ANSWER, extra_body=FRESH)
        said = first.choices[0].message.content
        assert said
        messages = [*ASKED, {"role": "assistant", "content": said}, {"role": "user", "content": "Once more."}]
        second = client.chat.completions.create(model="chat", **ANSWER | {"messages": messages})
        assert second.choices[0].message.content
        assert first.usage is not None
        assert second.usage is not None
        assert second.usage.prompt_tokens > first.usage.prompt_tokens  # the earlier turns are in it
        stream = client.chat.completions.create(model="chat", **ANSWER, stream=True, extra_body=FRESH)
        assert "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices) == said
        for asked in ({}, {"encoding_format": "float"}):  # without, the client asks for base64 and decodes it
            rows = client.embeddings.create(model="embed", input=["bees", "honey"], **asked).data
            assert [(row.index, len(row.embedding)) for row in rows] == [(0, 384), (1, 384)]
        left = client.chat.completions.create(
            model="chat", **ANSWER | {"max_tokens": 900}, stream=True, extra_body={"ignore_eos": True}
        )
        next(iter(left))
        left.close()
    gate.wait_busy(0)


def test_curl_converses_embeds_streams_and_leaves(gate: Gate) -> None:
    first = gate.curled("/v1/chat/completions", {"model": "chat", **ANSWER, **FRESH})
    said = first["choices"][0]["message"]["content"]
    messages = [*ASKED, {"role": "assistant", "content": said}, {"role": "user", "content": "Once more."}]
    second = gate.curled("/v1/chat/completions", {"model": "chat", **ANSWER, "messages": messages})
    assert second["usage"]["prompt_tokens"] > first["usage"]["prompt_tokens"]
    rows = gate.curled("/v1/embeddings", {"model": "embed", "input": ["bees", "honey"]})["data"]
    assert [(row["index"], len(row["embedding"])) for row in rows] == [(0, 384), (1, 384)]
    with gate.curl("/v1/chat/completions", {"model": "chat", **ANSWER, **FRESH, "stream": True}) as running:
        lines = [line for line in running.communicate(timeout=PATIENCE)[0].splitlines() if line]
    assert (lines[-1], texts_of(lines)) == ("data: [DONE]", said)
    with gate.curl("/v1/chat/completions", {"model": "chat", **ENDLESS, "stream": True}) as running:
        assert running.stdout is not None
        assert running.stdout.readline()
        running.kill()
    gate.wait_busy(0)


@pytest.mark.long  # of each promise by itself test_gateway.py has a test, over fakes
@pytest.mark.parametrize(("chat", "embed"), [("server", "proxy"), ("proxy", "server"), ("proxy", "proxy")])
def test_what_was_not_begun_is_answered_and_what_was_ends_interrupted(gate: Gate, chat: str, embed: str) -> None:
    """At the kill: two streams that began, one whole answer that a server is at, two requests that wait for a place, and
    embeddings one after the other all the time."""
    more = {"model": "chat", "extra_body": {"ignore_eos": True}}
    ended = threading.Event()

    def embeddings() -> int:
        number = 0
        with gate.openai() as client:
            while not ended.is_set():
                assert len(client.embeddings.create(model="embed", input=["bees " * 100] * 8).data) == 8
                number += 1
        return number

    def whole() -> Any:
        with gate.openai() as client:
            return client.chat.completions.create(**more, **ANSWER | {"max_tokens": LASTING}).choices[0].finish_reason

    def streamed() -> Any:
        with gate.openai() as client, client.chat.completions.create(**more, **ANSWER, stream=True) as stream:
            return [chunk.choices[0].finish_reason for chunk in stream if chunk.choices][-1]

    body = {"model": "chat", **ENDLESS, "stream": True}
    with ThreadPoolExecutor(5) as pool, gate.openai() as client, gate.curl("/v1/chat/completions", body) as curl:
        try:
            begun = iter(client.chat.completions.create(**more, **ANSWER | {"max_tokens": 900}, stream=True))
            next(begun)
            assert curl.stdout is not None
            assert any(line.startswith("data: {") for line in curl.stdout)  # after comments, perhaps
            work = [pool.submit(embeddings), pool.submit(whole)]
            gate.wait_busy(SEQUENCES)
            work.append(pool.submit(streamed))
            work.append(pool.submit(gate.curled, "/v1/chat/completions", {"model": "chat", **WORKING}))
            gate.wait_queued(2)
            gate.kill(chat, embed)
            with pytest.raises(APIError) as cut:
                list(begun)
            assert cut.value.code == "interrupted"
            said, complaint = curl.communicate(timeout=PATIENCE)
            assert [one.result(PATIENCE) for one in work[1:3]] == ["length", "length"]
            assert work[3].result(PATIENCE)["usage"]["completion_tokens"] == WORKING["max_tokens"]
        finally:
            ended.set()
            curl.kill()
        assert work[0].result(PATIENCE) > 1
    assert curl.returncode == 18, complaint  # CURLE_PARTIAL_FILE (libcurl-errors(3)): the last chunk is missing
    assert "[DONE]" not in said
    assert re.search(r'event: error\ndata: \{.*"code":\s*"interrupted"', said), said[-300:]
