"""What the warden does with a generation: birth, death, sweep, locks. A real warden, a scripted keeper, real children.

What is left behind is looked for from outside after each test, by `Rig.close`.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.leak_check import MARKER
from tests.process.warden_children import (
    BELOW_A_STRAY,
    DAEMONIZES,
    FIRST_THREAD_ENDS,
    FORKS_ON,
    LENDS_ITS_LOCK,
    PYTHON,
    SLEEP,
)
from tests.process.warden_rig import KEEPER, PATIENCE_S, Rig, is_free, state_of, wait_dead
from tests.support import alive, signals_in, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.process


@pytest.fixture
def rig() -> Iterator[Rig]:
    with Rig() as rig:
        yield rig


def proc(pid: int, name: str) -> str:
    return Path(f"/proc/{pid}/{name}").read_text()


# --- birth and death ------------------------------------------------------------------------------------------------


def test_exit_status_3_is_reported_as_3(rig: Rig) -> None:
    keeper = rig.keeper()
    rig.spawn(keeper, "a", ["/bin/sh", "-c", "exit 3"])
    exit_ = keeper.hear("exit", gen="a")
    assert (exit_["code"], exit_["status"]) == (os.CLD_EXITED, 3)
    assert keeper.until_gone("a")["killed"] == 0


def test_a_death_by_signal_is_reported_with_the_signal(rig: Rig) -> None:
    keeper = rig.keeper()
    rig.spawn(keeper, "a", SLEEP)
    keeper.tell("kill", id=0, gen="a", sig=int(signal.SIGTERM))
    exit_ = keeper.hear("exit", gen="a")
    assert (exit_["code"], exit_["status"]) == (os.CLD_KILLED, signal.SIGTERM)


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        ({"argv": ["/not/there"]}, "cannot start /not/there: [Errno 2]"),
        ({"argv": SLEEP, "cwd": "/not/there"}, "cannot start /bin/sleep: [Errno 2]"),
        ({"argv": ["/etc/passwd"]}, "cannot start /etc/passwd: [Errno 13]"),
        ({"argv": 7}, "cannot start"),
        ({"argv": SLEEP, "env": {"A": "nul\0"}}, "cannot start /bin/sleep: embedded null byte"),
    ],
    ids=["no program", "no directory", "no permission", "no argv", "no environment"],
)
def test_what_fails_before_its_exec_exits_127_with_a_line_in_the_log(rig: Rig, facts: dict[str, Any], why: str) -> None:
    keeper = rig.keeper()
    assert keeper.ask("spawn", **(rig.order("a", []) | facts))["ev"] == "spawned"
    exit_ = keeper.hear("exit", gen="a")
    assert (exit_["code"], exit_["status"]) == (os.CLD_EXITED, 127)
    keeper.until_gone("a")
    assert why in (rig.slot / "a.log").read_text() or isinstance(facts["argv"], int)


def test_a_child_that_cannot_even_write_its_last_words_does_not_go_on_as_a_warden(rig: Rig) -> None:
    keeper = rig.keeper()
    rig.spawn(keeper, "a", ["/not/there"], log="/dev/full")
    assert keeper.hear("exit", gen="a")["status"] == 127
    keeper.until_gone("a")


def test_a_child_starts_clean_whatever_the_warden_was_given() -> None:
    def before() -> None:
        for number in (signal.SIGUSR1, signal.SIGPIPE, signal.SIGQUIT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGCHLD, signal.SIGUSR2})

    read_end, write_end = os.pipe()
    try:
        with Rig(before=before, pass_fds=(read_end,)) as rig:
            keeper = rig.keeper()
            pid = rig.spawn(keeper, "a", SLEEP)
            wait_until(lambda: proc(pid, "comm") == "sleep\n")
            log = str(rig.slot / "a.log")
            own = {"0": "/dev/null", "1": log, "2": log, "3": str(rig.lock("a"))}
            # A program that was just started has its libraries open for a moment.
            wait_until(lambda: set(os.listdir(f"/proc/{pid}/fd")) == set(own), what="it has four descriptors")
            assert {entry.name: os.readlink(entry) for entry in Path(f"/proc/{pid}/fd").iterdir()} == own
            status = dict(line.split(":\t", 1) for line in proc(pid, "status").splitlines() if ":\t" in line)
            for mask in ("SigBlk", "SigIgn", "SigCgt"):
                assert signals_in(status[mask]) == set(), mask
            fields = proc(pid, "stat").rpartition(")")[2].split()
            assert [int(field) for field in fields[1:4]] == [rig.pid, pid, pid]  # parent, group, session
            assert os.readlink(f"/proc/{pid}/cwd") == "/"
            environment = dict(pair.split("=", 1) for pair in proc(pid, "environ").split("\0") if pair)
            assert environment == {**rig.env, "QUEENRIGHT_GENERATION": "a", "QUEENRIGHT_GENERATION_FD": "3"}
            links = {entry.name: os.readlink(entry) for entry in Path(f"/proc/{keeper.pid}/fd").iterdir()}
            assert set(links) >= {"0", "1", "2", "3", "4"}
            assert links["0"] == "/dev/null"
            assert os.readlink(f"/proc/self/fd/{read_end}") not in links.values()
            assert "NOTIFY_SOCKET" not in proc(keeper.pid, "environ")
            rig.signal(signal.SIGTERM)  # it was blocked and ignored in whoever started the warden
            assert keeper.hear("signal")["sig"] == signal.SIGTERM
    finally:
        os.close(read_end)
        os.close(write_end)


def test_a_spawn_is_refused_while_the_group_has_a_generation_that_is_not_gone(rig: Rig) -> None:
    keeper = rig.keeper()
    rig.spawn(keeper, "a", SLEEP, group="chat")
    refused = keeper.ask("spawn", **rig.order("b", SLEEP, group="chat"))
    assert (refused["ev"], refused["why"]) == ("error", "group chat still has generation a")
    assert not rig.lock("b").exists()
    rig.spawn(keeper, "c", SLEEP, group="embed")  # its neighbour is another matter
    keeper.tell("kill", gen="a", sig=9)
    keeper.until_gone("a")
    assert keeper.ask("spawn", **rig.order("a", SLEEP, group="chat"))["ev"] == "error"  # the name was used
    rig.spawn(keeper, "b", SLEEP, group="chat")
    keeper.tell("forget", gen="a")
    keeper.tell("forget", gen="b")  # it is alive: nothing happens
    keeper.ask("list")
    keeper.say("!exit 0")
    assert {gen: row["state"] for gen, row in rig.keeper().rows.items()} == {"b": "running", "c": "running"}


@pytest.mark.parametrize(
    "change",
    [
        {"gen": ["a"]},
        {"group": None},
        {"lock": 7},
        {"env": ["A=1"]},
        {"log": "/not/there/a.log"},
        {"lock": "/not/there/a.lock"},
        {"note": ...},
        {"argv": ...},
    ],
    ids=str,
)
def test_a_spawn_that_cannot_be_is_refused_and_leaves_nothing(rig: Rig, change: dict[str, Any]) -> None:
    keeper = rig.keeper()
    order = {name: fact for name, fact in (rig.order("a", SLEEP) | change).items() if fact is not ...}
    before = rig.fds()
    assert keeper.ask("spawn", **order)["ev"] == "error"
    assert not rig.lock("a").exists()
    assert rig.fds() == before
    assert proc(rig.pid, f"task/{rig.pid}/children").split() == [str(keeper.pid)]
    rig.spawn(keeper, "a", SLEEP)


def test_a_lock_file_that_is_there_already_is_nobodys_to_take(rig: Rig) -> None:
    keeper = rig.keeper()
    rig.lock("a").touch()
    refused = keeper.ask("spawn", **rig.order("a", SLEEP))
    assert (refused["ev"], refused["errno"]) == ("error", 17)
    assert rig.lock("a").exists()


def test_kill_reaches_the_leader_or_everybody(rig: Rig) -> None:
    keeper = rig.keeper()
    leader = rig.spawn(keeper, "a", [*PYTHON, DAEMONIZES])
    daemon = rig.pids_said("a")[0]
    keeper.tell("kill", gen="a", sig=int(signal.SIGSTOP), scope="all")
    for pid in (leader, daemon):
        wait_until(lambda pid=pid: state_of(pid) == "T")  # type: ignore[misc]
    keeper.tell("kill", gen="a", sig=int(signal.SIGCONT))
    wait_until(lambda: state_of(leader) == "S")
    assert state_of(daemon) == "T"


def test_100_lives_leave_the_warden_as_it_was(rig: Rig) -> None:
    keeper = rig.keeper()
    before = rig.fds()
    for number in range(100):
        rig.spawn(keeper, f"g{number}", SLEEP, group="chat")
        keeper.tell("kill", gen=f"g{number}", sig=9)
        keeper.until_gone(f"g{number}")
        keeper.tell("forget", gen=f"g{number}")
    assert keeper.ask("list")["strays"] == []
    assert rig.fds() == before
    assert proc(rig.pid, f"task/{rig.pid}/children").split() == [str(keeper.pid)]
    assert list(rig.slot.glob("*.lock")) == [rig.slot / "warden.lock"]


# --- the sweep ------------------------------------------------------------------------------------------------------


def test_the_lock_is_held_while_anything_of_the_generation_lives(rig: Rig) -> None:
    keeper = rig.keeper()
    leader = rig.spawn(keeper, "a", [*PYTHON, DAEMONIZES, "bare"])
    daemon = rig.pids_said("a")[0]
    os.kill(rig.pid, signal.SIGSTOP)  # so that nothing is swept yet
    os.kill(leader, signal.SIGKILL)
    wait_dead(leader)
    assert alive(daemon)
    assert not is_free(rig.lock("a"))
    os.kill(rig.pid, signal.SIGCONT)
    assert keeper.until_gone("a")["killed"] == 1
    assert not alive(daemon)
    assert not rig.lock("a").exists()


@pytest.mark.parametrize(
    "how",
    ["", "bare", "erases", "closes", "stays bare closes", "leaves", "leaves bare"],
    ids=lambda how: how or "plain",
)
def test_the_sweep_finds_a_daemon_by_lock_marker_or_session(rig: Rig, how: str) -> None:
    keeper = rig.keeper()
    rig.spawn(keeper, "a", [*PYTHON, DAEMONIZES, *how.split()])
    daemon = rig.pids_said("a")[0]
    keeper.tell("kill", gen="a", sig=9)
    keeper.until_gone("a")
    assert not alive(daemon)
    wait_until(lambda: state_of(daemon) == "", what="it is reaped, too")  # by SIGCHLD, which may come after `gone`


def test_a_member_below_a_stray_is_swept_and_the_stray_is_not(rig: Rig) -> None:
    keeper = rig.keeper()
    rig.spawn(keeper, "a", [*PYTHON, BELOW_A_STRAY])
    pids = rig.pids_said("a", 2)
    keeper.tell("kill", gen="a", sig=9)
    assert keeper.until_gone("a")["killed"] == 1
    assert sorted(map(alive, pids)) == [False, True]


def test_the_neighbours_daemon_is_left_alone(rig: Rig) -> None:
    keeper = rig.keeper()
    for gen in ("a", "b"):
        rig.spawn(keeper, gen, [*PYTHON, DAEMONIZES, "bare"])
    mine, other = rig.pids_said("a")[0], rig.pids_said("b")[0]
    keeper.tell("kill", gen="a", sig=9, scope="all")
    keeper.until_gone("a")
    assert not alive(mine)
    assert alive(other)


def test_what_forks_faster_than_one_looks_is_swept_too(rig: Rig) -> None:
    # No lock, another session, and dead before its pid is looked at: found by the marker of the one of now.
    keeper = rig.keeper()
    rig.spawn(keeper, "a", [*PYTHON, FORKS_ON])
    rig.said("a")
    keeper.tell("kill", gen="a", sig=9)
    keeper.until_gone("a")
    assert rig.marker.pids() == sorted([rig.pid, keeper.pid])


def test_a_process_whose_first_thread_has_ended_is_alive(rig: Rig) -> None:
    keeper = rig.keeper()
    rig.spawn(keeper, "a", [*PYTHON, FIRST_THREAD_ENDS])
    process = rig.pids_said("a")[0]
    wait_until(lambda: state_of(process) == "Z")
    keeper.tell("kill", gen="a", sig=9)
    assert keeper.until_gone("a")["killed"] == 1
    wait_until(lambda: state_of(process) == "")


def test_gone_waits_for_the_lock_and_the_pid_is_kept_until_then() -> None:
    with Rig(sweep_limit=0.2) as rig, socket.socket(socket.AF_UNIX) as listener:
        keeper = rig.keeper()
        listener.bind(str(rig.slot / "lend.sock"))
        listener.listen()
        listener.settimeout(PATIENCE_S)
        leader = rig.spawn(keeper, "a", [*PYTHON, LENDS_ITS_LOCK, str(rig.slot / "lend.sock")])
        with listener.accept()[0] as there:
            lock = socket.recv_fds(there, 1, 1)[1][0]
        os.set_inheritable(lock, False)
        keeper.tell("kill", gen="a", sig=9)
        assert keeper.next()["ev"] == "exit"
        # Somebody has the lock whom nobody can find: the generation is not gone, and its pid is nobody else's.
        assert keeper.next() == {"ev": "unkillable", "gen": "a", "pids": []}
        assert state_of(leader) == "Z"
        assert keeper.ask("spawn", **rig.order("b", SLEEP, group="a"))["ev"] == "error"
        os.close(lock)
        keeper.until_gone("a")
        assert state_of(leader) == ""


def test_a_lock_file_removed_by_hand_hides_nobody(rig: Rig) -> None:
    keeper = rig.keeper()
    rig.spawn(keeper, "a", [*PYTHON, DAEMONIZES, "bare"])
    daemon = rig.pids_said("a")[0]
    rig.lock("a").unlink()
    keeper.tell("kill", gen="a", sig=9)
    keeper.until_gone("a")
    assert not alive(daemon)
    wait_until(lambda: state_of(daemon) == "", what="it is reaped, too")  # by SIGCHLD, which may come after `gone`


def test_somebody_who_only_looks_at_a_lock_does_no_harm() -> None:
    # A reader's shared lock makes a try fail for an instant: here three of four tries.
    seam = """
import fcntl
flock, tries = fcntl.flock, []
def looked_at(fd, how):
    tries.append(fd)
    if len(tries) % 4:
        raise BlockingIOError(11, "somebody looks")
    return flock(fd, how)
fcntl.flock = looked_at
"""
    with Rig(seam=seam) as rig:
        keeper = rig.keeper()
        for _ in range(3):
            rig.spawn(keeper, "a", ["/bin/true"])
            keeper.until_gone("a")
            keeper.tell("forget", gen="a")


# --- what the warden remembers --------------------------------------------------------------------------------------


def test_notes_are_kept_as_they_are_and_null_deletes(rig: Rig) -> None:
    keeper = rig.keeper()
    rig.spawn(keeper, "a", SLEEP, note={"x": [1, "ü", None]})
    keeper.tell("note", key="intent", value={"stop": "now"})
    keeper.tell("note", key="other", value=1)
    keeper.tell("note", key="other", value=None)
    keeper.tell("note", gen="a", value={"y": 2})
    assert keeper.ask("note", key="big", value="x" * (512 << 10))["why"] == "ValueError: a note is at most 512 KiB"
    assert keeper.ask("list")["notes"] == {"intent": {"stop": "now"}}
    keeper.say("!exit 0")
    assert rig.keeper().rows["a"]["note"] == {"y": 2}


def test_a_mistake_is_answered_with_an_error_and_nothing_else_happens(rig: Rig) -> None:
    keeper = rig.keeper()
    leader = rig.spawn(keeper, "a", SLEEP)
    lines = [
        "",
        "{",
        "7",
        "[]",
        '"x"',
        "{}",
        '{"op": "nothing"}',
        '{"op": "__init__"}',
        '{"op": 3}',
        "[" * 30000,
        "\xff",
    ]
    lines += [json.dumps({"op": "kill", "gen": gen, "sig": sig}) for gen, sig in (("no", 9), ("a", "x"), ("a", 999))]
    lines += ['{"op": "note", "gen": "no", "value": 1}', '{"op": "forget", "gen": {}}', '{"op": "quit"}']
    for line in lines:
        keeper.say(line)
        assert keeper.hear("error")["why"], line
    assert alive(leader)
    assert keeper.ask("list")["ev"] == "listed"


def test_a_row_says_how_a_dead_one_ended(rig: Rig) -> None:
    keeper = rig.keeper()
    pid = rig.spawn(keeper, "a", ["/bin/sh", "-c", "exit 5"], group="chat", note="n")
    keeper.until_gone("a")
    keeper.tell("list", id=1)
    row = keeper.hear("row")
    assert row.pop("since_ns") > 0
    assert row.pop("ticks") > 0
    assert row == {
        "ev": "row", "gen": "a", "group": "chat", "pid": pid, "state": "gone", "code": 1, "status": 5, "note": "n"
    }  # fmt: skip


def test_the_rig_finds_what_is_left_behind() -> None:
    # The tests above rest on it.
    rig = Rig()
    rig.keeper()
    code = f"import os, sys; os.setsid(); os.execve('/bin/sleep', ['sleep', '1000'], {{{MARKER!r}: sys.argv[1]}})"
    pid = os.spawnv(os.P_NOWAIT, sys.executable, [sys.executable, "-I", "-S", "-c", code, rig.marker.value])
    wait_until(lambda: pid in rig.marker.pids())
    with pytest.raises(AssertionError, match=f"left behind: {pid}: sleep"):
        rig.close(within=0)
    os.waitpid(pid, 0)


# --- what it holds for the keeper, and says for it --------------------------------------------------------------------

KEEPS = """
import array, os, socket, sys
with socket.socket() as listener:
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [listener.fileno()]))]
    with socket.socket(fileno=os.dup(3)) as link:
        link.sendmsg([b'{"op":"beat"}\\n'], rights)
"""
"""What a keeper does to have a listener held."""


def test_a_listener_outlives_the_keeper_that_made_it_and_the_next_one_gets_it() -> None:
    code = f"if os.environ['QUEENRIGHT_GENERATION'].endswith('.1'):\n    exec({KEEPS!r})\n"
    keeper = "import os\n" + code + KEEPER
    with Rig(program=keeper) as rig:
        first = rig.keeper()
        assert wait_until(lambda: listeners(rig.pid), within=PATIENCE_S)
        (held,) = listeners(rig.pid)
        os.kill(first.pid, signal.SIGKILL)
        first.ended()
        second = rig.keeper()
        assert os.readlink(f"/proc/{second.pid}/fd/5") == f"socket:[{held}]"
        assert listeners(rig.pid) == {held}


def test_a_listener_that_was_given_to_it_goes_to_keepers_alone() -> None:
    """Not to a group started from then on: who holds a listener and does not accept lets its clients wait for ever."""
    code = f"if os.environ['QUEENRIGHT_GENERATION'].endswith('.1'):\n    exec({KEEPS!r})\n"
    with Rig(program="import os\n" + code + KEEPER) as rig:
        keeper = rig.keeper()
        assert wait_until(lambda: listeners(rig.pid), within=PATIENCE_S)
        pid = rig.spawn(keeper, "a", SLEEP)
        started = Path(f"/proc/{pid}/cmdline")
        assert wait_until(lambda: started.read_bytes().split(b"\0")[0] == SLEEP[0].encode(), within=PATIENCE_S)
        assert listeners(pid) == set()


def listeners(pid: int) -> set[str]:
    """Inodes of the TCP listeners that a process has open."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    listening = {row[9] for row in rows if row[3] == "0A"}
    links = (os.readlink(link) for link in Path(f"/proc/{pid}/fd").iterdir())
    return {link.removeprefix("socket:[").rstrip("]") for link in links if link.startswith("socket:")} & listening


def test_it_speaks_for_the_keeper_to_the_service_manager() -> None:
    address = f"\0queenright-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(address)
        manager.settimeout(PATIENCE_S)
        with Rig(notify=address) as rig:
            keeper = rig.keeper()
            keeper.tell("notify", line="READY=1\nSTATUS=all is well")
            assert manager.recv(4096) == b"READY=1\nSTATUS=all is well"
            manager.close()
            assert keeper.ask("list")["ev"] == "listed"
            keeper.tell("notify", id=7, line="nobody listens")
            assert "refused" in keeper.hear("error", id=7)["why"]
    with Rig() as rig:
        keeper = rig.keeper()
        keeper.tell("notify", line="to nobody")
        assert keeper.ask("list")["ev"] == "listed"
