"""One group: what it does about what happens to it. The warden, the kind and the time are the test's."""

from __future__ import annotations

import json
import random
import signal
import socket
import time
from typing import TYPE_CHECKING, Any

import pytest
import trio
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

from supervisor import budgets, logfiles, ports, records
from supervisor.birth import mark_of
from supervisor.causes import Word
from supervisor.contract import State
from supervisor.devices import fragmentation
from supervisor.errors import EngineStartError, ProxyLostError
from supervisor.kinds import ServerState
from supervisor.lifecycle import Event
from supervisor.ports import Owner, Ownership
from supervisor.procs import SpawnRefusedError
from supervisor.screen import plain
from supervisor.slot import Slot
from tests.unit.group_bench import EXITED, KILLED, SPEC, Bench, FakeWarden, jumping, prepare

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from supervisor.contract import GroupSpec

pytestmark = pytest.mark.timeout(120)

TERM, KILL = int(signal.SIGTERM), int(signal.SIGKILL)
LONG = 1e6
"""Seconds: more than anything in a group may take."""


@pytest.fixture(autouse=True)
def _under_control() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        prepare(patched)
        yield


@pytest.fixture
def slot(tmp_path: Path) -> Slot:
    made = Slot(tmp_path / "slot")
    made.prepare()
    return made


@pytest.fixture
def bench(slot: Slot) -> Bench:
    return Bench(slot)


def files_of(bench: Bench) -> set[str]:
    """What stands in `groups/`, but for the record, key and last port of the group itself."""
    return {path.name for path in bench.slot.groups.iterdir()} - {"chat.json", "chat.key", "chat.port"}


# --- starting -----------------------------------------------------------------------------------------------------------


@jumping
async def test_a_group_that_is_wanted_is_started_and_becomes_ready(bench: Bench) -> None:
    async with bench.alive():
        assert bench.heard == [State.STARTING, State.RUNNING]
        assert bench.group.reason == ""
        spawned = bench.warden.spawned[0]
        assert spawned["group"] == "chat"
        assert spawned["argv"][0] == "/bin/proxy"
        assert spawned["lock"] == bench.slot.generation_lock("chat", spawned["gen"])
        assert spawned["log"] == bench.slot.group_log("chat")
        assert bench.group.describe()["generation"] == spawned["gen"]
        assert bench.kind.watching == [spawned["gen"]]
        assert files_of(bench) == {f"chat.{spawned['gen']}.json", f"chat.{spawned['gen']}.keys"}


@jumping
async def test_its_processes_get_the_few_variables_that_everybody_gets_and_its_own(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/bin:/usr/bin")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    async with bench.alive():
        given = bench.warden.spawned[0]["env"]
    assert given["PATH"] == "/bin:/usr/bin"
    assert given["OF_THE_GROUP"] == "1"
    assert "CUDA_VISIBLE_DEVICES" not in given
    assert given["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"


@jumping
async def test_devices_are_numbered_as_the_configuration_says_if_it_does__gpustack_1633(bench: Bench) -> None:
    bench = Bench(bench.slot, spec=evolve(SPEC, environment={"CUDA_DEVICE_ORDER": "FASTEST_FIRST"}))
    async with bench.alive():
        assert bench.warden.spawned[0]["env"]["CUDA_DEVICE_ORDER"] == "FASTEST_FIRST"


@jumping
async def test_a_load_that_stalls_for_contiguous_memory_says_so_and_nothing_else_does__halogen_33(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = [40]
    monkeypatch.setattr(fragmentation, "compaction_stalls", lambda: count[0])
    bench.kind.loads.append("hang")
    async with bench.alive():
        assert "stalls" not in bench.group.describe()["reason"]
        count[0] = 52
        assert bench.group.describe()["reason"].endswith("compaction stalls +12")
        await bench.pass_time(SPEC.start_limit_s + 1)
        assert bench.state() is State.RUNNING
        count[0] = 99
        assert "stalls" not in bench.group.describe()["reason"]


@jumping
async def test_a_group_that_does_not_load_in_time_is_killed_tried_again_and_given_up(bench: Bench) -> None:
    bench.kind.loads.extend(["hang"] * 10)
    async with bench.alive():
        await bench.pass_time(SPEC.start_limit_s - 1)
        assert bench.state() is State.STARTING
        assert bench.warden.kills == []
        await bench.pass_time(LONG)
        assert bench.state() is State.FAILED
        assert len(bench.warden.spawned) == budgets.DOOMED_TRIES
        assert [(number, everybody) for _, number, everybody in bench.warden.kills] == [(KILL, True)] * 3
        assert bench.group.reason == (
            "given up after 3 starts that never became ready; the last: "
            "not ready within 120 s (start_limit_s of group chat): its servers are loading"
        )
        assert bench.warden.table == {}
        assert files_of(bench) == set()


@jumping
async def test_what_the_kind_says_is_the_reason(bench: Bench) -> None:
    bench.kind.loads.append(EngineStartError("the chat server did not start: bad flag"))
    bench.kind.loads.append("hang")
    async with bench.alive():
        await bench.pass_time(1)
        assert bench.group.reason.startswith("the chat server did not start: bad flag; restart 1 in a row")


@jumping
async def test_a_proxy_that_never_listens_is_named_as_such(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "owned_by", lambda port, pids: Ownership(Owner.NOBODY))
    async with bench.alive():
        await bench.pass_time(SPEC.start_limit_s + 0.1)
        assert "its proxy does not listen yet" in bench.group.reason
        assert bench.kind.loading == []


@jumping
async def test_vllm_51275_a_foreign_listener_is_never_taken_for_ours(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ports, "owned_by", lambda port, pids: Ownership(Owner.FOREIGN))
    async with bench.alive():
        await bench.pass_time(LONG)
        assert bench.state() is State.FAILED
        tried = [start["note"]["ports"]["proxy"] for start in bench.warden.spawned]
        assert len(set(tried)) == len(tried) == budgets.PORT_TRIES, "another port each time"
        assert bench.group.reason.startswith("given up after 3 starts whose ports other programs took; the last: ")
        assert f"port conflict: {tried[-1]}; port {tried[-1]} was taken by another program" in bench.group.reason
        assert bench.group.past.history.doomed == 0, "that is not the engine's fault"
        assert bench.kind.loading == []
        assert State.RUNNING not in bench.heard


@jumping
async def test_a_port_that_was_taken_once_costs_no_try_of_the_engine(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    verdicts = iter([Ownership(Owner.FOREIGN)] * 2)
    monkeypatch.setattr(ports, "owned_by", lambda port, pids: next(verdicts, Ownership(Owner.OURS)))
    async with bench.alive():
        await bench.pass_time(5)
        assert bench.state() is State.RUNNING
        assert bench.group.past.cause is not None
        assert bench.group.past.cause.word is Word.PORT_CONFLICT
        first, *_, last = [start["note"]["ports"]["proxy"] for start in bench.warden.spawned]
        assert first != last


@jumping
@pytest.mark.parametrize("failures", [1, 2])
async def test_a_warden_that_refuses_a_start_is_asked_again(bench: Bench, failures: int) -> None:
    bench.warden.refusals.extend(["No such file or directory"] * failures)
    async with bench.alive():
        await bench.pass_time(10)
        assert bench.state() is State.RUNNING
        assert len(bench.warden.spawned) == 1
        assert bench.warden.errors == []
        assert len(files_of(bench)) == 2, "a start that failed leaves no file with a key in it"


@jumping
async def test_a_start_that_is_always_refused_is_given_up_with_the_reason(bench: Bench) -> None:
    bench.warden.refusals.extend(["Permission denied"] * 10)
    async with bench.alive():
        await bench.pass_time(LONG)
        assert bench.state() is State.FAILED
        assert "cannot start /bin/proxy: Permission denied" in bench.group.reason
        assert files_of(bench) == set()


@jumping
async def test_a_disk_that_takes_no_file_counts_as_a_death(bench: Bench) -> None:
    bench.slot.groups.rename(bench.slot.path / "away")
    async with bench.alive():
        await bench.pass_time(sum(budgets.RESTART_DELAYS))  # not LONG: its record is tried again every second
        assert bench.state() is State.FAILED
        assert "cannot be written" in bench.group.reason
        assert bench.warden.spawned == []


@jumping
async def test_the_log_of_a_group_that_failed_is_shown(bench: Bench) -> None:
    log = bench.slot.group_log("chat")
    log.write_text("error: of another generation\n")
    bench.kind.loads.extend(["hang"] * 3)
    async with bench.alive():
        for _ in range(budgets.DOOMED_TRIES):
            with log.open("a") as file:
                file.write("loading\nerror: failed to open GGUF file\n")
            await bench.happen(bench.warden.die, bench.warden.last, EXITED, 1)
            await bench.pass_time(5)
        shown = bench.group.describe()
        assert shown["state"] == "failed"
        assert shown["reason"].endswith("the last: exit status 1: error: failed to open GGUF file")
        assert shown["log_tail"] == ["loading", "error: failed to open GGUF file"]


@jumping
async def test_the_cause_of_the_last_end_is_shown_and_told_to_the_next_keeper(bench: Bench) -> None:
    log = bench.slot.group_log("chat")
    bench.kind.loads.append("hang")
    async with bench.alive():
        assert bench.group.describe()["cause"] is None
        log.write_text("error: invalid argument: --nope\n" + "and how it is used\n" * 30)
        await bench.happen(bench.warden.die, bench.warden.last, EXITED, 1)
        assert bench.state() is State.RUNNING
        assert bench.group.describe()["cause"] == {"word": "bad flag", "detail": "--nope"}
    first = bench.warden.spawned[0]["gen"]
    assert bench.ends == [
        {"group": "chat", "generation": first, "cause": "bad flag", "detail": "--nope", "restart": True, "delay": 0.0}
    ]
    other = bench.next_keepers()
    async with other.alive(row_of(other)):
        assert other.group.past.cause == bench.group.past.cause


@jumping
async def test_the_reason_names_the_cause_first(bench: Bench) -> None:
    def refuse(report: Any) -> None:
        bench.slot.group_log("chat").write_text("error: invalid argument: --nope\n")
        raise EngineStartError("the chat server did not start")

    bench.kind.loads.extend([refuse, "hang"])
    async with bench.alive():
        assert bench.group.reason == (
            "bad flag: --nope; the chat server did not start: error: invalid argument: --nope; "
            "restart 1 in a row at once"
        )


# --- the start-up log ---------------------------------------------------------------------------------------------------


@jumping
async def test_the_first_lines_of_a_start_outlive_the_cap_on_the_log(bench: Bench) -> None:
    log = bench.slot.group_log("chat")
    log.write_text("of an earlier life\n")
    bench.kind.loads.append("hang")
    async with bench.alive():
        with log.open("a") as file:
            file.write("first\n")
        await bench.pass_time(budgets.START_LOG_LOOK * 1.5)
        log.write_text("second\n")  # it was cut meanwhile, and written to
        await bench.pass_time(budgets.START_LOG_LOOK)
        kept = bench.slot.start_log("chat", bench.warden.last)
        assert kept.read_text() == "first\nsecond\n"
        assert kept.stat().st_mode & 0o777 == 0o600


@jumping
async def test_what_it_says_after_it_is_ready_is_not_of_its_start(bench: Bench) -> None:
    log = bench.slot.group_log("chat")

    def load(report: Any) -> None:
        log.write_text("loaded\n")

    bench.kind.loads.append(load)
    async with bench.alive():
        with log.open("a") as file:
            file.write("a request\n")
        await bench.happen(bench.warden.die, bench.warden.last)
        assert bench.slot.start_log("chat", bench.warden.spawned[0]["gen"]).read_text() == "loaded\n"


@jumping
async def test_the_next_keeper_goes_on_keeping_the_start(bench: Bench) -> None:
    log = bench.slot.group_log("chat")
    bench.kind.loads.append("hang")
    async with bench.alive():
        log.write_text("first\n")
        await bench.pass_time(budgets.START_LOG_LOOK)
    other = bench.next_keepers()
    other.kind.loads.append("hang")
    async with other.alive(row_of(other)):
        with log.open("a") as file:
            file.write("second\n")
        await other.pass_time(budgets.START_LOG_LOOK * 1.5)
        assert bench.slot.start_log("chat", bench.warden.last).read_text() == "first\nsecond\n"


@jumping
async def test_of_many_generations_the_last_starts_are_kept(bench: Bench) -> None:
    log = bench.slot.group_log("chat")
    log.touch()
    async with bench.alive():
        for number in range(8):
            bench.kind.loads.append("hang")
            await bench.happen(bench.warden.die, bench.warden.last)
            await bench.pass_time(budgets.RESTART_DELAYS[-1])
            with log.open("a") as file:
                file.write(f"start {number}\n")
            await bench.pass_time(2)
        await bench.happen(bench.warden.die, bench.warden.last)
        assert len(logfiles.start_logs(bench.slot.logs, "chat")) == logfiles.START_LOGS
        assert bench.slot.start_log("chat", bench.warden.last).read_text() == "start 7\n"


# --- dying --------------------------------------------------------------------------------------------------------------


@jumping
async def test_a_leader_that_dies_is_replaced_at_once_and_then_more_slowly(bench: Bench) -> None:
    async with bench.alive():
        for number, delay in enumerate(budgets.RESTART_DELAYS[:4]):
            await bench.happen(bench.warden.die, bench.warden.last)
            if delay:
                assert bench.state() is State.REBUILDING
                assert bench.group.reason == f"killed by SIGKILL; restart {number + 1} in a row in {delay:g} s"
                await bench.pass_time(delay - 0.01)
                assert len(bench.warden.spawned) == number + 1
            await bench.pass_time(0.02)
            if bench.state() is State.FAILED:  # something could not be killed for a while: only a retry brings it back
                assert "cannot be killed" in bench.group.reason
                assert bench.group.retry()
                await trio.sleep(budgets.GROUP_STOP)
            assert bench.state() is State.RUNNING
            assert len(bench.warden.spawned) == number + 2
        assert bench.group.describe()["restarts"] == 4
        assert len(bench.warden.table) == 1


@jumping
async def test_a_life_in_health_ends_the_row(bench: Bench) -> None:
    async with bench.alive():
        for _ in range(3):
            await bench.happen(bench.warden.die, bench.warden.last)
            await bench.pass_time(1.5)
        await bench.pass_time(budgets.RESTART_RESET)
        await bench.happen(bench.warden.die, bench.warden.last)
        assert bench.state() is State.RUNNING


@jumping
async def test_a_sigterm_that_nobody_of_us_sent_starts_nothing_for_a_moment(bench: Bench) -> None:
    """For that is what a shutdown of the machine looks like; the proxies answer it with exit status 0."""
    async with bench.alive():
        await bench.happen(bench.warden.die, bench.warden.last, EXITED, 0)
        await bench.pass_time(budgets.TERM_STORM_PAUSE * 0.9)
        assert len(bench.warden.spawned) == 1
        await bench.tell(Event.STOP, "signal 15")
        assert bench.state() is State.DOWN
        await bench.pass_time(LONG)
        assert len(bench.warden.spawned) == 1


@jumping
async def test_between_death_and_the_end_of_the_sweep_nothing_is_started(bench: Bench) -> None:
    async with bench.alive():
        first = bench.warden.last
        await bench.happen(bench.warden.exit, first, KILLED, KILL)
        assert bench.state() is State.REBUILDING
        assert bench.group.reason == "its proxy ended: killed by SIGKILL"
        assert bench.kind.watching == []
        await bench.pass_time(1)
        assert bench.warden.last == first
        await bench.happen(bench.warden.sweep, first)
        assert bench.warden.last != first
        assert bench.state() is State.RUNNING


@jumping
async def test_a_leader_that_dies_in_the_moment_in_which_it_is_ready(bench: Bench) -> None:
    """READY is behind EXITED in the inbox: it must not make a dead group a running one."""
    async with bench.alive():
        generation = bench.warden.last
        bench.kind.loads.append("hang")
        bench.life().exited.set()  # as _listen does, before the inbox is looked into
        bench.group.post(Event.EXITED, generation)
        for event in (Event.READY, Event.SERVER_LOST, Event.NOT_READY):
            bench.group.post(event, generation)
        await wait_all_tasks_blocked()
        assert bench.state() is State.REBUILDING
        await bench.happen(bench.warden.die, generation)
        assert bench.heard[-1] is State.REBUILDING
        assert len(bench.warden.spawned) == 2


@jumping
async def test_a_proxy_that_breaks_off_a_load_because_it_was_killed_is_named_by_its_signal(bench: Bench) -> None:
    bench.kind.loads.append(ProxyLostError("the chat server did not start: the proxy broke off (RemoteProtocolError)"))
    async with bench.alive():
        await bench.pass_time(budgets.BROKEN_OFF / 2)
        await bench.happen(bench.warden.exit, bench.warden.last, KILLED, KILL)
        assert bench.group.reason == "its proxy ended: killed by SIGKILL"
        await bench.happen(bench.warden.sweep, bench.warden.last)
        assert bench.warden.kills == []
        assert [(end["cause"], end["detail"]) for end in bench.ends] == [("signal", "SIGKILL, sent by whom is unknown")]


@jumping
async def test_a_proxy_that_breaks_off_a_load_and_lives_is_ended(bench: Bench) -> None:
    bench.kind.loads.append(ProxyLostError("the proxy broke off"))
    async with bench.alive():
        first = bench.warden.last
        assert bench.warden.kills == []
        await bench.pass_time(2 * budgets.BROKEN_OFF)
        assert bench.warden.kills == [(first, KILL, True)]
        assert bench.state() is State.RUNNING


@jumping
async def test_what_we_killed_ourselves_is_not_said_to_have_ended_by_a_signal(bench: Bench) -> None:
    bench.warden.obeys = set()
    bench.kind.loads.append("hang")
    async with bench.alive():
        await bench.pass_time(SPEC.start_limit_s + 1)
        await bench.happen(bench.warden.exit, bench.warden.last, KILLED, KILL)
        assert bench.group.reason.startswith("ended by us: not ready within ")
        await bench.happen(bench.warden.sweep, bench.warden.last)
        await bench.happen(bench.warden.exit, bench.warden.last, KILLED, KILL)
        assert bench.group.reason == "its proxy ended: killed by SIGKILL"  # of the next one that is not so


@jumping
async def test_what_an_old_generation_still_says_is_dropped(bench: Bench) -> None:
    async with bench.alive():
        first = bench.warden.last
        await bench.happen(bench.warden.die, first)
        assert bench.state() is State.RUNNING
        seen = len(bench.heard)
        for event in Event:
            bench.group.post(event, first, "from the grave")
        await wait_all_tasks_blocked()
        assert bench.state() is State.RUNNING
        assert len(bench.heard) == seen
        assert bench.warden.kills == []


@jumping
async def test_what_cannot_be_killed_is_failed_and_not_replaced(bench: Bench) -> None:
    async with bench.alive():
        await bench.happen(bench.warden.exit, bench.warden.last, KILLED, KILL)
        await bench.happen(bench.warden.cannot_kill, bench.warden.last, 77, 78)
        assert bench.state() is State.FAILED
        assert bench.group.reason == "cannot be killed: pids 77 78"
        await bench.pass_time(LONG)
        assert len(bench.warden.spawned) == 1


@jumping
async def test_nothing_is_started_beside_what_cannot_be_killed(bench: Bench) -> None:
    async with bench.alive():
        stuck = bench.warden.last
        await bench.happen(bench.warden.exit, stuck, KILLED, KILL)
        await bench.happen(bench.warden.cannot_kill, stuck, 77)
        await bench.tell(Event.WANTED)
        assert bench.state() is State.FAILED
        assert "77" in bench.group.reason
        assert len(bench.warden.spawned) == 1
        assert list(bench.warden.table) == [stuck]
        await bench.happen(bench.warden.sweep, stuck)  # it died at last: nobody has to ask
        assert list(bench.warden.table) == [bench.warden.last] != [stuck]
        assert bench.state() is State.RUNNING


@jumping
@pytest.mark.parametrize("left", [False, True])
async def test_a_leader_that_outlives_sigkill_holds_its_group_until_it_dies_at_last(bench: Bench, left: bool) -> None:
    """`left`: and then something that it left behind cannot be killed either, for a while."""
    async with bench.alive():
        stuck = bench.warden.last
        bench.warden.obeys = set()
        await bench.tell(Event.NOT_READY, "hung")
        assert bench.state() is State.REBUILDING
        await bench.happen(bench.warden.cannot_kill, stuck, 51)
        assert bench.state() is State.FAILED
        assert "cannot be killed: pids 51" in bench.group.reason
        bench.group.post(Event.READY, stuck)  # it was about to be
        await bench.pass_time(LONG)
        assert (bench.state(), len(bench.warden.spawned)) == (State.FAILED, 1)
        await bench.happen(bench.warden.exit, stuck, KILLED, KILL)
        if left:
            await bench.happen(bench.warden.cannot_kill, stuck, 77)
        assert (bench.state(), len(bench.warden.spawned)) == (State.FAILED, 1)
        await bench.happen(bench.warden.sweep, stuck)
        assert (bench.state(), len(bench.warden.spawned)) == (State.RUNNING, 2)


@jumping
async def test_what_could_not_be_killed_does_not_come_back_in_a_stop(bench: Bench) -> None:
    bench.warden.obeys = set()
    async with bench.alive():
        stuck = bench.warden.last
        await bench.tell(Event.STOP)
        await bench.pass_time(SPEC.grace_s + 1)
        await bench.happen(bench.warden.cannot_kill, stuck, 51)
        assert bench.state() is State.DOWN
        await bench.happen(bench.warden.exit, stuck, KILLED, KILL)
        await bench.happen(bench.warden.cannot_kill, stuck, 77)
        await bench.happen(bench.warden.sweep, stuck)
        await bench.pass_time(LONG)
        assert (bench.state(), len(bench.warden.spawned), bench.warden.table) == (State.DOWN, 1, {})


# --- servers ------------------------------------------------------------------------------------------------------------


@jumping
async def test_a_server_that_dies_is_loaded_again_by_its_proxy(bench: Bench) -> None:
    async with bench.alive():
        bench.kind.loads.append("hang")
        await bench.lose("chat")
        assert bench.state() is State.DEGRADED
        assert bench.group.reason == "the chat server died; it is loaded again"
        assert len(bench.kind.loading) == 2
        await bench.pass_time(SPEC.start_limit_s - 1)
        assert bench.state() is State.DEGRADED

    async with (again := Bench(bench.slot)).alive():
        await again.lose("chat")
        assert again.heard == [State.STARTING, State.RUNNING, State.DEGRADED, State.RUNNING]
        assert again.kind.asked[1:] == [["chat"]]  # the dead one alone
        assert again.group.reason == ""
        assert len(again.warden.spawned) == 1
        assert {server["state"] for server in again.group.describe()["servers"]} == {"ready"}


@jumping
@pytest.mark.parametrize("how", ["hang", "refuse"])
async def test_a_server_that_does_not_come_back_takes_its_group_with_it(bench: Bench, how: str) -> None:
    async with bench.alive():
        first = bench.warden.last
        bench.kind.loads.append("hang" if how == "hang" else EngineStartError("no memory"))
        await bench.lose("draft")
        await bench.pass_time(SPEC.start_limit_s + 1)
        assert bench.warden.kills == [(first, KILL, True)]
        assert bench.heard[-3:] == [State.DEGRADED, State.REBUILDING, State.RUNNING]
        assert bench.warden.living == [bench.warden.last] != [first]


@jumping
async def test_a_server_that_dies_while_another_is_loaded_is_not_forgotten(bench: Bench) -> None:
    def draft_dies(report: Any) -> None:
        report("draft", ServerState.LOST)

    async with bench.alive():
        bench.kind.loads.append(draft_dies)
        await bench.lose("chat")
        assert bench.state() is State.RUNNING
        assert {server["state"] for server in bench.group.describe()["servers"]} == {"ready"}
        assert len(bench.kind.loading) == 3


@jumping
async def test_a_server_is_lost_once_however_often_it_is_said(bench: Bench) -> None:
    async with bench.alive():
        bench.kind.loads.append("hang")
        for _ in range(3):
            await bench.lose("chat")
        assert len(bench.kind.loading) == 2


@jumping
async def test_a_server_that_dies_again_and_again_is_loaded_more_slowly(bench: Bench) -> None:
    async with bench.alive():
        await bench.lose("chat")
        assert bench.state() is State.RUNNING  # the first time at once
        for delay in budgets.RESTART_DELAYS[1:4]:
            loads = len(bench.kind.loading)
            await bench.lose("chat")
            assert bench.group.reason.startswith("the chat server died; it is loaded again, the ")
            assert bench.group.reason.endswith(f" time in a row, in {delay:g} s")
            await bench.pass_time(delay * 0.9)
            assert (bench.state(), len(bench.kind.loading)) == (State.DEGRADED, loads)
            await bench.pass_time(delay * 0.2)
            assert (bench.state(), len(bench.kind.loading)) == (State.RUNNING, loads + 1)
        assert [end["generation"] for end in bench.ends] == [bench.warden.last] * 4
        assert (bench.group.describe()["reloads"], bench.group.describe()["restarts"]) == (4, 0)
        assert ", 4 reloads" in render_group(bench.group.describe())
        await bench.happen(bench.warden.die, bench.warden.last)
        assert bench.state() is State.RUNNING  # and the group's own restart is not slower for it
        assert len(bench.warden.spawned) == 2


@pytest.mark.long
@jumping
async def test_a_server_that_always_lives_a_little_longer_than_the_row_is_given_up_with_its_group(bench: Bench) -> None:
    async with bench.alive():
        for _ in range(budgets.RESTART_INTENSITY):
            await bench.lose("chat")
            assert bench.state() is State.RUNNING
            await bench.pass_time(budgets.RESTART_RESET + 1)
        await bench.lose("chat")
        assert bench.state() is State.FAILED
        assert bench.group.reason == (
            "given up after 30 restarts within 60 minutes; the last end: the chat server died"
        )
        assert bench.warden.table == {}
        await bench.tell(Event.WANTED)
        assert bench.state() is State.RUNNING
        await bench.lose("chat")
        assert bench.state() is State.RUNNING


@jumping
async def test_a_lost_server_is_named_with_what_its_proxy_says_of_its_end(bench: Bench) -> None:
    async with bench.alive():
        bench.slot.group_log("chat").write_text("[WARN] <chat> upstream process exited unexpectedly (-9)\n")
        bench.kind.loads.append("hang")
        await bench.lose("chat")
        assert bench.group.reason == (
            "the chat server died; it is loaded again (signal: SIGKILL, sent by whom is unknown)"
        )


@jumping
async def test_a_server_that_dies_each_time_another_is_loaded_makes_no_tight_loop(bench: Bench) -> None:
    async with bench.alive():
        bench.kind.loads.extend([lambda report: report("draft", ServerState.LOST)] * 1000)
        await bench.lose("chat")
        await bench.pass_time(100)
        assert len(bench.kind.loading) < 15


@jumping
async def test_a_stranger_on_a_servers_port_is_never_taken_for_the_server(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """He would get prompts and the clients' key."""
    honest = ports.owned_by

    def owned_by(port: int, pids: Any) -> ports.Ownership:
        mine = bench.group.life
        taken = mine is not None and port == mine.birth.ports["chat"]
        return ports.Ownership(ports.Owner.FOREIGN) if taken else honest(port, pids)

    monkeypatch.setattr(ports, "owned_by", owned_by)
    async with bench.alive():
        await bench.pass_time(60)
        assert bench.state() is State.FAILED
        assert State.RUNNING not in bench.heard
        assert "(chat) was taken by another program" in bench.group.reason


@jumping
async def test_an_unload_is_no_loss(bench: Bench) -> None:
    async with bench.alive():
        assert bench.kind.report is not None
        for state in (ServerState.UNLOADING, ServerState.UNLOADED):
            await bench.happen(bench.kind.report, "chat", state)
        assert bench.state() is State.RUNNING
        assert bench.group.describe()["servers"][0]["state"] == "unloaded"


# --- draining -----------------------------------------------------------------------------------------------------------


CHANGED = evolve(SPEC, environment={"OF_THE_GROUP": "2"})


def owe(bench: Bench, chat: int, draft: int = 0) -> None:
    """So many requests are in flight, as the kind's watch says."""
    if bench.group.nurse is not None:
        bench.prober().note_activity("chat", chat, 0)
        bench.prober().note_activity("draft", draft, 0)


@jumping
async def test_a_group_that_is_drained_serves_on_until_a_moment_without_requests(bench: Bench) -> None:
    async with bench.alive():
        owe(bench, 1, 1)
        first = bench.warden.last
        await bench.happen(bench.group.reshape, CHANGED, bench.kind, "changed", 30.0)
        await bench.pass_time(10)
        assert (bench.state(), bench.warden.last) == (State.RUNNING, first)
        assert (bench.group.is_settled, bench.group.is_draining) == (True, True), "whoever wants it has it"
        assert "waits for its requests in flight, 30 s at most" in bench.group.reason
        owe(bench, 1, 0)
        await bench.pass_time(1)
        assert bench.warden.last == first
        owe(bench, 0, 0)
        await bench.pass_time(1)
        assert (bench.state(), bench.group.is_draining, bench.group.spec) == (State.RUNNING, False, CHANGED)
        assert bench.warden.last != first


@jumping
async def test_a_drain_ends_at_its_limit(bench: Bench) -> None:
    async with bench.alive():
        owe(bench, 2)
        first = bench.warden.last
        await bench.happen(bench.group.reshape, CHANGED, bench.kind, "changed", 7.0)
        await bench.pass_time(6.9)
        assert bench.warden.last == first
        await bench.pass_time(0.2)
        assert bench.warden.last != first


@jumping
async def test_what_is_not_known_to_be_in_flight_is_not_waited_for_and_that_is_said(bench: Bench) -> None:
    async with bench.alive():
        bench.prober().note_activity("chat", 3, 0)  # and nothing of the other one
        bench.warden.obeys = set()
        await bench.happen(bench.group.retire, "nobody wants it", 30.0)
        assert bench.state() is State.RUNNING
        await bench.pass_time(budgets.DRAIN_LEARN + 0.1)
        assert bench.state() is State.STOPPING
        assert bench.group.reason == "nobody wants it; of chat it is not known what is in flight"


@jumping
@pytest.mark.parametrize("how", ["stop", "hold", "reshape", "dies"])
async def test_whatever_else_stops_a_group_ends_its_drain(bench: Bench, how: str) -> None:
    async with bench.alive():
        owe(bench, 1)
        first = bench.warden.last
        await bench.happen(bench.group.reshape, CHANGED, bench.kind, "changed", 300.0)
        await {
            "stop": lambda: bench.happen(bench.group.stop, "the end"),
            "hold": lambda: bench.happen(bench.group.hold, "a benchmark"),
            "reshape": lambda: bench.happen(bench.group.reshape, SPEC, bench.kind, "changed back"),
            "dies": lambda: bench.happen(bench.warden.die, first),
        }[how]()
        await bench.pass_time(3)
        assert not bench.group.is_draining
        expected = {"stop": State.DOWN, "hold": State.HELD}.get(how, State.RUNNING)
        assert (bench.state(), bench.warden.last == first) == (expected, expected is not State.RUNNING)
        births = len(bench.warden.spawned)
        await bench.pass_time(400)
        assert (bench.state(), len(bench.warden.spawned)) == (expected, births), "the drain came back"


# --- stopping -----------------------------------------------------------------------------------------------------------


@jumping
async def test_a_stop_lets_go_then_ends_the_leader(bench: Bench) -> None:
    async with bench.alive():
        generation = bench.warden.last
        await bench.tell(Event.STOP, "asked by a test")
        assert bench.heard[-2:] == [State.STOPPING, State.DOWN]
        assert bench.group.reason == "asked by a test"
        assert bench.kind.releases == [generation]
        assert bench.warden.kills == [(generation, TERM, False)]
        assert bench.warden.table == {}
        assert files_of(bench) == set()


@jumping
async def test_an_unload_that_fails_does_not_keep_a_group_from_stopping(bench: Bench) -> None:
    bench.kind.release_does = ConnectionError("refused")
    async with bench.alive():
        await bench.tell(Event.STOP, "asked by a test")
        assert bench.state() is State.DOWN
        assert bench.group.reason == "asked by a test; unload failed: refused"


@jumping
async def test_an_unload_that_hangs_is_bounded(bench: Bench) -> None:
    bench.kind.release_does = "hang"
    async with bench.alive():
        began = trio.current_time()
        await bench.tell(Event.STOP)
        await bench.pass_time(budgets.UNLOAD_LIMIT - 0.01)
        assert bench.warden.kills == []
        await bench.pass_time(0.02)
        assert bench.warden.kills == [(bench.warden.last, TERM, False)]
        assert bench.state() is State.DOWN
        assert trio.current_time() - began < budgets.GROUP_GRACE


@jumping
@pytest.mark.parametrize("release", ["", "hang"])
@pytest.mark.parametrize("grace", [0.5, 2.5])
async def test_who_ignores_sigterm_is_killed_when_the_grace_ends(bench: Bench, release: str, grace: float) -> None:
    bench = Bench(bench.slot, spec=evolve(SPEC, grace_s=grace))
    bench.kind.release_does = release
    bench.warden.obeys = {signal.SIGKILL}
    async with bench.alive():
        await bench.tell(Event.STOP)
        await bench.pass_time(grace - 0.01)
        assert bench.state() is State.STOPPING
        await bench.pass_time(0.02)
        assert bench.state() is State.DOWN
        assert bench.warden.kills[-1] == (bench.warden.last, KILL, True)


@jumping
async def test_a_leader_that_ends_during_the_unload_ends_the_stop(bench: Bench) -> None:
    bench.kind.release_does = "hang"
    async with bench.alive():
        began = trio.current_time()
        await bench.tell(Event.STOP)
        await bench.happen(bench.warden.die, bench.warden.last)
        assert bench.state() is State.DOWN
    assert trio.current_time() == began, "nothing was waited for that could not come any more"
    assert bench.warden.kills == []
    assert bench.warden.errors == []


@jumping
async def test_a_stop_while_the_warden_forks_ends_what_is_born(bench: Bench) -> None:
    bench.warden.gate = trio.Event()
    async with bench.alive():
        await bench.tell(Event.STOP, "asked by a test")
        assert bench.state() is State.STOPPING
        await bench.pass_time(0.5)
        await bench.happen(bench.warden.gate.set)
        assert bench.state() is State.DOWN
        assert bench.warden.kills == [(bench.warden.last, TERM, False)]
        assert bench.kind.loading == []
        assert bench.warden.table == {}
        assert bench.group.reason == "asked by a test"


@jumping
async def test_a_stop_while_the_warden_refuses(bench: Bench) -> None:
    bench.warden.gate = trio.Event()
    bench.warden.refusals.append("no")
    async with bench.alive():
        bench.group.post(Event.STOP, reason="asked by a test")
        await bench.happen(bench.warden.gate.set)
        assert bench.state() is State.DOWN
        await bench.pass_time(LONG)
        assert bench.warden.spawned == []


@jumping
async def test_a_refused_start_and_a_stop_in_the_same_moment(bench: Bench) -> None:
    """STOP stands before the GONE of the birth that failed: that one must end the stop, and nothing after it."""
    bench.warden.gate = trio.Event()
    bench.warden.refusals.append("no")
    async with bench.alive():
        bench.warden.gate.set()
        while bench.warden.refusals:  # until it has been refused; what follows from it waits in the inbox
            await trio.lowlevel.checkpoint()
        bench.group.post(Event.STOP)
        bench.group.post(Event.WANTED)
        bench.group.post(Event.WANTED)
        await bench.pass_time(LONG)
        assert len(bench.warden.spawned) <= 1
        assert bench.state() in (State.DOWN, State.RUNNING)


@jumping
async def test_a_stop_during_the_pause_before_a_restart(bench: Bench) -> None:
    async with bench.alive():
        await bench.happen(bench.warden.die, bench.warden.last)
        await bench.happen(bench.warden.die, bench.warden.last)
        assert bench.state() is State.REBUILDING
        started = len(bench.warden.spawned)
        await bench.tell(Event.STOP, "asked by a test")
        assert bench.state() is State.DOWN
        await bench.pass_time(LONG)
        assert len(bench.warden.spawned) == started
        assert bench.group.reason == "asked by a test"


@jumping
async def test_a_stop_while_it_is_being_swept_waits_for_the_sweep_only(bench: Bench) -> None:
    async with bench.alive():
        await bench.happen(bench.warden.exit, bench.warden.last, KILLED, KILL)
        await bench.tell(Event.STOP, "asked by a test")
        assert bench.state() is State.STOPPING
        assert bench.kind.releases == []
        await bench.happen(bench.warden.sweep, bench.warden.last)
        assert bench.state() is State.DOWN
        assert bench.warden.kills == []


@jumping
async def test_a_stop_that_something_survives_comes_to_an_end(bench: Bench) -> None:
    bench.warden.obeys = set()
    async with bench.alive():
        await bench.tell(Event.STOP)
        await bench.pass_time(SPEC.grace_s + 1)
        assert [number for _, number, _ in bench.warden.kills] == [TERM, KILL]
        await bench.happen(bench.warden.exit, bench.warden.last, KILLED, KILL)
        await bench.happen(bench.warden.cannot_kill, bench.warden.last, 77)
        assert bench.state() is State.DOWN
        assert bench.group.life is not None  # and so the stop does not count as a clean one
        assert "cannot be killed: pids 77" in bench.group.reason


@jumping
async def test_stopping_what_was_given_up_keeps_its_reason(bench: Bench) -> None:
    bench.warden.refusals.extend(["Permission denied"] * 10)
    async with bench.alive():
        await bench.pass_time(LONG)
        await bench.tell(Event.STOP, "asked by a test")
        assert bench.state() is State.DOWN
        assert "Permission denied" in bench.group.reason


@jumping
async def test_what_comes_after_a_stop_does_not_hide_who_asked_for_it(bench: Bench) -> None:
    async with bench.alive():
        generation = bench.warden.last
        bench.warden.obeys = set()
        bench.group.post(Event.STOP, reason="asked by a test")
        for event in (Event.READY, Event.SERVER_LOST, Event.NOT_READY):
            bench.group.post(event, generation, "said too late")
        bench.group.post(Event.GIVEN_UP, reason="said too late")
        bench.group.post(Event.STOP, reason="asked once more")
        await wait_all_tasks_blocked()
        assert bench.state() is State.STOPPING
        assert bench.group.reason == "asked by a test"
        bench.group.end_now()


@jumping
async def test_now_means_now(bench: Bench) -> None:
    bench.kind.release_does = "hang"
    bench.warden.obeys = {signal.SIGKILL}
    async with bench.alive():
        began = trio.current_time()
        await bench.tell(Event.STOP)
        await bench.happen(bench.group.end_now)
        assert bench.state() is State.DOWN
        assert trio.current_time() == began
        assert bench.warden.kills == [(bench.warden.last, KILL, True)]


@jumping
async def test_what_was_given_up_is_tried_anew_by_whoever_wants_it(bench: Bench) -> None:
    bench.warden.refusals.extend(["no"] * budgets.DOOMED_TRIES)
    async with bench.alive():
        await bench.pass_time(LONG)
        assert bench.state() is State.FAILED
        await bench.tell(Event.WANTED)
        assert bench.state() is State.RUNNING


@jumping
async def test_a_cancelled_keeper_still_ends_what_it_was_ending(bench: Bench) -> None:
    """The hand that stops is shielded, and bounded."""
    bench.kind.release_does = "hang"
    bench.warden.obeys = {signal.SIGKILL}
    async with bench.alive():
        began = trio.current_time()
        await bench.tell(Event.STOP)
    assert bench.warden.kills[-1] == (bench.warden.last, KILL, True)
    assert trio.current_time() - began <= budgets.GROUP_STOP


# --- ports, keys, what is shown -----------------------------------------------------------------------------------------


@jumping
async def test_ports_stay_over_generations_unless_somebody_took_one(bench: Bench) -> None:
    async with bench.alive():
        first = dict(bench.life().birth.ports)
        assert set(first) == {"proxy", "chat", "draft"}
        assert len(set(first.values())) == 3
        await bench.happen(bench.warden.die, bench.warden.last)
        assert dict(bench.life().birth.ports) == first
        with socket.socket() as squatter:
            squatter.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            squatter.bind(("127.0.0.1", first["draft"]))
            squatter.listen()
            await bench.happen(bench.warden.die, bench.warden.last)
            await bench.pass_time(1)
            second = dict(bench.life().birth.ports)
    assert second["draft"] != first["draft"]
    assert (second["proxy"], second["chat"]) == (first["proxy"], first["chat"])


@jumping
async def test_the_clients_key_stays_and_the_generations_key_does_not(bench: Bench) -> None:
    async with bench.alive():
        births = [bench.life().birth]
        await bench.happen(bench.warden.die, bench.warden.last)
        births.append(bench.life().birth)
    assert births[0].client_key == births[1].client_key
    assert births[0].generation_key != births[1].generation_key
    assert births[0].client_key not in births[0].generation_key
    key_file = bench.slot.group_key("chat")
    assert key_file.read_text().strip() == births[0].client_key
    assert key_file.stat().st_mode & 0o777 == 0o600


async def recorded(bench: Bench) -> dict[str, Any]:
    """The group's record on disk, which is written a little after the change."""
    await bench.pass_time(2 * budgets.PUBLISH_PAUSE)
    found: dict[str, Any] = json.loads(bench.slot.group_record("chat").read_text())["record"]
    return found


@jumping
async def test_no_key_is_shown_recorded_logged_or_noted(bench: Bench) -> None:
    async with bench.alive():
        await bench.happen(bench.warden.die, bench.warden.last)
        await recorded(bench)
        birth = bench.life().birth
        shown = [
            json.dumps(bench.group.describe()),
            bench.slot.group_record("chat").read_text(),
            json.dumps(bench.warden.notes),
            json.dumps([row.note for row in bench.warden.table.values()]),
            repr([(spawned["argv"], spawned["env"], spawned["note"]) for spawned in bench.warden.spawned]),
            repr(birth),
            repr(bench.kind.command(SPEC, birth)),
        ]
    for text in shown:
        assert birth.client_key not in text
        assert birth.generation_key not in text


def render_group(group: dict[str, Any]) -> str:
    snapshot: dict[str, Any] = {
        "slot": "",
        "state": "running",
        "reason": "",
        "keeper": None,
        "warden": None,
        "members": [],
    }
    return plain({**snapshot, "lifetime": "run", "groups": [group]}, time.time())


@jumping
async def test_the_record_on_disk_says_what_the_group_last_was(bench: Bench) -> None:
    async with bench.alive():
        found = await recorded(bench)
        assert (found["state"], found["generation"]) == ("running", bench.warden.last)
        bench.kind.loads.append("hang")
        await bench.lose("chat")
        assert (await recorded(bench))["state"] == "degraded"
        await bench.happen(bench.warden.exit, bench.warden.last, KILLED, KILL)
        assert (await recorded(bench))["state"] == "rebuilding"
        bench.warden.cannot_kill(bench.warden.last, 77)
        found = await recorded(bench)
        assert (found["state"], found["reason"]) == ("failed", "cannot be killed: pids 77")


@jumping
async def test_several_changes_in_a_row_are_one_record(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    async with bench.alive():
        await recorded(bench)
        written: list[str] = []
        write = records.write

        def noted(path: Path, facts: dict[str, Any], **how: Any) -> None:
            written.append(facts["state"])
            write(path, facts, **how)

        monkeypatch.setattr(records, "write", noted)
        bench.warden.die(bench.warden.last)
        assert (await recorded(bench))["generation"] == bench.warden.last
        assert written == ["running"]


@jumping
async def test_a_record_that_cannot_be_written_is_shown_and_harms_nothing_and_is_written_when_it_can_be(
    bench: Bench,
) -> None:
    path = bench.slot.group_record("chat")
    async with bench.alive():
        old = await recorded(bench)
        path.rename(path.with_suffix(".aside"))
        path.mkdir()
        await bench.happen(bench.warden.die, bench.warden.last)
        await bench.pass_time(5 * budgets.PUBLISH_RETRY)
        assert (bench.state(), bench.group.reason) == (State.RUNNING, "")
        assert "chat.json cannot be written" in bench.group.describe()["unwritten"]
        assert "its record is old: " in render_group(bench.group.describe())
        path.rmdir()
        path.with_suffix(".aside").rename(path)
        await bench.pass_time(1.5 * budgets.PUBLISH_RETRY)  # nothing happens to the group meanwhile
        assert bench.group.describe()["unwritten"] is None
        found = records.read_fields(path, version=records.GROUP_VERSION)
        assert found is not None
        assert (found["generation"], found["unwritten"]) == (bench.warden.last, None)
        assert found["generation"] != old["generation"]


@jumping
async def test_a_record_that_is_about_to_be_removed_is_not_tried_for_ever(bench: Bench) -> None:
    bench.slot.group_record("chat").mkdir()
    async with bench.alive():
        await bench.pass_time(2 * budgets.PUBLISH_PAUSE)
        await bench.tell(Event.STOP, "enough")
        await bench.pass_time(2 * budgets.PUBLISH_RETRY)
        assert bench.state() is State.DOWN
        assert bench.group.describe()["unwritten"] is None


# --- taking up ----------------------------------------------------------------------------------------------------------


async def leave(bench: Bench) -> Bench:
    """A group that runs, left by its keeper as by SIGKILL; the bench of the next one."""
    async with bench.alive():
        assert bench.state() is State.RUNNING
    return bench.next_keepers()


def row_of(bench: Bench) -> Any:
    (row,) = bench.warden.table.values()
    return row


@jumping
async def test_the_next_keeper_takes_up_what_runs(bench: Bench) -> None:
    async with bench.alive():
        await bench.happen(bench.warden.die, bench.warden.last)
        before = bench.group.life
        history = bench.group.past.history
    assert before is not None
    other = bench.next_keepers()
    async with other.alive(row_of(other)):
        assert other.state() is State.RUNNING
        assert State.STARTING not in other.heard
        assert len(other.warden.spawned) == 2
        life = other.group.life
        assert life is not None
        assert life.birth == before.birth
        assert (life.pid, life.log_start) == (before.pid, before.log_start)
        assert (other.group.past.history.failures, other.group.past.history.restarts) == (
            history.failures,
            history.restarts,
        )
        assert other.kind.watching == [life.birth.generation]
        assert other.kind.asked == [[]]  # proven, not loaded: an idle server that was unloaded stays so
        await other.happen(other.warden.die, other.warden.last)  # and what happens to it, happens to us
        assert other.state() is State.REBUILDING
        await other.pass_time(1)
        assert other.state() is State.RUNNING
        assert dict(other.life().birth.ports) == dict(before.birth.ports)


@jumping
async def test_the_next_keeper_goes_on_with_what_is_still_loading(bench: Bench) -> None:
    bench.kind.loads.append("hang")
    async with bench.alive():
        assert bench.state() is State.STARTING
    other = bench.next_keepers()
    other.kind.loads.append("hang")
    async with other.alive(row_of(other)):
        assert other.state() is State.STARTING
        assert len(other.warden.spawned) == 1
        await other.pass_time(SPEC.start_limit_s + 1)
        assert other.state() is State.RUNNING
        assert len(other.warden.spawned) == 2


@jumping
@pytest.mark.parametrize("why", ["foreign", "does not load", "hangs"])
async def test_what_is_taken_up_and_does_not_answer_is_rebuilt(
    bench: Bench, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A keeper that failed at this would be replaced by one that fails at it, and so on."""
    other = await leave(bench)
    first = other.warden.last
    if why == "foreign":
        verdicts = iter([Ownership(Owner.FOREIGN)])
        monkeypatch.setattr(ports, "owned_by", lambda port, pids: next(verdicts, Ownership(Owner.OURS)))
    else:
        other.kind.loads.append("hang" if why == "hangs" else EngineStartError("no memory"))
    async with other.alive(row_of(other)):
        await other.pass_time(SPEC.start_limit_s + 1)
        assert other.warden.kills == [(first, KILL, True)]
        assert other.state() is State.RUNNING
        assert other.warden.living == [other.warden.last] != [first]


@jumping
async def test_the_next_keeper_waits_for_a_sweep_that_is_under_way(bench: Bench) -> None:
    async with bench.alive():
        await bench.happen(bench.warden.exit, bench.warden.last, KILLED, KILL)
    other = bench.next_keepers()
    async with other.alive(row_of(other)):
        assert other.state() is State.REBUILDING
        assert other.kind.loading == []
        await other.happen(other.warden.sweep, other.warden.last)
        assert other.state() is State.RUNNING
        assert other.group.past.history.failures == 1


@jumping
async def test_the_next_keeper_replaces_what_died_in_between(bench: Bench) -> None:
    async with bench.alive():
        pass
    bench.warden.die(bench.warden.last)
    other = bench.next_keepers()
    async with other.alive(row_of(other)):
        assert other.state() is State.RUNNING
        assert other.group.past.history.failures == 1
        assert len(other.warden.spawned) == 2
        assert len(other.warden.table) == 1


@jumping
async def test_the_next_keeper_knows_what_could_not_be_killed(bench: Bench) -> None:
    """The warden tells it once; the next keeper has it from the table, and neither waits nor starts anything."""
    async with bench.alive():
        bench.warden.exit(bench.warden.last, KILLED, KILL)
        await bench.happen(bench.warden.cannot_kill, bench.warden.last, 77)
    other = bench.next_keepers()
    async with other.alive(row_of(other)):
        assert other.state() is State.FAILED
        assert "cannot be killed" in other.group.reason
        await other.tell(Event.STOP)
        assert other.state() is State.DOWN
        await other.happen(other.warden.sweep, other.warden.last)
        assert other.warden.table == {}
        assert len(other.warden.spawned) == 1


@jumping
async def test_what_was_given_up_stays_so_over_a_keepers_death(bench: Bench) -> None:
    bench.warden.refusals.extend(["Permission denied"] * budgets.DOOMED_TRIES)
    async with bench.alive():
        await bench.pass_time(LONG)
        assert bench.state() is State.FAILED
    other = bench.next_keepers()
    async with other.alive():
        await other.pass_time(LONG)
        assert other.state() is State.FAILED
        assert "Permission denied" in other.group.reason
        assert other.warden.spawned == []
        reasons: list[str] = []
        other.group.changed = lambda: reasons.append(other.group.reason)
        await other.tell(Event.WANTED)
        assert other.state() is State.RUNNING
        assert reasons
        assert not any("given up" in reason for reason in reasons), "why it was given up is no reason for the new start"
    third = other.next_keepers()
    async with third.alive(row_of(third)):
        assert third.state() is State.RUNNING


@jumping
@pytest.mark.parametrize("left", ["nothing", "running", "sweeping", "gone"])
async def test_a_keeper_that_takes_up_a_stop_starts_nothing(bench: Bench, left: str) -> None:
    async with bench.alive():
        pass
    generation = bench.warden.last
    if left == "nothing":
        bench.warden.die(generation)
        bench.warden.forget(generation)
    elif left == "sweeping":
        bench.warden.exit(generation, KILLED, KILL)
    elif left == "gone":
        bench.warden.die(generation)
    other = bench.next_keepers()
    other.group.post(Event.STOP, reason="asked of the keeper before")
    began = trio.current_time()
    async with other.alive(row_of(other) if left != "nothing" else None, wanted=False):
        if left == "sweeping":
            await other.happen(other.warden.sweep, generation)
        assert other.state() is State.DOWN
        assert other.warden.table == {}
        assert len(other.warden.spawned) == 1
        assert other.warden.errors == []
    assert trio.current_time() == began, "nothing was waited for that could not come any more"


@jumping
async def test_a_generation_is_not_blamed_for_the_one_before(bench: Bench) -> None:
    """One that hung is stopped for something else before it is dead; the next one dies of itself."""
    async with bench.alive():
        bench.warden.obeys = set()
        hung = bench.life().birth.generation
        bench.group.post(Event.UNHEALTHY, hung, "its proxy is hung: it does not answer")
        bench.group.hold("a benchmark")
        await wait_all_tasks_blocked()
        await bench.happen(bench.warden.die, hung)
        assert bench.state() is State.HELD
        bench.kind.loads.append("hang")
        bench.group.release()
        await wait_all_tasks_blocked()
        await bench.happen(bench.warden.die, bench.warden.last, EXITED, 3)
        assert bench.group.past.cause is not None
        assert bench.group.past.cause.word is not Word.HUNG


# --- everything at once -------------------------------------------------------------------------------------------------


@given(seed=st.integers(0, 2**32), length=st.integers(1, 60))
@settings(max_examples=80, deadline=None)
def test_whatever_happens_a_group_lives_on_and_a_stop_ends_it(
    tmp_path_factory: pytest.TempPathFactory, seed: int, length: int
) -> None:
    """Deaths, losses, loads that fail, refusals, stops and new keepers, with and without time between them."""
    chance = random.Random(seed)
    slot = Slot(tmp_path_factory.getbasetemp() / "any-order")
    slot.prepare()

    async def play() -> None:
        bench = Bench(slot)
        row = None
        for _ in range(chance.randint(1, 3)):
            stopped = await live(bench, row, chance, length)
            left = [row for row in bench.warden.table.values() if row.state != "gone"]
            assert len(left) <= 1, "two generations of one group"
            assert not stopped or not left
            row = next(iter(bench.warden.table.values()), None)
            bench = bench.next_keepers()

    trio.run(play, clock=MockClock(autojump_threshold=0))
    for path in slot.groups.iterdir():
        path.unlink()


async def live(bench: Bench, row: Any, chance: random.Random, length: int) -> bool:
    """One keeper's time with the group; True when it ended with a stop."""
    warden, kind = bench.warden, bench.kind

    def a_server_dies() -> None:
        if kind.watching and kind.report is not None:
            kind.report(chance.choice(["chat", "draft"]), ServerState.LOST)

    def the_leader_dies() -> None:
        for generation in warden.living:
            warden.exit(generation, *chance.choice([(KILLED, KILL), (EXITED, 0), (EXITED, 1)]))

    def the_sweep_ends() -> None:
        for row in list(warden.table.values()):
            if row.state in ("sweeping", "unkillable"):
                warden.sweep(row.gen)

    def the_sweep_fails() -> None:
        for row in list(warden.table.values()):
            if row.state == "sweeping":
                warden.cannot_kill(row.gen, 77)

    def bigger() -> GroupSpec:
        """Another spec, or the same with another bound."""
        first, *rest = bench.group.spec.launches
        context = chance.choice([first.context, 512, 1024])
        return evolve(
            bench.group.spec, launches=(evolve(first, context=context), *rest), grace_s=chance.choice([1.0, 2.0])
        )

    things: list[Callable[[], object]] = [
        a_server_dies,
        the_leader_dies,
        the_leader_dies,
        the_sweep_ends,
        the_sweep_ends,
        the_sweep_fails,
        lambda: kind.loads.append("hang" if chance.random() < 0.5 else EngineStartError("no")),
        lambda: warden.refusals.append("no"),
        lambda: bench.group.post(Event.WANTED),
        lambda: bench.group.stop("somebody"),
        lambda: bench.group.hold("a benchmark"),
        bench.group.release,
        lambda: bench.group.reshape(bigger(), kind, "another configuration"),
        lambda: bench.group.reshape(bigger(), kind, "another configuration", 5.0),
        lambda: owe(bench, chance.randint(0, 1)),
        bench.group.retry,
        lambda: setattr(kind, "release_does", chance.choice(["", "hang", OSError("no")])),
        lambda: setattr(warden, "obeys", chance.choice([{signal.SIGKILL}, {signal.SIGKILL, signal.SIGTERM}])),
    ]
    end = chance.choice(["stop", "stop", "hold", "release", "nothing"])
    async with bench.alive(row):
        for _ in range(length):
            chance.choice(things)()
            match chance.randint(0, 5):
                case 0:
                    await trio.lowlevel.checkpoint()
                case 1:
                    await wait_all_tasks_blocked()
                case 2:
                    await trio.sleep(chance.choice([0.01, 0.5, 2.0, 130.0]))
                case _:
                    pass
            assert len([row for row in warden.table.values() if row.state != "gone"]) <= 1
        if end == "nothing":
            return False
        warden.obeys = {signal.SIGKILL}
        kind.loads.clear()
        warden.refusals.clear()
        match end:
            case "stop":
                bench.group.stop("the end")
            case "hold":
                bench.group.hold("a benchmark")
            case "release":
                bench.group.hold("a benchmark")
                bench.group.reshape(bigger(), kind, "another configuration")
                bench.group.release()
        for _ in range(2):  # a leader that dies of the stop only then is swept after it
            await trio.sleep(budgets.GROUP_STOP)
            the_sweep_ends()
            await wait_all_tasks_blocked()
        if end == "release":
            if bench.state() is State.FAILED:  # something could not be killed for a while: only a retry brings it back
                assert "cannot be killed" in bench.group.reason
                assert bench.group.retry()
                await trio.sleep(budgets.GROUP_STOP)
            assert bench.state() is State.RUNNING
            assert bench.life().mark == mark_of(bench.group.spec)
            return False
        assert bench.state() in ((State.HELD,) if end == "hold" else (State.DOWN, State.FAILED, State.HELD))
        assert bench.group.life is None
        assert bench.group.is_at_rest
    return end == "stop"


def test_the_fake_warden_refuses_what_the_real_one_refuses() -> None:
    """Two generations of one group at once."""

    async def play() -> None:
        warden = FakeWarden()
        arguments: dict[str, Any] = {"group": "chat", "argv": ["/bin/proxy"], "note": {}}
        await warden.spawn(gen="1", **arguments)
        with pytest.raises(SpawnRefusedError, match="still has a generation"):
            await warden.spawn(gen="2", **arguments)

    trio.run(play)
