"""Keepers die or hang again and again, under load: nobody who is served, and nobody who asks, notices more than a wait."""

from __future__ import annotations

import json
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from supervisor import budgets, control, identity
from supervisor.control import ControlError
from tests.engine.kit import Launch
from tests.engine.seen import Deaths, kill, stays
from tests.fakes.llama_server import story

if TYPE_CHECKING:
    from tests.engine.fronts import Front
    from tests.engine.place import Place

pytestmark = pytest.mark.process

DEAD = identity.Liveness.DEAD
RATE = 20
PROMPT = "tell me of keepers"


def whole(tokens: int) -> str:
    return "".join(story(PROMPT, 0, tokens))


class Callers:
    """Threads that ask the control socket for its status, one connection after the other, until told that it is enough."""

    def __init__(self, place: Place, count: int = 4) -> None:
        self.place = place
        self.asked, self.unanswered, self.refused = 0, 0, list[str]()
        self._enough = threading.Event()
        self._pool = ThreadPoolExecutor(count)
        self.threads = [self._pool.submit(self._ask_on) for _ in range(count)]

    def _ask_on(self) -> None:
        while not self._enough.wait(0.02):
            try:
                control.ask(self.place.slot, "status", limit=30.0)
            except ControlError as error:
                if "nothing listens" in error.what or "refused" in error.what:
                    self.refused.append(error.what)
                self.unanswered += 1  # its keeper died with the question in its hands
            self.asked += 1

    def __enter__(self) -> Callers:
        return self

    def __exit__(self, *_: object) -> None:
        self._enough.set()
        self._pool.shutdown()
        for one in self.threads:
            one.result()


@pytest.mark.long
@pytest.mark.timeout(900)
def test_over_twenty_kills_of_keepers_nobody_is_refused_cut_or_replaced(place: Place) -> None:
    rounds, kills = 5, 4
    tokens = 6 * RATE
    place.configure({"chat": (Launch("chat", knobs={"rate": RATE}),), "embed": (Launch("embed", place.kit.embed),)})
    fronts = [place.member(name) for name in ("first", "second")]
    before = place.family()
    replaced = 0
    with Callers(place) as callers:
        for _ in range(rounds):
            streams = [(front, front.begin("stream", role="chat", prompt=PROMPT, tokens=tokens)) for front in fronts]
            for front, stream in streams:
                front.first(stream)
            for number in range(kills):
                old = place.snapshot()["keeper"]["pid"]
                kill(keeper_of(old))
                another_keeper(place, old)
                replaced += 1
                if number % 2:  # in order, so that the warden's delays begin anew
                    old = place.snapshot()["keeper"]["pid"]
                    control.ask(place.slot, "restart-keeper", who="a test")
                    another_keeper(place, old)
                    assert place.snapshot()["warden"]["keeper_crashes"] == 0
                    replaced += 1
            for front, stream in streams:
                answer = front.result(stream)
                assert (answer["text"], answer["finished"], answer["interrupted"]) == (whole(tokens), True, "")
            embedded(fronts[0])
    assert callers.refused == []
    assert callers.asked > replaced
    assert callers.unanswered <= replaced * len(callers.threads)
    after = place.family()
    assert (after.engine, after.warden) == (before.engine, before.warden)
    assert [len(place.spawns(role)) for role in ("chat", "embed")] == [1, 1]


def keeper_of(pid: int) -> identity.Identity:
    found = identity.of(pid)
    assert found is not None
    return found


def another_keeper(place: Place, old: int) -> None:
    """Wait until one answers that is not the old one."""

    def look() -> bool:
        try:
            return bool(place.snapshot()["keeper"]["pid"] != old)
        except ControlError:
            return False

    place.until(look, within=60, what="another keeper")


def embedded(front: Front) -> None:
    assert front.do("ask", role="embed", prompt=PROMPT)["status"] == 200


@pytest.mark.long
def test_a_keeper_that_is_stopped_is_replaced_in_time_and_the_engine_serves_on(place: Place) -> None:
    front = place.member()
    before = place.family()
    with Deaths([before.keeper]) as deaths:
        kill(before.keeper, signal.SIGSTOP)
        began = time.monotonic()
        assert front.ask("chat", PROMPT) == whole(8)
        deaths.wait(within=3 * (budgets.KEEPER_SILENCE + 2 * budgets.KEEPER_LOOK))
        assert time.monotonic() - began > budgets.KEEPER_SILENCE - budgets.KEEPER_BEAT - 0.5
    after = place.family()
    assert (after.engine, after.warden) == (before.engine, before.warden)
    assert place.snapshot()["warden"]["keeper_crashes"] == 1
    assert "hung" in json.loads(place.slot.warden_record.read_text())["last_keeper"]["why"]


@pytest.mark.long
def test_a_keeper_that_is_stopped_for_less_is_let_be(place: Place) -> None:
    place.member()
    before = place.family()
    kill(before.keeper, signal.SIGSTOP)
    stays(lambda: True, during=budgets.KEEPER_SILENCE - 2 * budgets.KEEPER_BEAT)
    kill(before.keeper, signal.SIGCONT)
    assert place.family() == before


@pytest.mark.long
def test_a_warden_that_was_stopped_with_its_keeper_kills_nobody(place: Place) -> None:
    """As by Ctrl-Z, a freezer or a suspend: when they wake, the silence was longer than any limit."""
    place.member()
    before = place.family()
    for who in (before.keeper, before.warden):
        kill(who, signal.SIGSTOP)
    stays(lambda: True, during=budgets.KEEPER_SILENCE + 3 * budgets.KEEPER_LOOK)
    kill(before.warden, signal.SIGCONT)
    assert stays(lambda: identity.liveness(before.keeper) is not DEAD, during=3 * budgets.KEEPER_LOOK)
    kill(before.keeper, signal.SIGCONT)
    assert place.family() == before


def test_the_kernel_ends_everything_when_the_warden_is_killed(place: Place) -> None:
    """Keeper, proxies and launched servers, by their death signals: nobody else is there to do it."""
    place.member()
    family = place.family()
    with Deaths(family.everybody) as deaths:
        kill(family.warden)
        deaths.wait(within=3.0)
    place.wait_empty()
