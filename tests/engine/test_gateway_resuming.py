"""Streams that go on after their server or its proxy was killed, over fakes whose text follows from the prompt alone."""

from __future__ import annotations

import json
import os
import signal
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from tests.engine.kit import CHAT, ONE_THREAD, Launch
from tests.engine.place import Place
from tests.engine.test_gateway import Gate, drain, gate, told
from tests.fakes.llama_server import story

if TYPE_CHECKING:
    from tests.engine.kit import Kit

pytestmark = pytest.mark.process


def chunks(lines: list[str]) -> list[dict[str, Any]]:
    return [json.loads(line[6:]) for line in lines if line.startswith("data: {")]


def said(heard: list[dict[str, Any]]) -> str:
    return "".join(part["delta"].get("content") or "" for one in heard for part in one["choices"])


def test_a_stream_goes_on_over_servers_that_die(place: Place) -> None:
    """Each server dies of its sixth token: three continuations are made, and no fourth."""
    found = gate(place, {"chat": (Launch("chat", knobs={"die_at_token": 5}),)}, resume=True)
    with found.stream("go on", max_tokens=19, seed=3, stream_options={"include_usage": True}) as response:
        lines = [line for line in response.iter_lines() if line]
    assert said(chunks(lines)) == "".join(story("go on", 3, 19))
    assert lines[-1] == "data: [DONE]"
    assert {(one["id"], one["model"]) for one in chunks(lines)} == {("fake", chunks(lines)[0]["model"])}
    assert not any("usage" in one for one in chunks(lines))
    counts = found.counts()
    assert (counts["answered"], counts["prompt_tokens"], counts["completion_tokens"]) == (1, 2 + 15, 4)
    pieces: list[bytes] = []
    with found.stream("too long", max_tokens=40) as response, pytest.raises(httpx.RemoteProtocolError):
        drain(response, pieces)
    text = b"".join(pieces)
    assert b"[DONE]" not in text
    assert b'"interrupted"' in text
    assert said(chunks(text.decode().split("event: error")[0].splitlines())) == told("too long", 20)


@pytest.mark.parametrize("victim", ["server", "proxy"])
def test_kill_9_in_the_middle_is_a_pause(place: Place, victim: str) -> None:
    found = gate(place, {"chat": (Launch("chat", knobs={"rate": 20}),)}, resume=True, comment_after_s=0.2)
    family = place.family()
    dead = family.proxies["chat"] if victim == "proxy" else family.servers["chat"]
    lines: list[str] = []
    with found.stream("paused", max_tokens=16) as response:
        for line in response.iter_lines():
            lines.append(line)
            if len(chunks(lines)) == 4 and line.startswith("data: "):
                os.kill(dead.pid, signal.SIGKILL)
    assert said(chunks(lines)) == told("paused", 16)
    assert [line for line in lines if line][-1] == "data: [DONE]"
    assert found.counts()["answered"] == 1


GROUPS, ROUNDS = 5, 4
"""20 cuts, and none of the groups dies often enough in a row to be kept waiting for its restart."""
BEGINNINGS = ("Tell me about bees.", "Write about a river.", "Why is the sky blue?", "How is bread made?")


def answer(found: Gate, number: int, body: dict[str, Any], cut_at: int) -> list[dict[str, Any]]:
    """The chunks of an answer, whose server dies after so many of them."""
    lines: list[str] = []
    dead = found.place.family().servers[f"chat{number}"] if cut_at else None
    with found.stream(**body, model=f"chat{number}") as response:
        for line in response.iter_lines():
            lines.append(line)
            if dead is not None and line.startswith("data: ") and len(chunks(lines)) == cut_at:
                os.kill(dead.pid, signal.SIGKILL)
    assert [line for line in lines if line][-1] == "data: [DONE]"
    return chunks(lines)


@pytest.mark.engine
@pytest.mark.long
def test_how_many_cut_answers_of_a_real_engine_are_the_undisturbed_ones(
    real_kit: Kit, capsys: pytest.CaptureFixture[str]
) -> None:
    """One sequence, temperature 0. How many is a figure for people: a text cut into tokens anew may be another one."""
    place = Place(real_kit)
    identical, cuts = 0, 0
    try:
        launches = {
            f"chat{number}": (Launch(f"chat{number}", CHAT, arguments=ONE_THREAD, context=512),)
            for number in range(GROUPS)
        }
        found = gate(place, launches, resume=True)
        for turn in range(ROUNDS):
            for number in range(GROUPS):
                body = {"prompt": f"{BEGINNINGS[turn]} Use {number + 2} sentences.", "max_tokens": 64}
                body |= {"temperature": 0, "cache_prompt": False, "stream_options": {"include_usage": True}}
                wanted = answer(found, number, body, 0)
                assert wanted[-1]["usage"]
                heard = answer(found, number, body, 4 + 2 * number + 5 * turn)
                assert len({one["id"] for one in heard}) == 1
                cuts += "usage" not in heard[-1]  # it had gone on: nobody knows
                identical += "usage" not in heard[-1] and said(wanted) == said(heard)
    finally:
        place.close()
    assert cuts > GROUPS
    with capsys.disabled():
        print(f"\n{identical} of {cuts} cut answers are the undisturbed ones")
