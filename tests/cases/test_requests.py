"""Field cases about requests that meet a load, an unload or a death, and about idle time. register.py has the rest."""

from __future__ import annotations

import json
import random
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from supervisor import identity
from supervisor.control import ControlError
from supervisor.identity import Liveness
from tests.engine.kit import Launch
from tests.engine.seen import kill
from tests.fakes.llama_server import story
from tests.support import wait_until

if TYPE_CHECKING:
    from tests.engine.fronts import Front
    from tests.engine.place import Place

pytestmark = [pytest.mark.process, pytest.mark.long]

PROMPT = "tell me of bees"


def whole(tokens: int) -> str:
    """The answer of a server that nobody touches."""
    return "".join(story(PROMPT, 0, tokens))


def ask(front: Front, tokens: int = 4) -> int:
    """Begin a completion."""
    return front.begin("ask", role="chat", prompt=PROMPT, tokens=tokens)


def is_answered(answer: dict[str, Any], tokens: int = 4) -> bool:
    """Whether it is the whole answer. What is not, must be a refusal that a person can read."""
    if answer["status"] == 200:
        assert answer["text"] == whole(tokens)
        return True
    assert answer["status"] == 503, answer
    assert "chat" in json.loads(answer["body"])["error"]["message"], answer
    return False


def test_requests_during_a_rebuild_wait_or_are_told_to__lilbee_547(place: Place) -> None:
    """Twenty that may wait longer than the rebuild takes succeed, all; twenty that may not get a 503 that says why."""
    place.configure({"chat": (Launch("chat", knobs={"load": 3}),)})
    patient = place.member("patient")
    hasty = place.front("hasty")
    hasty.open(deadline=1.0)
    kill(place.family().proxies["chat"])
    asked = [(front, ask(front)) for front in (patient, hasty) for _ in range(20)]
    answers = [(front, front.result(number)) for front, number in asked]
    assert all(is_answered(answer) for front, answer in answers if front is patient)
    assert not any(is_answered(answer) for front, answer in answers if front is hasty)
    assert len(place.spawns()) == 2


def test_an_engine_killed_with_half_of_its_members_is_built_once_by_the_others__systemd_32304(place: Place) -> None:
    """systemd-oomd kills a whole control group, and says less than it did."""
    place.configure({"chat": (Launch("chat"),)})
    fronts = [place.member(f"member{number}") for number in range(4)]
    for victim in place.family().everybody:
        with suppress(AssertionError):  # the warden's death takes the others along
            kill(victim)
    for front in fronts[:2]:
        front.kill()
    asked = [(front, ask(front)) for front in fronts[2:]]
    assert all(is_answered(front.result(number)) for front, number in asked)
    place.family()
    rungs = [note.get("rung") for note in map(json.loads, place.slot.events.read_text().splitlines())]
    assert rungs.count("build") == 2, "once at first, and once more"


def test_whatever_server_is_killed_its_next_request_is_answered_and_no_proxy_is__llama_swap_155(place: Place) -> None:
    roles = ("r1", "r2", "r3")
    place.configure({role: (Launch(role, knobs={"rate": 20}),) for role in roles})
    front = place.member()
    before = place.family()
    dice = random.Random(155)
    for _ in range(8):
        streams = [front.begin("stream", role=role, prompt=PROMPT, tokens=10) for role in roles]
        for stream in streams:
            front.first(stream)
        role = dice.choice(roles)
        victim = place.family().servers[role]
        kill(victim)
        answer = front.do("ask", role=role, prompt=PROMPT, tokens=4)
        assert is_answered(answer)
        for name, stream in zip(roles, streams, strict=True):
            end = front.result(stream)
            assert end["finished"] is not bool(end["interrupted"])
            assert end["finished"] or name == role, "a stream of another group was cut"
        wait_until(lambda role=role, victim=victim: place.family().servers[role] != victim, what="replaced")  # type: ignore[misc]
    assert place.family().proxies == before.proxies


def test_a_request_that_meets_an_idle_unload_is_answered__llama_swap_946(place: Place) -> None:
    """Requests at the end of the idle time, a little before and a little after."""
    place.configure({"chat": (Launch("chat", idle_ttl_s=1, knobs={"term": 0.3}),)})
    front = place.member()
    dice = random.Random(946)
    for _ in range(12):
        assert is_answered(front.do("ask", role="chat", prompt=PROMPT, tokens=4))
        time.sleep(1.0 + dice.uniform(-0.3, 1.5))  # llama-swap looks at its idle times once a second
    assert len(place.spawns()) > 1, "not one unload was met"
    assert place.group()["restarts"] == 0


def test_looking_neither_keeps_a_model_loaded_nor_loads_it__llama_cpp_23096(place: Place) -> None:
    place.configure({"chat": (Launch("chat", idle_ttl_s=2, knobs={"rate": 10}),)})
    front = place.member()
    assert front.ask("chat", PROMPT, tokens=30)  # three seconds: the idle time counts from its last byte
    ended = time.monotonic()

    def unloaded() -> bool:
        assert place.status()[0] == 0
        return identity.liveness(place.started()[-1]) is Liveness.DEAD

    place.until(unloaded, within=15, what="unloaded, looked at as it is")
    assert time.monotonic() - ended > 1.0, "counted from its first byte it would have been unloaded at once"
    for _ in range(5):
        assert place.status()[0] == 0
        place.cli("logs", "chat")
    assert len(place.spawns()) == 1
    assert place.group()["state"] == "running", "an unloaded server is no dead one"
    assert front.ask("chat", PROMPT)
    assert len(place.spawns()) == 2


def test_no_answer_is_empty_while_models_come_and_go__llama_swap_635(place: Place) -> None:
    """Two hundred requests, eight at a time, with an unload in the middle of each eight: none is lost by that."""
    place.configure({"chat": (Launch("chat", knobs={"load": 0.1, "rate": 40}),)})
    front = place.member()
    key = place.slot.group_key("chat").read_text().strip()
    unload = f"{place.group()['url']}/api/models/unload"
    for _ in range(25):
        asked = [ask(front) for _ in range(8)]
        httpx.post(unload, headers={"Authorization": f"Bearer {key}"}, trust_env=False, timeout=30)
        assert all(is_answered(front.result(number)) for number in asked)
    assert len(place.spawns()) > 5


def test_members_that_want_no_particular_context_take_the_engines__ollama_8029(place: Place) -> None:
    """Twenty alternations of one that was built with a large context and one that did not ask for any: no reload."""
    place.configure({"chat": (Launch("chat", context=4096),)})
    large = place.member("large")
    place.configure({"chat": (Launch("chat"),)})
    other = place.front("other")
    assert other.open() == "bind"
    before = place.family()
    for _ in range(20):
        assert large.ask("chat", PROMPT) == other.ask("chat", PROMPT)
    assert place.family() == before
    assert len(place.spawns()) == 1


def test_every_look_answers_while_a_keeper_is_being_replaced__hermes_1631(place: Place) -> None:
    """Nobody is refused a connection, for the warden holds the listener."""
    place.member()
    enough, refused = threading.Event(), list[str]()

    def look() -> None:
        while not enough.is_set():
            try:
                place.snapshot()
            except ControlError as error:
                if not error.listening:
                    refused.append(error.what)

    lookers = [threading.Thread(target=look) for _ in range(4)]
    for looker in lookers:
        looker.start()
    try:
        for _ in range(2):
            keeper = place.family().keeper
            kill(keeper)
            wait_until(lambda keeper=keeper: place.family().keeper != keeper, within=30, what="another")  # type: ignore[misc]
    finally:
        enough.set()
        for looker in lookers:
            looker.join()
    assert refused == []
