"""The idle time of a model (`idle_ttl_s`), in every way in which an engine is kept: it counts from the last byte of the last
answer, and nobody who only looks moves it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from supervisor import identity
from supervisor.errors import ExitCode
from supervisor.identity import Liveness
from tests.engine.kit import Launch
from tests.fakes.llama_server import story

if TYPE_CHECKING:
    from tests.engine.place import Place

pytestmark = [pytest.mark.process, pytest.mark.long]

TTL = 3
RATE = 10
TOKENS = 2 * TTL * RATE
"""Of an answer that takes twice the idle time."""
PROMPT = "tell me of bees"


@pytest.mark.parametrize("mode", ["members", "keep_warm", "run"])
def test_a_model_is_unloaded_its_idle_time_after_the_last_byte_whoever_looks(place: Place, mode: str) -> None:
    chat = Launch("chat", idle_ttl_s=TTL, knobs={"rate": RATE})
    place.configure({"chat": (chat,)}, engine={"keep_warm": True} if mode == "keep_warm" else None)
    if mode == "run":
        place.run()
    front = place.member()
    before = place.family()
    stream = front.begin("stream", role="chat", prompt=PROMPT, tokens=TOKENS)
    front.first(stream)
    end = front.result(stream)
    last_byte = time.monotonic()
    assert (end["finished"], end["text"]) == (True, "".join(story(PROMPT, 0, TOKENS))), "unloaded in the middle of it"
    if mode != "members":
        front.end()  # with nobody there, the weights go all the same, and the engine stays
    looks = [("status",), ("status", "--json"), ("logs", "chat"), ("doctor", "--json")]

    def is_unloaded() -> bool:
        looks.append(looks.pop(0))
        place.cli(*looks[0])
        place.snapshot()
        return identity.liveness(before.servers["chat"]) is Liveness.DEAD

    place.until(is_unloaded, within=15, what="unloaded under everybody's eyes")
    assert time.monotonic() - last_byte > TTL - 0.1, "counted from something earlier"
    place.until(lambda: place.group()["servers"][0]["state"] == "unloaded", within=10, what="status says so")
    for words in looks:
        place.cli(*words)
    found = place.group()
    assert (found["state"], found["restarts"], found["proxy"]["pid"]) == ("running", 0, before.proxies["chat"].pid)
    assert len(place.spawns()) == 1, "a look loaded it"
    # Whoever asks has it loaded again.
    another = front
    if mode != "members":
        another = place.front("another")
        another.open()
    assert another.ask("chat", PROMPT)
    assert len(place.spawns()) == 2
    if mode == "keep_warm":
        assert place.cli("stop").returncode == ExitCode.OK
