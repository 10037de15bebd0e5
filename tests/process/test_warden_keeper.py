"""What the warden does with its keeper, with whoever talks to it, and at the end. A real warden, a scripted keeper."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.process.warden_children import DAEMONIZES, PYTHON, SLEEP
from tests.process.warden_rig import PATIENCE_S, WARDEN, Keeper, Rig, is_free, state_of, wait_dead
from tests.support import alive, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.process


@pytest.fixture
def rig() -> Iterator[Rig]:
    with Rig() as rig:
        yield rig


def kill(keeper: Keeper) -> None:
    os.kill(keeper.pid, signal.SIGKILL)


def ended(keeper: Keeper) -> tuple[int, int]:
    """How the keeper before this one ended: `code` and `status`."""
    last = keeper.hello["last_keeper"]
    return last["code"], last["status"]


# --- one keeper after another ---------------------------------------------------------------------------------------


def test_a_new_keeper_gets_the_table_and_the_children_never_noticed(rig: Rig) -> None:
    keeper = rig.keeper()
    assert (keeper.hello["protocol"], keeper.hello["incarnation"], keeper.hello["crashes"]) == (1, 1, 0)
    assert (keeper.hello["pid"], keeper.hello["last_keeper"], keeper.listed["id"]) == (rig.pid, None, None)
    assert keeper.rows == {}
    pids = {gen: rig.spawn(keeper, gen, SLEEP, note={"of": gen}) for gen in ("a", "b")}
    stats = {pid: Path(f"/proc/{pid}/stat").read_text().split()[21] for pid in pids.values()}
    keeper.tell("note", key="contract", value=[1])
    keeper.ask("list")
    kill(keeper)
    keeper = rig.keeper()
    assert (keeper.hello["incarnation"], keeper.hello["crashes"]) == (2, 1)
    assert ended(keeper) == (os.CLD_KILLED, signal.SIGKILL)
    assert {gen: (row["pid"], row["state"], row["note"]) for gen, row in keeper.rows.items()} == {
        gen: (pid, "running", {"of": gen}) for gen, pid in pids.items()
    }
    assert (keeper.listed["notes"], keeper.listed["strays"]) == ({"contract": [1]}, [])
    assert {pid: Path(f"/proc/{pid}/stat").read_text().split()[21] for pid in pids.values()} == stats
    assert {row["pid"]: str(row["ticks"]) for row in keeper.rows.values()} == stats


@pytest.mark.long
def test_what_happened_while_there_was_no_keeper_is_in_the_next_ones_table() -> None:
    with Rig(keeper_delays=[2]) as rig:
        keeper = rig.keeper()
        pid = rig.spawn(keeper, "a", SLEEP)
        kill(keeper)
        wait_until(lambda: "next in 2 s" in rig.log.read_text())
        os.kill(pid, signal.SIGTERM)
        row = rig.keeper().rows["a"]
        assert (row["state"], row["code"], row["status"]) == ("gone", os.CLD_KILLED, signal.SIGTERM)


def test_only_quit_ends_a_slot__an_exit_0_is_a_crash(rig: Rig) -> None:
    rig.keeper().say("!exit 0")
    assert ended(rig.keeper()) == (os.CLD_EXITED, 0)


def test_the_delays_grow_and_the_last_one_stays() -> None:
    with Rig(keeper_delays=[0, 0.02, 0.04]) as rig:
        for crashes in range(5):
            keeper = rig.keeper()
            assert keeper.hello["crashes"] == crashes
            kill(keeper)
        rig.keeper()
        waits = [line.rpartition("next in ")[2] for line in rig.log.read_text().splitlines()]
        assert waits == ["0 s", "0.02 s", "0.04 s", "0.04 s", "0.04 s"]


def test_a_keeper_that_worked_for_a_while_begins_anew() -> None:
    with Rig(keeper_stable=0) as rig:
        for crashes in (0, 1, 1):
            keeper = rig.keeper()
            assert keeper.hello["crashes"] == crashes
            kill(keeper)
        rig.keeper()


def test_a_keeper_that_cannot_be_started_is_tried_for_ever() -> None:
    with Rig(keeper=["/not/there"], keeper_delays=[0.01]) as rig:
        log = rig.slot / "logs" / "keeper.log"
        wait_until(lambda: log.exists() and log.read_text().count("cannot start /not/there") > 3)


def test_the_folder_of_the_logs_is_made_again_if_somebody_removed_it(rig: Rig) -> None:
    keeper = rig.keeper()
    for path in (rig.slot / "logs").iterdir():
        path.unlink()
    (rig.slot / "logs").rmdir()
    kill(keeper)
    rig.keeper()


def test_the_control_socket_accepts_while_there_is_no_keeper() -> None:
    with Rig(keeper_delays=[0.2]) as rig, socket.socket(socket.AF_UNIX) as client:
        kill(rig.keeper())
        wait_until(lambda: "next in" in rig.log.read_text())
        client.connect(str(rig.slot / "control.sock"))
        keeper = rig.keeper()
        assert os.readlink(f"/proc/{keeper.pid}/fd/4") == os.readlink(f"/proc/{rig.pid}/fd/{listener_of(rig)}")
        client.sendall(b"still here")


def listener_of(rig: Rig) -> int:
    """The warden's descriptor of its control socket, by its inode in proc_net_unix(5)."""
    table = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()]
    inode = next(
        line[6] for line in table if line[-1] == "control.sock" and f"socket:[{line[6]}]" in " ".join(rig.fds())
    )
    return next(int(fd.split()[0]) for fd in rig.fds() if fd.endswith(f"socket:[{inode}]"))


# --- a keeper that misbehaves ---------------------------------------------------------------------------------------


def test_a_keeper_that_closes_its_link_is_replaced(rig: Rig) -> None:
    keeper = rig.keeper()
    pid = rig.spawn(keeper, "a", SLEEP)
    keeper.say("!close")
    assert ended(rig.keeper()) == (os.CLD_KILLED, signal.SIGKILL)
    assert not alive(keeper.pid)
    assert alive(pid)


def test_half_a_line_dies_with_its_keeper(rig: Rig) -> None:
    keeper = rig.keeper()
    order = json.dumps({"op": "spawn", "id": 1, **rig.order("a", SLEEP)}).encode()
    keeper.raw(order[:50])
    keeper.say("!exit 1")
    keeper = rig.keeper()
    keeper.raw(order[50:] + b"\n")
    assert keeper.hear("error")["why"].startswith("JSONDecodeError")
    assert keeper.ask("list")["ev"] == "listed"


def test_a_line_without_end_ends_its_keeper(rig: Rig) -> None:
    keeper = rig.keeper()
    pid = rig.spawn(keeper, "a", SLEEP)
    keeper.say("x" * (2 << 20))
    assert ended(rig.keeper()) == (os.CLD_KILLED, signal.SIGKILL)
    assert alive(pid)


def test_a_line_of_almost_a_mebibyte_is_taken(rig: Rig) -> None:
    keeper = rig.keeper()
    rig.spawn(keeper, "a", SLEEP, env={**rig.env, **{f"V{number}": "x" * 100_000 for number in range(10)}})


def test_lines_may_come_in_any_pieces(rig: Rig) -> None:
    keeper = rig.keeper()
    line = b'{"op":"list","id":"%d"}\n'
    for byte in line % 1:
        keeper.raw(bytes([byte]))
    keeper.raw(line % 2 + line % 3 + (line % 4)[:7])
    keeper.raw((line % 4)[7:])
    assert [keeper.hear("listed")["id"] for _ in range(4)] == ["1", "2", "3", "4"]


def test_a_keeper_that_does_not_read_is_replaced(rig: Rig) -> None:
    keeper = rig.keeper()
    pid = rig.spawn(keeper, "a", SLEEP, note="x" * 60_000)
    keeper.say("!deaf")
    keeper.raw(b'{"op":"list"}\n' * 200)  # 12 MB of answers
    assert ended(rig.keeper()) == (os.CLD_KILLED, signal.SIGKILL)
    assert alive(pid)


def test_a_table_larger_than_what_may_stay_unread_still_reaches_a_keeper(rig: Rig) -> None:
    keeper = rig.keeper()
    leader = rig.spawn(keeper, "a", SLEEP)
    for number in range(100):
        keeper.tell("note", key=f"n{number}", value="x" * 60_000)
    keeper.ask("forget", gen="no")
    children = Path(f"/proc/{rig.pid}/task/{rig.pid}/children")
    kill(keeper)
    wait_until(lambda: (now := children.read_text().split()) and str(keeper.pid) not in now and len(now) == 2)
    os.kill(leader, signal.SIGKILL)  # news on top of a table that nobody has read yet, for we do not take it
    wait_until(lambda: state_of(leader) == "")
    keeper = rig.keeper()
    assert keeper.hello["incarnation"] == 2
    assert len(keeper.listed["notes"]) == 100
    keeper.until_gone("a")


# --- the end --------------------------------------------------------------------------------------------------------


def test_quit_is_refused_while_a_generation_lives_and_ends_the_slot_when_none_does(rig: Rig) -> None:
    keeper = rig.keeper()
    rig.spawn(keeper, "a", SLEEP)
    refused = keeper.ask("quit")
    assert (refused["ev"], refused["why"]) == ("error", "still alive: a")
    keeper.tell("kill", gen="a", sig=9)
    keeper.until_gone("a")
    assert keeper.ask("quit")["ev"] == "done"
    keeper.say("!exit 0")
    assert rig.ended() == 0
    assert rig.log.read_text() == ""


def test_a_keeper_that_stays_after_its_quit_is_ended() -> None:
    with Rig(sweep_limit=0.2) as rig:
        keeper = rig.keeper()
        assert keeper.ask("quit")["ev"] == "done"
        assert rig.ended() == 0
        assert not alive(keeper.pid)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_stop_signal_is_the_keepers_to_carry_out(rig: Rig, number: signal.Signals) -> None:
    keeper = rig.keeper()
    pid = rig.spawn(keeper, "a", SLEEP)
    rig.signal(number)
    assert keeper.hear("signal")["sig"] == number
    assert alive(pid)
    keeper.tell("kill", gen="a", sig=15)
    keeper.until_gone("a")
    keeper.ask("quit")
    keeper.say("!exit 0")
    assert rig.ended() == 0


def test_the_second_stop_signal_means_now() -> None:
    with Rig(sweep_limit=0.2) as rig:
        keeper = rig.keeper()
        pid = rig.spawn(keeper, "a", [*PYTHON, DAEMONIZES, "bare"])
        daemon = rig.pids_said("a")[0]
        rig.signal(signal.SIGTERM)
        keeper.hear("signal")
        rig.signal(signal.SIGINT)
        assert keeper.hear("signal")["sig"] == signal.SIGINT
        assert rig.ended() == 0  # everything was killed; stop_limit is a minute
        assert [state_of(each) for each in (pid, daemon)] == ["", ""]
        assert not rig.lock("a").exists()


def test_a_keeper_that_ignores_the_stop_is_ended_at_the_limit_with_the_engine() -> None:
    with Rig(stop_limit=0.2) as rig:
        keeper = rig.keeper()
        pid = rig.spawn(keeper, "a", SLEEP)
        rig.signal(signal.SIGTERM)
        assert rig.ended() == 0
        assert [state_of(each) for each in (pid, keeper.pid)] == ["", ""]
        assert "ending the engine without the keeper" in rig.log.read_text()


def test_a_keeper_that_dies_in_a_stop_is_not_replaced(rig: Rig) -> None:
    keeper = rig.keeper()
    pid = rig.spawn(keeper, "a", SLEEP)
    rig.signal(signal.SIGTERM)
    keeper.hear("signal")
    kill(keeper)
    assert rig.ended() == 0
    assert not alive(pid)


def test_a_stop_signal_while_there_is_no_keeper_ends_the_engine() -> None:
    with Rig(keeper_delays=[60]) as rig:
        keeper = rig.keeper()
        pid = rig.spawn(keeper, "a", SLEEP)
        kill(keeper)
        wait_until(lambda: "next in 60 s" in rig.log.read_text())
        rig.signal(signal.SIGTERM)
        assert rig.ended() == 0
        assert not alive(pid)


def test_a_stop_signal_among_spawns_is_not_lost_and_reaches_no_child(rig: Rig) -> None:
    keeper = rig.keeper()
    for number in range(20):
        keeper.tell("spawn", id=0, **rig.order(f"g{number}", SLEEP))
    rig.signal(signal.SIGTERM)
    assert keeper.hear("signal")["sig"] == signal.SIGTERM
    keeper.tell("list", id="end")
    states = []
    while (message := keeper.next())["ev"] != "listed":
        states += [message["state"]] if message["ev"] == "row" else []
    assert states == ["running"] * 20


def test_sighup_is_left_ignored_for_nohup() -> None:
    def before() -> None:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    with Rig(before=before) as rig:
        keeper = rig.keeper()
        rig.signal(signal.SIGHUP)
        for _ in range(2):  # one turn of the warden may have begun before it
            keeper.tell("list")
            assert keeper.next()["ev"] == "listed"
        rig.signal(signal.SIGTERM)
        assert keeper.hear("signal")["sig"] == signal.SIGTERM


def test_a_stray_is_listed_and_killed_at_the_end(rig: Rig) -> None:
    keeper = rig.keeper()
    rig.spawn(keeper, "a", [*PYTHON, DAEMONIZES, "bare", "closes"])
    stray = rig.pids_said("a")[0]
    keeper.tell("kill", gen="a", sig=9)
    assert keeper.until_gone("a")["killed"] == 0
    (found,) = keeper.ask("list")["strays"]
    assert found == [stray, int(Path(f"/proc/{stray}/stat").read_text().split()[21])]
    assert keeper.ask("quit")["ev"] == "done"  # a stray does not hold the slot
    keeper.say("!exit 0")
    assert rig.ended() == 0
    assert state_of(stray) == ""


def test_the_wardens_death_takes_keeper_and_leaders_with_it(rig: Rig) -> None:
    keeper = rig.keeper()
    pids = [rig.spawn(keeper, gen, SLEEP) for gen in ("a", "b")]
    rig.kill()
    wait_dead(keeper.pid, *pids)
    assert is_free(rig.lock("a"))


# --- two wardens, and the way in ------------------------------------------------------------------------------------


def test_a_second_warden_in_the_slot_leaves_with_3_and_disturbs_nobody(rig: Rig) -> None:
    keeper = rig.keeper()
    second = subprocess.run(rig.command(), env=rig.marker.env, capture_output=True, timeout=PATIENCE_S, check=False)
    assert (second.returncode, second.stderr) == (3, b"held: another warden runs in this slot\n")
    assert keeper.ask("list")["ev"] == "listed"
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(rig.slot / "control.sock"))


def test_of_many_wardens_at_once_one_stays() -> None:
    with Rig() as rig:
        rig.keeper()
        rig.kill()
        crowd = [
            subprocess.Popen(rig.command(), env=rig.marker.env, stderr=subprocess.DEVNULL, start_new_session=True)
            for _ in range(5)
        ]
        rig.keeper()
        wait_until(lambda: sum(each.poll() is None for each in crowd) == 1, within=PATIENCE_S)
        assert sorted(each.poll() or 0 for each in crowd) == [0, 3, 3, 3, 3]
        for each in crowd:
            each.kill()
            each.wait()


def test_a_slot_that_cannot_be_is_said_in_a_line(tmp_path: Path) -> None:
    argv = [sys.executable, "-I", "-S", str(WARDEN), str(tmp_path / "no"), "{}"]
    done = subprocess.run(argv, capture_output=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 1
    assert done.stderr.decode() == f"[Errno 2] No such file or directory: '{tmp_path / 'no'}'\n"
