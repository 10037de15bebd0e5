"""How the warden looks after its keeper: it replaces one that hangs, and none that works, waits for a disk or is starved;
it has one follow another on request; and it leaves word of all that for readers."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import socket
import stat
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from tests.process.warden_children import PYTHON, SLEEP
from tests.process.warden_rig import KEEPER, WARDEN, Keeper, Rig
from tests.support import alive, wait_until

if TYPE_CHECKING:
    from pathlib import Path

HUNG = {"code": os.CLD_KILLED, "status": signal.SIGKILL, "why": "hung"}

# --- the decision ---------------------------------------------------------------------------------------------------

SILENCE, LOOK = 10.0, 1.0


def load_warden() -> Any:
    spec = importlib.util.spec_from_file_location("warden_under_test", WARDEN)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Watch:
    """The warden's watch over a keeper that was heard at 0, on a clock and with looks that are the test's."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.module = load_warden()
        self.now, self.looks, self.due = 0.0, list[tuple[str, int]](), 0.0
        monkeypatch.setattr(self.module.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(self.module, "stat_of", self._look)
        self.killed = False
        self.it = SimpleNamespace(
            settings={"keeper_silence": SILENCE, "keeper_look": LOOK},
            heard=0.0,
            seen=None,
            keeper=77,
            why="",
            later=self._later,
            drop_link=lambda: setattr(self, "killed", True),
        )
        self.it.watch_keeper = lambda due: self.module.Warden.watch_keeper(self.it, due)
        self.it.watch_keeper(0.0)

    def _look(self, _: int) -> tuple[bytes, int, int, int, int]:
        state, spent = self.looks.pop(0)
        return state.encode(), 1, 77, 5, spent

    def _later(self, delay: float, function: Any) -> None:
        self.due, self._function = self.now + delay, function

    def turn(self, *look: Any, late: float = 0.0) -> bool:
        """Let the next timer fire, `late` seconds after it was due; what a look shows then. Whether it killed."""
        self.now = self.due + late
        self.looks = [(look[0], look[1])] if look else []
        self._function()
        assert not self.looks, "nobody looked"
        return self.killed


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Watch:
    return Watch(monkeypatch)


@pytest.mark.parametrize(
    ("first", "second", "hangs"),
    [
        (("S", 5), ("S", 5), True),
        (("S", 5), ("S", 6), False),
        (("T", 5), ("T", 5), True),
        (("T", 5), ("T", 6), True),
        (("T", 5), ("S", 5), True),
        (("T", 5), ("S", 6), False),
        (("t", 5), ("t", 5), True),
        (("D", 5), ("D", 5), False),
        (("S", 5), ("D", 5), False),
        (("D", 5), ("S", 5), False),
        (("R", 5), ("R", 5), False),
        (("R", 5), ("R", 9), False),
        (("S", 5), ("R", 5), False),
    ],
)
def test_two_looks_in_the_silence_tell(
    watch: Watch, first: tuple[str, int], second: tuple[str, int], hangs: bool
) -> None:
    assert watch.due == SILENCE
    assert not watch.turn(*first)
    assert watch.due == SILENCE + LOOK
    assert watch.turn(*second) is hangs
    assert watch.it.why == ("hung" if hangs else "")


def test_a_slow_start_that_works_is_let_be_until_it_sleeps(watch: Watch) -> None:
    for spent in range(20):
        assert not watch.turn("S", spent)
    assert watch.turn("S", 19)


def test_a_beat_begins_anew(watch: Watch) -> None:
    watch.turn("S", 5)
    watch.it.heard = watch.now + 0.5
    assert not watch.turn()
    assert watch.due == SILENCE + 0.5 + SILENCE
    assert not watch.turn("S", 5)  # the look of the silence before does not count
    assert watch.turn("S", 5)


@pytest.mark.parametrize("looked", [0, 1])
def test_a_warden_that_did_not_run_itself_lets_the_silence_begin_anew(watch: Watch, looked: int) -> None:
    for _ in range(looked):
        watch.turn("S", 5)
    assert not watch.turn(late=LOOK + 0.1)
    assert watch.due == watch.now + SILENCE
    assert not watch.turn("S", 5)
    assert watch.turn("S", 5)


def test_nobody_is_looked_at_where_there_is_no_keeper(watch: Watch) -> None:
    watch.it.keeper = 0
    assert not any(watch.turn() for _ in range(5))


# --- a keeper that hangs --------------------------------------------------------------------------------------------

QUICK: dict[str, Any] = {"keeper_silence": 0.3, "keeper_look": 0.1}


def last(keeper: Keeper) -> dict[str, Any]:
    """How the keeper before this one ended, without how long it lived."""
    return {name: value for name, value in keeper.hello["last_keeper"].items() if name != "lived"}


@pytest.mark.long
@pytest.mark.process
@pytest.mark.parametrize("stopped", [True, False])
def test_a_keeper_that_is_stopped_or_says_nothing_is_replaced_and_its_children_never_notice(stopped: bool) -> None:
    with Rig(keeper_silence=4.0, keeper_look=0.1) as rig:
        keeper = rig.keeper()
        pid = rig.spawn(keeper, "a", SLEEP)
        keeper.tell("note", key="contract", value=[1])
        keeper.tell("beat")
        keeper.ask("list")  # all that is read by now
        if stopped:
            os.kill(keeper.pid, signal.SIGSTOP)
        heir = rig.keeper()
        assert last(heir) == HUNG
        assert heir.hello["crashes"] == heir.hello["incarnation"] - 1
        assert heir.rows["a"]["pid"] == pid
        assert heir.listed["notes"] == {"contract": [1]}
        assert not alive(keeper.pid)
        assert alive(pid)


@pytest.mark.process
def test_a_keeper_that_never_says_its_first_word_is_replaced() -> None:
    with Rig(**QUICK, keeper=["/bin/sleep", "600"], keeper_delays=[0, 0.1]) as rig:
        wait_until(lambda: rig.log.read_text().count("(hung)") > 1, what="two of them")


@pytest.mark.process
def test_a_silent_keeper_that_works_is_let_be() -> None:
    with Rig(**QUICK) as rig:
        keeper = rig.keeper()
        keeper.say("!burn")
        spent = cpu_of(keeper.pid)
        wait_until(lambda: cpu_of(keeper.pid) > spent + 100, within=60, what="a second of CPU")
        assert alive(keeper.pid)
        os.kill(keeper.pid, signal.SIGSTOP)
        assert last(rig.keeper()) == HUNG


def cpu_of(pid: int) -> int:
    spent: int = load_warden().stat_of(pid)[4]
    return spent


# --- one keeper follows another on request --------------------------------------------------------------------------


@pytest.mark.process
def test_a_keeper_is_replaced_at_once_on_request_and_no_crash_is_counted() -> None:
    with Rig(keeper_delays=[60]) as rig, socket.socket(socket.AF_UNIX) as client:
        keeper = rig.keeper()
        pid = rig.spawn(keeper, "a", SLEEP)
        assert keeper.ask("replace")["ev"] == "done"
        client.connect(str(rig.slot / "control.sock"))
        keeper.say("!exit 0")
        heir = rig.keeper()
        assert last(heir) == {"code": os.CLD_EXITED, "status": 0, "why": "replaced"}
        assert (heir.hello["crashes"], heir.hello["incarnation"]) == (0, 2)
        assert heir.rows["a"]["pid"] == pid
        client.sendall(b"still here")
        os.kill(heir.pid, signal.SIGKILL)  # it was asked for once
        wait_until(lambda: "next in 60 s" in rig.log.read_text())


@pytest.mark.process
def test_the_next_keepers_are_of_the_command_line_that_was_given() -> None:
    with Rig() as rig:
        keeper = rig.keeper()
        assert keeper.ask("replace", argv=[*PYTHON, KEEPER, str(rig.slot / "orders.sock"), "new"])["ev"] == "done"
        for _ in range(2):
            keeper.say("!exit 0")
            keeper = rig.keeper()
            with open(f"/proc/{keeper.pid}/cmdline") as file:
                assert file.read().split("\0")[-2] == "new"


@pytest.mark.process
@pytest.mark.parametrize("argv", [["/not/there"], "python", [1], 7])
def test_a_command_line_that_cannot_be_replaces_nobody(argv: object) -> None:
    with Rig(keeper_delays=[0]) as rig:
        keeper = rig.keeper()
        assert keeper.ask("replace", argv=argv)["ev"] == "error"
        keeper.say("!exit 0")
        assert last(rig.keeper()) == {"code": os.CLD_EXITED, "status": 0, "why": ""}


# --- word of it for readers -----------------------------------------------------------------------------------------


def record(slot: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((slot / "warden.json").read_bytes())
    return found


@pytest.mark.process
def test_warden_json_says_how_the_last_keeper_ended_and_when_the_next_one_comes() -> None:
    with Rig(keeper_delays=[60]) as rig:
        keeper = rig.keeper()
        wait_until((rig.slot / "warden.json").exists)
        assert stat.S_IMODE((rig.slot / "warden.json").stat().st_mode) == 0o600
        who = {name: keeper.hello[name] for name in ("pid", "ticks", "incarnation")}
        assert record(rig.slot) == {**who, "crashes": 0, "last_keeper": None, "due": None}
        os.kill(keeper.pid, signal.SIGKILL)
        wait_until(lambda: record(rig.slot)["due"])
        found = record(rig.slot)
        assert found["crashes"] == 1
        assert found["last_keeper"]["status"] == signal.SIGKILL
        assert 0 < found["last_keeper"]["lived"] < 60
        assert 0 < found["due"] - time.monotonic() <= 60


@pytest.mark.process
def test_warden_json_goes_with_the_engine() -> None:
    with Rig() as rig:
        keeper = rig.keeper()
        wait_until((rig.slot / "warden.json").exists)
        keeper.ask("quit")
        keeper.say("!exit 0")
        assert rig.ended() == 0
        assert not (rig.slot / "warden.json").exists()


@pytest.mark.process
def test_a_disk_that_does_not_take_warden_json_changes_nothing() -> None:
    with Rig(keeper_delays=[0]) as rig:
        keeper = rig.keeper()
        wait_until((rig.slot / "warden.json").exists)
        (rig.slot / "warden.json").unlink()
        (rig.slot / "warden.json.new").mkdir()
        os.kill(keeper.pid, signal.SIGKILL)
        assert rig.keeper().hello["crashes"] == 1
        assert not (rig.slot / "warden.json").exists()
