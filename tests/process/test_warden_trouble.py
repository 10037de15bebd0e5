"""A warden short of what it needs, or in bad company: descriptors, processes, a stuck child, a debugger, a full pipe.

Where the kernel cannot be brought to fail on order, a seam stands in: the real warden runs with one function changed.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.process.warden_children import DAEMONIZES, PASSES_IT_ON, PYTHON, SLEEP
from tests.process.warden_rig import PATIENCE_S, Keeper, Rig, is_free, state_of, wait_dead
from tests.support import ROOT, alive, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.process

DETACH_STUB = ROOT / "supervisor" / "detach_stub.py"


@pytest.fixture
def rig() -> Iterator[Rig]:
    with Rig() as rig:
        yield rig


def limit_descriptors(rig: Rig) -> tuple[int, int]:
    """Not one descriptor more for the warden; returns the old limit."""
    highest = max(int(entry.name) for entry in Path(f"/proc/{rig.pid}/fd").iterdir())
    hard = resource.prlimit(rig.pid, resource.RLIMIT_NOFILE)[1]
    return resource.prlimit(rig.pid, resource.RLIMIT_NOFILE, (highest + 1, hard))


# --- short of something ---------------------------------------------------------------------------------------------


def test_without_descriptors_a_spawn_is_refused_and_works_again_later(rig: Rig) -> None:
    keeper = rig.keeper()
    old = limit_descriptors(rig)
    refused = keeper.ask("spawn", **rig.order("a", SLEEP))
    assert (refused["ev"], refused["errno"]) == ("error", 24)
    resource.prlimit(rig.pid, resource.RLIMIT_NOFILE, old)
    rig.spawn(keeper, "a", SLEEP)


def test_a_sweep_without_descriptors_is_taken_up_when_there_are_some() -> None:
    # With not one to spare not even /proc can be read: the walk fails, and says nothing about who lives.
    with Rig(seam=FAILING_LOOKS, may_try_again=True) as rig:
        keeper = rig.keeper()
        rig.spawn(keeper, "a", [*PYTHON, DAEMONIZES, "closes"])
        daemon = rig.pids_said("a")[0]
        (rig.slot / "fail").touch()
        keeper.tell("kill", gen="a", sig=9)
        keeper.hear("exit", gen="a")
        wait_until(lambda: rig.log.read_text().count("trying again: OSError(24") > 2)
        assert alive(daemon)
        os.kill(keeper.pid, signal.SIGKILL)
        keeper = rig.keeper()  # has a table to begin with, if without strays
        assert keeper.rows["a"]["state"] == "sweeping"
        (rig.slot / "fail").unlink()
        keeper.until_gone("a")
        wait_until(lambda: state_of(daemon) == "")


FAILING_LOOKS = """
listdir = os.listdir
def failing(path="."):
    if os.path.exists("fail"):
        raise OSError(24, "too many open files")
    return listdir(path)
os.listdir = failing
"""

FAILING_FORKS = """
fork, done = os.fork, []
def failing():
    if os.path.exists("fail"):
        raise BlockingIOError(11, "no more processes")
    return fork()
os.fork = failing
"""


def test_without_processes_a_spawn_is_refused_and_a_keeper_comes_later() -> None:
    with Rig(seam=FAILING_FORKS) as rig:
        keeper = rig.keeper()
        before = rig.fds()
        (rig.slot / "fail").touch()
        refused = keeper.ask("spawn", **rig.order("a", SLEEP))
        assert (refused["ev"], refused["errno"]) == ("error", 11)
        assert not rig.lock("a").exists()
        assert rig.fds() == before
        os.kill(keeper.pid, signal.SIGKILL)
        wait_until(lambda: "cannot start a keeper: [Errno 11]" in rig.log.read_text())
        (rig.slot / "fail").unlink()
        assert rig.keeper().hello["incarnation"] == 2
        assert len(rig.fds()) == len(before)


def test_a_child_that_cannot_be_watched_is_not_left_running() -> None:
    seam = "def failing(pid):\n    raise OSError(24, 'too many open files')\n"
    seam += "pidfd_open = os.pidfd_open\nos.pidfd_open = lambda pid: (failing if os.path.exists('fail') else pidfd_open)(pid)"
    with Rig(seam=seam) as rig:
        keeper = rig.keeper()
        (rig.slot / "fail").touch()
        assert keeper.ask("spawn", **rig.order("a", SLEEP))["ev"] == "error"
        assert Path(f"/proc/{rig.pid}/task/{rig.pid}/children").read_text().split() == [str(keeper.pid)]
        (rig.slot / "fail").unlink()
        rig.spawn(keeper, "a", SLEEP)


def test_a_full_pipe_for_its_words_does_not_stop_the_warden() -> None:
    read_end, write_end = os.pipe2(os.O_NONBLOCK)
    try:
        while True:
            os.write(write_end, b"x" * 4096)
    except BlockingIOError:
        os.set_blocking(write_end, True)
    with Rig(stderr=write_end) as rig:
        for _ in range(3):
            os.kill(rig.keeper().pid, signal.SIGKILL)
        rig.keeper()
    os.close(read_end)
    os.close(write_end)


# --- processes that do not die, or do not let go --------------------------------------------------------------------

STUCK = """
kill_exact = warden.kill_exact
warden.kill_exact = lambda pid, ticks, number: None if os.path.exists("stuck") else kill_exact(pid, ticks, number)
"""


def test_an_unkillable_process_is_reported_holds_its_group_and_is_swept_when_it_can_be() -> None:
    # As it would be after four minutes of trying: the count of passes has no end.
    late = (
        "init = warden.Generation.__init__\ndef late(self, message):\n    init(self, message)\n    self.passes = 5000\n"
    )
    with Rig(seam=f"{STUCK}{late}warden.Generation.__init__ = late", sweep_limit=0.1) as rig:
        (rig.slot / "stuck").touch()
        keeper = rig.keeper()
        rig.spawn(keeper, "a", [*PYTHON, DAEMONIZES], group="chat")
        stuck = rig.pids_said("a")[0]
        keeper.tell("kill", gen="a", sig=9)
        assert keeper.hear("unkillable", gen="a")["pids"] == [stuck]
        assert keeper.ask("spawn", **rig.order("b", SLEEP, group="chat"))["ev"] == "error"
        rig.spawn(keeper, "c", SLEEP, group="embed")
        (rig.slot / "stuck").unlink()
        keeper.until_gone("a")
        rig.spawn(keeper, "b", SLEEP, group="chat")


def test_a_slot_with_an_unkillable_generation_can_be_quit_and_says_so_by_its_status() -> None:
    with Rig(seam=STUCK, sweep_limit=0.1) as rig:
        (rig.slot / "stuck").touch()
        keeper = rig.keeper()
        rig.spawn(keeper, "a", [*PYTHON, DAEMONIZES])
        stuck = rig.pids_said("a")[0]
        keeper.tell("kill", gen="a", sig=9)
        keeper.hear("unkillable", gen="a")
        assert keeper.ask("quit")["ev"] == "done"
        keeper.say("!exit 0")
        assert rig.ended() == 1
        assert not is_free(rig.lock("a"))  # held means alive, also for who comes after us
        assert alive(stuck)
        rig.marker.kill()


STUCK_LEADER = """
send = signal.pidfd_send_signal
signal.pidfd_send_signal = lambda pidfd, number: None if os.path.exists("stuck") else send(pidfd, number)
"""
CLOSES_ALL = "import os, signal; os.closerange(3, 100); print('ready', flush=True); signal.pause()"


def test_a_leader_that_does_not_die_of_sigkill_is_reported_until_it_does() -> None:
    with Rig(seam=f"import signal\n{STUCK_LEADER}", sweep_limit=0.1) as rig:
        (rig.slot / "stuck").touch()
        keeper = rig.keeper()
        leader = rig.spawn(keeper, "a", [*PYTHON, CLOSES_ALL], group="chat")
        rig.said("a")
        for _ in range(2):
            keeper.tell("kill", gen="a", sig=15)
            keeper.tell("kill", gen="a", sig=9, scope="all")
        assert keeper.hear("unkillable", gen="a")["pids"] == [leader]
        # Nothing of it but the leader lives, and nobody holds its lock: yet it is not gone, and nobody waits for it.
        rig.spawn(keeper, "b", ["/bin/true"])
        assert keeper.next()["ev"] == "exit"
        keeper.until_gone("b")
        assert keeper.ask("spawn", **rig.order("c", SLEEP, group="chat"))["ev"] == "error"
        os.kill(keeper.pid, signal.SIGKILL)
        keeper = rig.keeper()
        assert (keeper.rows["a"]["state"], keeper.rows["a"]["code"]) == ("unkillable", 0)
        os.kill(leader, signal.SIGKILL)
        assert keeper.next()["ev"] == "exit"
        keeper.until_gone("a")
        rig.spawn(keeper, "c", SLEEP, group="chat")
        (rig.slot / "stuck").unlink()


def test_a_slot_whose_leader_cannot_be_killed_can_be_quit() -> None:
    with Rig(seam=f"import signal\n{STUCK_LEADER}", sweep_limit=0.1) as rig:
        (rig.slot / "stuck").touch()
        keeper = rig.keeper()
        leader = rig.spawn(keeper, "a", SLEEP)
        keeper.tell("kill", gen="a", sig=9)
        keeper.hear("unkillable", gen="a")
        assert keeper.ask("quit")["ev"] == "done"
        keeper.say("!exit 0")
        assert rig.ended() == 1
        wait_dead(leader)  # by its death signal


def test_the_environment_of_a_process_in_uninterruptible_sleep_is_not_read() -> None:
    # Reading it may hang on what the process hangs on. Until it can be told whose it is, nobody is gone.
    seam = """
stat_of, mark_of = warden.stat_of, warden.mark_of
def stuck_stat(pid):
    state, *rest = stat_of(pid)
    return (b"D" if os.path.exists("stuck") and str(pid) == open("stuck").read() else state, *rest)
def stuck_mark(pid):
    if os.path.exists("stuck") and str(pid) == open("stuck").read():
        os._exit(99)
    return mark_of(pid)
warden.stat_of, warden.mark_of = stuck_stat, stuck_mark
"""
    with Rig(seam=seam, sweep_limit=0.2) as rig:
        keeper = rig.keeper()
        rig.spawn(keeper, "a", [*PYTHON, DAEMONIZES, "closes"])
        stuck = rig.pids_said("a")[0]
        (rig.slot / "stuck.new").write_text(str(stuck))
        (rig.slot / "stuck.new").rename(rig.slot / "stuck")
        keeper.tell("kill", gen="a", sig=9)
        assert keeper.hear("unkillable", "gone", gen="a")["pids"] == [stuck]
        assert alive(stuck)
        (rig.slot / "stuck").unlink()
        keeper.until_gone("a")
        wait_until(lambda: state_of(stuck) == "")


def test_what_dies_while_it_is_looked_at_has_left_a_child_that_is_not_missed() -> None:
    # Between the list of our children and the look at one of them it forks and dies: its child came to us too late for
    # the list. A chain of those, each walk sees only dead ones.
    seam = """
import signal
children_of, turns = warden.children_of, []
def racing(pid):
    found = children_of(pid)
    for child in found if pid == os.getpid() and os.path.exists("race") and len(turns) < 8 else ():
        if b"passes_it_on" in warden.read_whole(f"/proc/{child}/cmdline"):
            turns.append(child)
            os.kill(child, signal.SIGUSR1)
            while warden.stat_of(child)[0] != b"Z":
                os.sched_yield()
    return found
warden.children_of = racing
"""
    with Rig(seam=seam) as rig:
        keeper = rig.keeper()
        rig.spawn(keeper, "a", [*PYTHON, PASSES_IT_ON])
        rig.said("a")
        (rig.slot / "race").touch()
        keeper.tell("kill", gen="a", sig=9)
        keeper.until_gone("a")
        assert Path(f"/proc/{rig.pid}/task/{rig.pid}/children").read_text().split() == [str(keeper.pid)]


def test_a_debugger_that_keeps_a_dead_leader_does_not_stop_the_warden(rig: Rig) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    seize = 0x4206  # PTRACE_SEIZE, ptrace(2)
    keeper = rig.keeper()
    leader = rig.spawn(keeper, "a", SLEEP)
    if libc.ptrace(seize, leader, None, None):
        pytest.skip(f"ptrace is not allowed here: {os.strerror(ctypes.get_errno())}")
    keeper.tell("kill", gen="a", sig=9)
    wait_until(lambda: state_of(leader) == "Z")
    rig.spawn(keeper, "b", ["/bin/sh", "-c", "exit 3"])
    assert keeper.hear("exit")["gen"] == "b"
    os.waitpid(leader, 0x40000000)  # __WALL: the debugger lets go
    assert keeper.hear("exit", gen="a")["status"] == signal.SIGKILL
    keeper.until_gone("a")


# --- the detached start ---------------------------------------------------------------------------------------------


def start_detached(rig: Rig, log: Path, argv: list[str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-I", "-S", str(DETACH_STUB), str(log), *argv]
    return subprocess.run(
        command, env=rig.marker.env, input="go", capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )  # fmt: skip


def detached(rig: Rig) -> tuple[Keeper, subprocess.CompletedProcess[str]]:
    """A detached warden in the rig's slot, in place of the one that was there."""
    rig.keeper()
    rig.kill()
    done = start_detached(rig, rig.log, rig.command())
    keeper = rig.keeper()
    rig.watched.add(keeper.hello["pid"])
    return keeper, done


def test_a_detached_warden_shares_no_fate_with_whoever_asked(rig: Rig) -> None:
    keeper, done = detached(rig)
    assert (done.returncode, done.stdout, done.stderr) == (0, "here\n", "")
    pid = keeper.hello["pid"]
    try:
        parent, group, session = map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1:4])
        assert parent != os.getpid()
        assert session != os.getsid(0)
        assert pid not in (group, session)  # no leader of a session: it can never get a terminal
        links = {entry.name: os.readlink(entry) for entry in Path(f"/proc/{pid}/fd").iterdir()}
        assert (links["0"], links["1"], links["2"]) == ("/dev/null", str(rig.log), str(rig.log))
        again = start_detached(rig, rig.log, rig.command())
        assert (again.returncode, again.stderr) == (3, "held: another warden runs in this slot\n")
    finally:
        keeper.ask("quit")
        keeper.say("!exit 0")
        wait_dead(pid)


def test_nobody_is_started_for_whoever_waits_no_more(rig: Rig) -> None:
    command = [sys.executable, "-I", "-S", str(DETACH_STUB), str(rig.slot / "never.log"), "/bin/true", "{}"]
    done = subprocess.run(command, input="", capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert (done.returncode, done.stdout) == (1, "here\n")
    assert not (rig.slot / "never.log").exists()


def test_a_detached_start_that_fails_says_why_in_a_line(rig: Rig) -> None:
    rig.keeper()
    rig.kill()
    slot, settings = str(rig.slot), rig.command()[-1]
    nowhere = start_detached(rig, rig.slot / "no" / "log", rig.command())
    assert (nowhere.returncode, "[Errno 2]" in nowhere.stderr, nowhere.stderr.count("\n")) == (1, True, 0)
    no_program = start_detached(rig, rig.log, ["/not/there", slot, settings])
    assert (no_program.returncode, no_program.stderr[:24]) == (1, "cannot start /not/there:")
    no_slot = start_detached(rig, rig.log, [*rig.command()[:-2], slot + "/no", settings])
    assert (no_slot.returncode, no_slot.stderr[:9]) == (1, "[Errno 2]")
    dead = start_detached(rig, rig.log, ["/bin/true", slot, settings])
    assert (dead.returncode, dead.stderr) == (
        1,
        f"the warden died at its start; its last words are in {rig.log}",
    )
