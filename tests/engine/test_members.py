"""Members hear of trouble by themselves: an engine that is gone is rebuilt by those who use it, once, and only then."""

from __future__ import annotations

import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import pytest
import trio

from supervisor import budgets, locks, membership
from supervisor.client import Engine, open_engine, open_engine_async
from supervisor.errors import NoEngineError
from tests.engine.kit import Launch
from tests.engine.seen import Deaths, kill
from tests.fakes.llama_server import story
from tests.support import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.engine.place import Place

pytestmark = pytest.mark.process

BODY = {"model": "chat", "prompt": "bees", "max_tokens": 4}
WHOLE = "".join(story("bees", 0, 4))


@pytest.fixture
def engine(place: Place, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    """An engine of which this very process is a member: one chat server."""
    for name, value in place.environment.items():
        monkeypatch.setenv(name, value)
    place.configure({"chat": (Launch("chat"),)})
    with open_engine(place.config, program="test", deadline_s=60.0) as engine:
        engine.wait_ready(60.0)
        place.family()
        yield engine


def ask(engine: Engine, **arguments: Any) -> Any:
    return engine.http.post(engine.base_url("chat") + "/completions", json=BODY, **arguments)


def end_warden(place: Place) -> None:
    """As a machine short of memory would: everything is gone afterwards."""
    family = place.family()
    with Deaths(family.everybody) as deaths:
        kill(family.warden)
        deaths.wait(within=5.0)


def test_an_engine_that_died_is_rebuilt_before_a_request_has_to_fail(place: Place, engine: Engine) -> None:
    assert ask(engine).json()["choices"][0]["text"] == WHOLE
    end_warden(place)
    # Nobody asks anything of the client: the thread that watches does it.
    wait_until(lambda: locks.is_held(place.slot.warden_lock), within=30, what="another warden")
    assert ask(engine).status_code == 200
    place.family()
    assert len(place.spawns("chat")) == 2


@pytest.mark.long
def test_fifty_requests_that_find_the_engine_gone_cause_one_build(place: Place, engine: Engine) -> None:
    url = engine.base_url("chat")
    together, answers = threading.Barrier(51), []

    def one() -> None:
        together.wait(30)
        answers.append(engine.http.post(url + "/completions", json=BODY).status_code)

    threads = [threading.Thread(target=one) for _ in range(50)]
    for thread in threads:
        thread.start()
    end_warden(place)
    together.wait(30)
    for thread in threads:
        thread.join(60)
    assert answers == [200] * 50
    assert engine.tenure.attempts == 1
    assert len(place.spawns("chat")) == 2


def test_w1_a_transport_blip_never_makes_a_member_leave(place: Place, engine: Engine) -> None:
    """lilbee's W1: after one lost connection the last member left, and its healthy engine was stopped."""
    before = place.family()
    ask(engine)
    seen = []
    for _ in range(5):
        # A connection that is closed under a request, and one that nobody takes.
        engine.http._transport._carrier.pool.close()  # type: ignore[attr-defined]
        assert ask(engine).status_code == 200
        assert ask(engine, extensions={"queenright_deadline": 0.0}).status_code == 503
        seen.append(membership.count(place.slot))
    assert seen == [1] * 5
    time.sleep(4 * budgets.MEMBER_POLL)  # the keeper looks twice at least
    assert place.family() == before
    assert engine.tenure.attempts == 0


@pytest.mark.long
def test_w24_a_late_failure_never_discards_what_was_just_rebuilt(place: Place, engine: Engine) -> None:
    """lilbee's W24: each thread that had failed dropped the engine of now, not the one that had failed it."""
    engine.base_url("chat")
    late = engine.tenure.attempts
    was = engine.endpoint("chat").generation
    end_warden(place)
    assert ask(engine).status_code == 200
    family = place.family()
    for _ in range(3):  # these saw the engine gone before it was rebuilt, and say so only now
        engine.tenure.need(late)
        found = engine.directory.wait("chat", unlike=was, deadline=time.monotonic() + 30)
        assert found.generation != was
    wait_until(lambda: not engine.tenure._wanted, what="the thread has heard it")
    assert place.family() == family
    assert engine.tenure.attempts == 1
    assert len(place.spawns("chat")) == 2


@pytest.mark.long
def test_an_engine_that_was_stopped_stays_down_until_it_is_needed(place: Place, engine: Engine) -> None:
    ask(engine)
    assert place.cli("stop").returncode == 0
    wait_until(lambda: engine.tenure._thread is not None and locks.is_held(place.slot.warden_lock) is False)
    time.sleep(1.0)  # long enough for a thread that wanted to build
    assert locks.is_held(place.slot.warden_lock) is False
    assert engine.tenure.attempts == 0
    assert ask(engine).status_code == 200
    assert engine.tenure.attempts == 1


@pytest.mark.long
def test_an_engine_that_is_held_is_waited_for_and_the_503_says_held(place: Place, engine: Engine) -> None:
    ask(engine)
    place.slot.hold_record.write_text("{}")
    assert place.cli("stop").returncode == 0
    answer = ask(engine, extensions={"queenright_deadline": 0.5})
    assert answer.status_code == 503
    assert answer.json()["error"]["state"] == "held"
    assert "is held" in answer.json()["error"]["reason"]
    assert engine.tenure.attempts == 0
    place.slot.hold_record.unlink()
    assert ask(engine).status_code == 200


@pytest.mark.long
def test_membership_is_never_missing_while_an_engine_is_rebuilt(place: Place, engine: Engine) -> None:
    ask(engine)
    enough, fewest = threading.Event(), [9]

    def look() -> None:
        while not enough.is_set():
            fewest[0] = min(fewest[0], membership.count(place.slot))

    looker = threading.Thread(target=look)
    looker.start()
    end_warden(place)
    assert ask(engine).status_code == 200
    enough.set()
    looker.join(30)
    assert fewest == [1]


@pytest.mark.long
def test_close_and_wait_says_when_the_slot_is_empty(place: Place, engine: Engine) -> None:
    other = place.member("other")
    assert engine.close(wait=True) is False, "somebody else uses it"
    assert locks.is_held(place.slot.warden_lock)
    again = open_engine(place.config)
    other.do("close")
    assert again.close(wait=True) is True
    assert locks.is_held(place.slot.warden_lock) is False


@pytest.mark.long
def test_events_tell_of_a_rebuild_and_end_with_the_engine(place: Place, engine: Engine) -> None:
    heard: list[dict[str, Any]] = []
    first = threading.Event()

    def listen() -> None:
        for snapshot in engine.events():
            heard.append(snapshot)
            first.set()

    listener = threading.Thread(target=listen)
    listener.start()
    assert first.wait(10)
    kill(place.family().proxies["chat"])
    wait_until(lambda: any(shot["state"] == "rebuilding" for shot in heard), what="it is told")
    place.wait_state("running")
    engine.close()
    listener.join(3 * budgets.WAIT_ROUND)
    assert not listener.is_alive()


@pytest.mark.long
def test_a_forked_child_rebuilds_nothing(place: Place, engine: Engine) -> None:
    engine.base_url("chat")
    child = os.fork()
    if child == 0:  # pragma: no cover - the child
        try:
            engine.tenure.need(0)
        except NoEngineError:
            engine.close()
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert membership.count(place.slot) == 1
    assert ask(engine).status_code == 200


@pytest.mark.long
@pytest.mark.trio
async def test_the_same_on_trio(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in place.environment.items():
        monkeypatch.setenv(name, value)
    place.configure({"chat": (Launch("chat"),)})
    async with open_engine_async(place.config, program="test", deadline_s=60.0) as engine:
        await engine.wait_ready(60.0)
        await trio.to_thread.run_sync(place.family)
        url = await engine.base_url("chat") + "/completions"
        assert (await engine.http.post(url, json=BODY)).json()["choices"][0]["text"] == WHOLE
        assert (await engine.status())["state"] == "running"
        await trio.to_thread.run_sync(end_warden, place)
        answers = []

        async def one() -> None:
            answers.append((await engine.http.post(url, json=BODY)).json()["choices"][0]["text"])

        async with trio.open_nursery() as nursery:
            for _ in range(10):
                nursery.start_soon(one)
        assert answers == [WHOLE] * 10
        assert (await engine.http.post(url, json=BODY)).status_code == 200
        assert len(place.spawns("chat")) == 2
        await trio.to_thread.run_sync(place.family)
    await trio.to_thread.run_sync(place.wait_empty)


@pytest.mark.trio
async def test_a_cancelled_opening_gives_back_what_it_gets(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in place.environment.items():
        monkeypatch.setenv(name, value)
    with trio.move_on_after(0.05):
        async with open_engine_async(place.config):
            await trio.sleep_forever()
    await trio.to_thread.run_sync(lambda: wait_until(lambda: membership.count(place.slot) == 0, within=30))


@pytest.mark.parametrize("where", ["main thread", pytest.param("worker thread", marks=pytest.mark.long)])
def test_an_engine_is_used_in_any_thread_and_no_signal_handler_is_installed(
    place: Place, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    for name, value in place.environment.items():
        monkeypatch.setenv(name, value)
    place.configure({"chat": (Launch("chat"),)})

    def handlers() -> dict[int, Any]:
        return {number: signal.getsignal(number) for number in signal.valid_signals()}

    def use() -> str:
        with open_engine(place.config, program="test", deadline_s=60.0) as engine:
            engine.wait_ready(60.0)
            end_warden(place)  # so that its watch has something to do
            text: str = ask(engine).json()["choices"][0]["text"]
            assert handlers() == before
        return text

    before = handlers()
    if where == "main thread":
        assert use() == WHOLE
    else:
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(use).result() == WHOLE
    assert handlers() == before


@pytest.mark.trio
@pytest.mark.parametrize("moment", ["answered", pytest.param("held", marks=pytest.mark.long)])
async def test_a_request_in_a_thread_that_trio_abandoned_goes_on_and_never_ends_with_cancelled(
    place: Place, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """It comes to its end as if nobody had been cancelled: with its answer, or, once the engine is closed, with a 503."""
    for name, value in place.environment.items():
        monkeypatch.setenv(name, value)
    place.configure({"chat": (Launch("chat", knobs={"rate": 5}),)})
    in_thread = trio.to_thread.run_sync
    engine = await in_thread(lambda: open_engine(place.config, program="test", deadline_s=60.0))
    begun, ends = threading.Event(), SimpleQueue[Any]()

    def work() -> None:
        try:
            engine.http.event_hooks = {"request": [lambda _: begun.set()]}
            response = ask(engine)
            ends.put((response.status_code, response.text))
        except BaseException as error:  # noqa: BLE001 - whatever it is: that is the question
            ends.put(error)

    try:
        url = await in_thread(engine.base_url, "chat")
        assert url
        await in_thread(place.family)
        if moment == "held":
            assert (await in_thread(place.cli, "hold")).returncode == 0
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(lambda: in_thread(work, abandon_on_cancel=True))
                assert await in_thread(begun.wait, 30)
                if moment == "answered":
                    await in_thread(lambda: wait_until(lambda: place.receipts() == 1, what="it is asked"))
                scope.cancel()
        assert scope.cancelled_caught
        assert ends.empty()
        if moment == "held":
            await in_thread(engine.close)
        end = await in_thread(lambda: ends.get(timeout=60))
    finally:
        await in_thread(engine.close)
    assert isinstance(end, tuple), end
    assert end[0] == (503 if moment == "held" else 200), end


@pytest.mark.long
def test_nothing_is_watched_before_something_is_asked(place: Place, engine: Engine) -> None:
    def watchers() -> list[str]:
        return [thread.name for thread in threading.enumerate() if thread.name == "queenright-watch"]

    assert watchers() == []
    engine.endpoint("chat")
    assert watchers() == ["queenright-watch"]
    engine.close()
    assert watchers() == []
