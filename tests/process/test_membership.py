"""Membership between real processes: every way to go, forks, and many of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING

import pytest

from supervisor import identity
from supervisor.membership import count, join, members
from supervisor.slot import Slot
from tests.process.children import Child
from tests.support import measured

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.process

JOINS = """
import os, signal, sys
from pathlib import Path
from supervisor.membership import join
from supervisor.slot import Slot
slot = Slot(Path(sys.argv[1]))
handle = join(slot, program="child")
print("joined")
"""

WAITS = JOINS + "sys.stdin.readline()\n"

FORKS = (
    JOINS
    + """
reading, writing = os.pipe()
told, tell = os.pipe()
pid = os.fork()
if pid == 0:
    assert not handle.is_held
    handle.leave()
    handle.leave()
    del handle
    os.write(writing, b"left")
    if sys.argv[2] == "until told":
        os.read(told, 1)
    else:
        sys.stdin.readline()
    sys.exit(0)  # with every exit handler and finalizer
assert os.read(reading, 4) == b"left"
print(handle.is_held, pid)
"""
)

REAPS = """
sys.stdin.readline()
os.write(tell, b"x")
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
print("reaped")
sys.stdin.readline()
"""

JOINS_IN_A_FORKED_CHILD = (
    JOINS
    + """
import multiprocessing
def work(connection):
    with join(slot, program="forked"):
        connection.send("joined")
        connection.recv()
ours, theirs = multiprocessing.Pipe()
child = multiprocessing.get_context("fork").Process(target=work, args=(theirs,))
child.start()
ours.recv()
print("both", child.pid)
sys.stdin.readline()
ours.send("leave")
child.join()
print("one", child.exitcode)
sys.stdin.readline()
"""
)

CHURN = """
import random, sys
from pathlib import Path
from supervisor import locks
from supervisor.membership import count, join, members
from supervisor.slot import Slot
slot, rounds = Slot(Path(sys.argv[1])), int(sys.argv[2])
print("ready")
sys.stdin.readline()
for _ in range(rounds):
    with locks.acquire(slot.build_lock, timeout=60, poll=0.001):
        handle = join(slot, program="churn")
    seen = [member for member in members(slot) if member.pid == __import__("os").getpid()]
    assert len(seen) == 1, seen
    handle.leave()
    assert all(member.pid != __import__("os").getpid() for member in members(slot))
print("done")
"""


PROBES = """
import sys
from pathlib import Path
from supervisor import locks
from supervisor.membership import count
from supervisor.slot import Slot
slot = Slot(Path(sys.argv[1]))
print("ready")
for line in sys.stdin:
    print(count(slot), *([locks.is_held(slot.path / "kept")] if line == "probe\\n" else []))
"""


@pytest.fixture
def slot(tmp_path: Path) -> Slot:
    made = Slot(tmp_path / "slot")
    made.prepare()
    return made


def test_a_killed_member_is_gone_at_once_and_its_file_with_the_next_look(slot: Slot) -> None:
    with Child(WAITS, slot.path) as child:
        assert child.hear() == "joined"
        (member,) = members(slot)
        assert member.identity == identity.of(child.pid)
        assert member.program == "child"
        child.kill()
        assert len(list(slot.members.iterdir())) == 1
        assert members(slot) == []
        assert list(slot.members.iterdir()) == []


@pytest.mark.parametrize(
    ("ending", "file_stays"),
    [
        ("pass", False),
        ("raise SystemExit(3)", False),
        ("del handle", False),
        ("os._exit(0)", True),
        ("os.abort()", True),
        ("os.execv('/bin/true', ['true'])", True),
    ],
)
def test_every_way_to_end_ends_the_membership(slot: Slot, ending: str, file_stays: bool) -> None:
    with Child(
        f"import resource; resource.setrlimit(resource.RLIMIT_CORE, (0, 0)){JOINS}{ending}\n", slot.path
    ) as child:
        assert child.hear() == "joined"
        child.end()
        assert [path.exists() for path in slot.members.iterdir()] == [True] * file_stays
        assert count(slot) == 0


def test_a_forked_child_does_not_end_its_parents_membership__filelock_634(slot: Slot) -> None:
    with Child(FORKS + REAPS, slot.path, "until told") as child:
        assert child.hear() == "joined"
        held, _ = child.hear().split()
        assert held == "True"
        assert [member.pid for member in members(slot)] == [child.pid]
        child.say()
        assert child.hear() == "reaped"
        assert [member.pid for member in members(slot)] == [child.pid]
        child.say()
        child.end()
        assert count(slot) == 0


def test_a_forked_child_that_outlives_its_parent_does_not_keep_it_a_member(slot: Slot) -> None:
    with Child(FORKS + "os.kill(os.getpid(), signal.SIGKILL)", slot.path, "until stdin") as child:
        assert child.hear() == "joined"
        _, forked = child.hear().split()
        child.end()
        assert identity.of(int(forked)) is not None
        assert count(slot) == 0
        child.say()


def test_a_forked_child_may_become_a_member_of_its_own(slot: Slot) -> None:
    with Child(JOINS_IN_A_FORKED_CHILD, slot.path) as child:
        assert child.hear() == "joined"
        _, forked = child.hear().split()
        assert {member.pid for member in members(slot)} == {child.pid, int(forked)}
        child.say()
        assert child.hear() == "one 0"
        assert [member.pid for member in members(slot)] == [child.pid]
        child.say()
        child.end()
    assert count(slot) == 0


def test_leaving_shows_at_once_while_another_thread_starts_programs__rag_rat_410(slot: Slot) -> None:
    stop = threading.Event()
    started = threading.Event()

    def spawn() -> None:
        while not stop.is_set():
            # close_fds off: the lock's descriptor goes with the fork, and only the exec closes it.
            subprocess.run(["/bin/true"], check=True, close_fds=False)
            started.set()

    spawner = threading.Thread(target=spawn)
    spawner.start()
    try:
        assert started.wait(30)
        for _ in range(200):
            handle = join(slot, program="x")
            assert count(slot) == 1
            path = next(iter(slot.members.iterdir()))
            # By another name the file stays to be looked at: what counts here is its lock.
            os.link(path, slot.path / "kept")
            handle.leave()
            assert count(slot) == 0
            os.rename(slot.path / "kept", slot.members / "kept")
            assert count(slot) == 0, "the lock outlived leave()"
    finally:
        stop.set()
        spawner.join()


@pytest.mark.long
def test_two_thousand_leavings_show_at_once_to_a_second_process__rag_rat_410(slot: Slot) -> None:
    """That process looks at the lock of who left, which a program just being started may share: under another name its
    file is still there. No look may find it held, and so none has to be repeated."""
    stop, started = threading.Event(), threading.Event()

    def spawn() -> None:
        while not stop.is_set():
            subprocess.run(["/bin/true"], check=True, close_fds=False)
            started.set()

    spawner = threading.Thread(target=spawn)
    kept = slot.path / "kept"
    with Child(PROBES, slot.path) as prober:
        assert prober.hear() == "ready"
        spawner.start()
        try:
            assert started.wait(30)
            for _ in range(2000):
                handle = join(slot, program="x")
                prober.say("count")
                assert prober.hear() == "1"
                os.link(next(iter(slot.members.iterdir())), kept)
                handle.leave()
                prober.say("probe")
                assert prober.hear() == "0 False"
                kept.unlink()
        finally:
            stop.set()
            spawner.join()


@pytest.mark.parametrize("holds", [60, pytest.param(600, marks=pytest.mark.long)])
def test_members_come_and_go_under_probes_and_none_is_ever_lost__filelock_574(slot: Slot, holds: int) -> None:
    with Child(CHURN, slot.path, holds) as first, Child(CHURN, slot.path, holds) as second:
        for child in (first, second):
            assert child.hear() == "ready"
        with Child(WAITS, slot.path) as steady:
            assert steady.hear() == "joined"
            for child in (first, second):
                child.say()
            looks = 0
            while looks < 8 * holds:
                assert steady.pid in [member.pid for member in members(slot)]
                looks += 1
            for child in (first, second):
                assert child.hear() == "done"
    assert count(slot) == 0
    measured("W7", f"0 of {2 * holds} holds were ever invisible, nor a steady one in {looks} looks by a busy prober")


def test_a_thousand_members_are_counted(slot: Slot) -> None:
    # One process cannot hold more than one, so the files are locked as a member would lock them.
    import fcntl

    held = []
    try:
        for number in range(1000):
            descriptor = os.open(slot.members / f"{number:032x}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            held.append(descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        started = time.perf_counter()
        assert count(slot) == 1000
        print(f"counting 1000 members took {(time.perf_counter() - started) * 1000:.1f} ms")
        assert len(members(slot)) == 1000
        with join(slot, program="x"):
            assert count(slot) == 1001
    finally:
        for descriptor in held:
            os.close(descriptor)
    assert members(slot) == []
    assert list(slot.members.iterdir()) == []


def test_a_stopped_member_is_a_member(slot: Slot) -> None:
    with Child(WAITS, slot.path) as child:
        assert child.hear() == "joined"
        os.kill(child.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WNOWAIT)
        assert count(slot) == 1
        os.kill(child.pid, signal.SIGCONT)
        child.say()


def test_a_look_imports_no_library(slot: Slot) -> None:
    code = "import sys; from pathlib import Path; from supervisor.membership import members; from supervisor.slot import Slot; from supervisor import records, ports; members(Slot(Path(sys.argv[1]))); print(sorted({'filelock', 'trio', 'cattrs', 'attrs', 'httpx', 'psutil'} & set(sys.modules)))"
    with Child(code, slot.path) as child:
        assert child.hear() == "[]"
    assert sys.executable
