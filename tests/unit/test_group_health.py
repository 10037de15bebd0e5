"""A group that is told that something of it lives and does nothing."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from supervisor.contract import State
from supervisor.kinds import ServerState
from supervisor.lifecycle import Event
from supervisor.slot import Slot
from tests.unit.group_bench import EXITED, Bench, jumping, prepare

if TYPE_CHECKING:
    from pathlib import Path

WHY = "the chat server is wedged: 1 request in flight, no progress"


@pytest.fixture(autouse=True)
def _prepared(monkeypatch: pytest.MonkeyPatch) -> None:
    prepare(monkeypatch)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    slot = Slot(tmp_path / "slot")
    slot.prepare()
    return Bench(slot)


@jumping
async def test_it_is_killed_as_a_whole_and_started_again_with_the_cause(bench: Bench) -> None:
    async with bench.alive():
        assert bench.state() is State.RUNNING
        first = bench.warden.last
        bench.group.post(Event.UNHEALTHY, first, WHY)
        await bench.pass_time(5)
        assert bench.warden.kills == [(first, signal.SIGKILL, True)]
        assert bench.state() is State.RUNNING
        assert bench.warden.last != first
        assert bench.group.past.history.restarts == 1
        assert bench.group.past.cause is not None
        assert bench.group.past.cause.word.value == "wedged"


@jumping
async def test_while_it_starts_it_is_a_failed_start(bench: Bench) -> None:
    bench.kind.loads.extend(["hang", "hang", "hang"])
    async with bench.alive():
        for _ in range(3):
            bench.group.post(Event.UNHEALTHY, bench.warden.last, "its proxy is hung: it is stopped")
            await bench.pass_time(60)
        assert bench.state() is State.FAILED
        assert "hung" in bench.group.reason
        assert len(bench.warden.spawned) == 3


@jumping
async def test_news_of_a_generation_that_is_gone_kills_nobody(bench: Bench) -> None:
    async with bench.alive():
        first = bench.warden.last
        await bench.happen(bench.warden.die, first)
        await bench.pass_time(5)
        kills = list(bench.warden.kills)
        bench.group.post(Event.UNHEALTHY, first, WHY)
        await bench.pass_time(5)
        assert bench.warden.kills == kills
        assert bench.state() is State.RUNNING


@jumping
async def test_what_is_being_killed_is_watched_no_more(bench: Bench) -> None:
    """What load and watch would say of the kill is not its cause."""
    async with bench.alive():
        first = bench.warden.last
        assert bench.kind.watching == [first]
        bench.warden.obeys = set()
        bench.group.post(Event.UNHEALTHY, first, WHY)
        await bench.pass_time(0)
        assert bench.state() is State.REBUILDING
        assert bench.kind.watching == []
        bench.warden.die(first)


@jumping
async def test_who_died_by_itself_meanwhile_was_not_killed_for_it(bench: Bench) -> None:
    async with bench.alive():
        first = bench.warden.last
        await bench.happen(bench.warden.exit, first, EXITED, 3)
        bench.group.post(Event.UNHEALTHY, first, WHY)
        await bench.pass_time(0)
        assert bench.warden.kills == []
        await bench.happen(bench.warden.sweep, first)
        await bench.pass_time(5)
        assert bench.group.past.cause is not None
        assert bench.group.past.cause.word.value == "exit status"


@jumping
async def test_a_group_that_stops_is_not_rebuilt(bench: Bench) -> None:
    async with bench.alive():
        first = bench.warden.last
        bench.warden.obeys = {signal.SIGKILL}
        await bench.tell(Event.STOP, "asked")
        bench.group.post(Event.UNHEALTHY, first, WHY)
        await bench.pass_time(10)
        assert bench.state() is State.DOWN
        assert len(bench.warden.spawned) == 1


@jumping
async def test_what_is_thought_of_each_process_is_in_the_description(bench: Bench) -> None:
    async with bench.alive():
        bench.prober().note_activity("chat", 2, 0)
        await bench.pass_time(3)
        facts = bench.group.describe()
        health = {server["role"]: server["health"] for server in facts["servers"]}
        assert health["chat"]["in_flight"] == 2
        assert facts["proxy"]["health"]["verdict"] in ("healthy", "unknown")
        bench.life().servers["chat"] = ServerState.UNLOADED
        bench.prober().note_activity("chat", 0, 0)
        await bench.pass_time(3)
        (chat, _) = bench.group.describe()["servers"]
        assert chat["health"] is None
