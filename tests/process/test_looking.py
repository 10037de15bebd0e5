"""What `status` says where no keeper answers: a real warden, keepers that die on order."""

from __future__ import annotations

import json
import os
import signal
import time
from typing import TYPE_CHECKING, Any

import pytest

from supervisor import budgets, looking, records
from supervisor.checks import Finding, engine_checks
from supervisor.screen import plain
from supervisor.slot import Slot
from tests.process.warden_rig import Rig
from tests.support import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.process


def look(rig: Rig) -> dict[str, Any]:
    """At an engine that nobody has ended."""
    (rig.slot / "contract.json").touch()
    return looking.look(Slot(rig.slot))


@pytest.mark.parametrize("left", ["contract.json", "keeper.json", "a generation", ""])
def test_a_keeper_that_ended_the_engine_is_told_from_one_that_died(left: str) -> None:
    with Rig(keeper_delays=[60]) as rig:
        slot = Slot(rig.slot)
        keeper = rig.keeper()
        if left == "a generation":
            slot.groups.mkdir()
            rig.spawn(keeper, "a", ["/bin/sleep", "60"], group="chat", lock=str(slot.generation_lock("chat", "a")))
        elif left:
            (rig.slot / left).touch()
        os.kill(keeper.pid, signal.SIGKILL)
        wait_until(lambda: "next in 60 s" in rig.log.read_text())
        found = looking.look(slot)
        assert found["warden"]["pid"] == rig.pid
        if left:
            assert (found["state"], found["reason"][:20]) == ("restarting", "the keeper died once")
        else:
            assert (found["state"], found["keeper"], found["groups"]) == ("stopping", None, [])
            assert "the warden is about to leave" in found["reason"]
            assert "engine    stopping: " in plain(found, time.time())


def test_a_keeper_that_died_and_the_next_one_to_come_are_shown() -> None:
    with Rig(keeper_delays=[60]) as rig:
        keeper = rig.keeper()
        os.kill(keeper.pid, signal.SIGKILL)
        wait_until(lambda: "next in 60 s" in rig.log.read_text())
        found = look(rig)
        warden = found["warden"]
        assert (found["state"], found["keeper"]) == ("restarting", None)
        assert found["reason"].startswith("the keeper died once, the last one: killed by SIGKILL, after ")
        assert "; the next one starts in " in found["reason"]
        assert (warden["pid"], warden["ticks"]) == (rig.pid, keeper.hello["ticks"])
        assert (warden["keeper_crashes"], warden["last_words"]) == (1, [])
        assert 0 < warden["next_keeper_s"] <= 60


def test_from_so_many_deaths_in_a_row_on_it_is_failing_and_its_last_words_are_shown() -> None:
    delays = [0.0] * (budgets.KEEPER_FAILING - 1) + [60]
    with Rig(
        keeper=["/bin/sh", "-c", "echo first words >&2; echo last words >&2; exit 3"], keeper_delays=delays
    ) as rig:
        wait_until(lambda: "next in 60 s" in rig.log.read_text())
        found = look(rig)
        assert (found["state"], found["warden"]["keeper_crashes"]) == ("failing", budgets.KEEPER_FAILING)
        assert "died 7 times in a row, the last one: exit status 3, after " in found["reason"]
        assert found["warden"]["last_words"][-2:] == ["first words", "last words"]
        assert "\n          | last words\n" in plain(found, time.time())


@pytest.mark.long
def test_an_engine_whose_first_keeper_is_not_there_yet_is_starting(monkeypatch: pytest.MonkeyPatch) -> None:
    with Rig() as rig:
        hello = rig.keeper().hello
        slot = Slot(rig.slot)
        wait_until(slot.warden_record.exists)
        found = look(rig)
        assert (found["state"], found["keeper"]) == ("starting", None)
        assert found["reason"].startswith("its first keeper is not there yet; ")
        checks = {check.name: check for check in engine_checks(slot)}
        assert (checks["engine"].finding, checks["engine"].text) == (Finding.OK, "an engine is starting")
        slot.warden_record.unlink()  # not written yet, or a full disk
        assert look(rig)["state"] == "starting"
        monkeypatch.setattr(budgets, "CONTROL_WAIT", 0.0)  # one that has had its time is silent, not about to come
        assert look(rig)["state"] == "degraded"
        monkeypatch.undo()
        facts = {"warden_pid": hello["pid"], "warden_ticks": hello["ticks"]}
        for of_another in (1, 0):
            records.write(
                slot.keeper_record, {**facts, "warden_ticks": hello["ticks"] - of_another}, version=1, durable=False
            )
            assert look(rig)["state"] == ("starting" if of_another else "degraded")


def test_doctor_sends_nobody_to_the_log_of_a_keeper_that_was_killed() -> None:
    with Rig(keeper_delays=[60]) as rig:
        os.kill(rig.keeper().pid, signal.SIGKILL)
        wait_until(lambda: "next in 60 s" in rig.log.read_text())
        engine = next(check for check in engine_checks(Slot(rig.slot)) if check.name == "engine")
        assert "warden.json says of the last one: killed by SIGKILL, after " in engine.next_step
        assert "logs keeper" not in engine.next_step


def test_that_the_keeper_before_hung_is_said_while_the_next_one_does_not_answer_yet() -> None:
    with Rig(keeper_silence=0.2, keeper_look=0.1) as rig:
        rig.keeper()
        keeper = rig.keeper()
        keeper.say("!burn")
        found = look(rig)
        assert found["state"] == "degraded"
        assert "the last one: hung, after " in found["reason"]
        assert found["warden"]["next_keeper_s"] is None
        os.kill(keeper.pid, signal.SIGKILL)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda said: {**said, "ticks": said["ticks"] - 1},
        lambda said: {**said, "pid": os.getpid()},
        lambda said: {**said, "last_keeper": {}},
        lambda said: {**said, "due": "soon"},
        lambda said: [said],
        lambda _: None,
    ],
)
def test_what_another_warden_left_and_what_is_damaged_is_not_shown(spoil: Callable[[Any], object]) -> None:
    with Rig(keeper_delays=[60]) as rig:
        os.kill(rig.keeper().pid, signal.SIGKILL)
        wait_until(lambda: "next in 60 s" in rig.log.read_text())
        path = rig.slot / "warden.json"
        path.write_text(json.dumps(spoil(json.loads(path.read_text()))))
        found = look(rig)
        assert (found["state"], found["warden"]["pid"]) == ("degraded", rig.pid)
        assert found["warden"]["keeper_crashes"] == 0
        assert "did not answer" in found["reason"]
