"""Locks between real processes."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import pytest

from supervisor import locks
from supervisor.errors import LockTimeoutError
from tests.process.children import PATIENCE_S, Child

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.process

HOLDER = """
import sys
from pathlib import Path
from supervisor import locks
hold = locks.acquire(Path(sys.argv[1]), timeout=30)
print("held")
sys.stdin.readline()
"""

FORKER = """
import os, sys
from pathlib import Path
from supervisor import locks
hold = locks.acquire(Path(sys.argv[1]), timeout=30)
pid = os.fork()
if pid == 0:
    assert not hold.is_held
    hold.release()
    del hold
    sys.exit(7)  # with every exit handler
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
sys.stdin.readline()
print(hold.is_held)
os._exit(0)
"""

OUTLIVED = """
import os, sys
from pathlib import Path
from supervisor import locks
hold = locks.acquire(Path(sys.argv[1]), timeout=30)
if os.fork() == 0:
    print("child")
    sys.stdin.readline()
    os._exit(0)
os._exit(0)
"""

EXECS = """
import os, sys
from pathlib import Path
from supervisor import locks
hold = locks.acquire(Path(sys.argv[1]), timeout=30)
descriptor = hold.duplicate_inheritable()
after = "import os, sys; print('after'); sys.stdin.readline(); os.close(int(sys.argv[1])); print('closed'); sys.stdin.readline()"
os.execv(sys.executable, [sys.executable, "-u", "-I", "-S", "-c", after, str(descriptor)])
"""

LOOPER = """
import os, random, sys
from pathlib import Path
from supervisor import locks
path, counter, rounds = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
print("ready")
sys.stdin.readline()
for _ in range(rounds):
    with locks.acquire(path, timeout=60, poll=random.random() / 1000) as hold:
        assert os.path.samestat(os.fstat(hold.fileno()), os.stat(path))
        os.close(os.open(counter, os.O_CREAT | os.O_EXCL))  # fails if anybody else is inside
        os.unlink(counter)
        if random.random() < 0.2:
            os.unlink(path)  # the badly behaved: deletes the file while others wait on it
print("done")
"""


BRIEF = OUTLIVED.replace(
    "hold = locks.acquire(Path(sys.argv[1]), timeout=30)",
    """
open(sys.argv[1], "w").close()
inside = locks.held_briefly(Path(sys.argv[1]), timeout=30)
assert inside.__enter__()
""",
)

BOOK = OUTLIVED.replace(
    "hold = locks.acquire(Path(sys.argv[1]), timeout=30)",
    """
from supervisor.devices import reservations
inside = reservations.planning(Path(sys.argv[1]).parent)
assert inside.__enter__()
""",
)

MIDWAY = """
import os, sys, threading
from pathlib import Path
from types import SimpleNamespace
from supervisor import locks, membership
opened, descriptors, ends = threading.Event(), [], []

def fork():
    opened.wait()
    pid = os.fork()
    if pid == 0:
        try:
            os.fstat(descriptors[0])
        except OSError:
            os._exit(0)
        os._exit(1)
    ends.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))

def slow_open(*given, real=os.open):
    descriptors.append(real(*given))
    opened.set()
    thread.join(0.5)  # forks meanwhile, if it may
    return descriptors[0]

thread = threading.Thread(target=fork)
thread.start()
path = Path(sys.argv[1])
path.touch()
slot = SimpleNamespace(members=path.parent)
take = {"try": locks.try_acquire, "look": locks.is_held, "count": lambda _: membership.count(slot)}[sys.argv[2]]
os.open = slow_open
held = take(path)
thread.join()
print(*ends)
"""

NESTED = """
import os, sys, threading
from pathlib import Path
first = [True]

def end(pid):
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)

def handler():
    if first:
        first.clear()
        end(os.fork())

os.register_at_fork(before=handler)  # the last of these hooks is called first: this one in the midst of ours
from supervisor import locks
end(os.fork())
opened = threading.Event()
threading.Thread(target=lambda: (locks.is_held(Path(sys.argv[1])), opened.set()), daemon=True).start()
print(opened.wait(10))
"""

MIXER = LOOPER.replace('print("ready")', 'locks.try_acquire = lambda path: None\nprint("ready")')
"""By filelock alone: else it is by flock where it is free at once."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "build.lock"


def test_the_kernel_lets_go_when_the_holder_is_killed(path: Path) -> None:
    with Child(HOLDER, path) as child:
        assert child.hear() == "held"
        assert locks.is_held(path) is True
        assert locks.holders(path) == [child.pid]
        with pytest.raises(LockTimeoutError, match=f"pid {child.pid} "):
            locks.acquire(path, timeout=0.01)
        child.kill()
        assert locks.is_held(path) is False
        with locks.acquire(path, timeout=0):
            pass


def test_a_forked_child_neither_releases_nor_keeps_it__filelock_634(path: Path) -> None:
    with Child(FORKER, path) as child:
        assert child.hear() == "7"
        assert locks.is_held(path) is True
        child.say()
        assert child.hear() == "True"
        child.end()
        assert locks.is_held(path) is False


@pytest.mark.parametrize("holder", [OUTLIVED, BRIEF])
def test_a_forked_child_that_lives_on_does_not_keep_it(path: Path, holder: str) -> None:
    with Child(holder, path) as child:
        child.end()
        assert child.hear() == "child"
        assert locks.is_held(path) is False
        child.say()


def test_a_forked_child_that_lives_on_does_not_keep_the_book_of_promises(tmp_path: Path) -> None:
    """A front end looks into it before it starts an engine: no engine of the whole machine was planned while its child lived."""
    lock = tmp_path / "book" / "lock"
    with Child(BOOK, lock) as child:
        child.end()
        assert child.hear() == "child"
        assert lock.exists()
        assert locks.is_held(lock) is False
        child.say()


@pytest.mark.parametrize("how", ["try", "look", "count"])
def test_a_child_that_another_thread_forks_meanwhile_has_no_part_in_it(path: Path, how: str) -> None:
    """Between the opening of a lock and the note of it a fork took the descriptor along, and the child kept the lock of its
    killed parent for as long as it lived."""
    with Child(MIDWAY, path, how) as child:
        assert child.hear() == "0"


def test_a_fork_in_the_midst_of_another_leaves_the_guard_to_other_threads(path: Path) -> None:
    """As in a signal handler. The first one's end gave nothing back then, and every other thread waited for ever."""
    with Child(NESTED, path) as child:
        assert child.hear() == "True"


def test_who_is_brief_holds_it_against_all_others_and_waits_for_them(path: Path) -> None:
    with locks.held_briefly(path, timeout=0) as held:
        assert not held, "it makes no file"
    for _ in range(2):  # made, and found
        with locks.acquire(path, timeout=1):
            assert locks.is_held(path) is True
            assert locks.try_acquire(path) is None
            with pytest.raises(LockTimeoutError, match="is held by pid"), locks.acquire(path, timeout=0.01):
                pass
        assert locks.is_held(path) is False


def test_a_program_that_is_started_over_us_takes_the_lock_along(path: Path) -> None:
    with Child(EXECS, path) as child:
        assert child.hear() == "after"
        assert locks.is_held(path) is True
        assert locks.holders(path) == [child.pid]
        child.say()
        assert child.hear() == "closed"
        assert locks.is_held(path) is False
        child.say()


def test_three_processes_never_meet_inside_even_if_the_file_is_deleted__filelock_574(path: Path) -> None:
    with (
        Child(LOOPER, path, path.with_name("inside"), 60) as first,
        Child(MIXER, path, path.with_name("inside"), 60) as second,
        Child(LOOPER, path, path.with_name("inside"), 60) as third,
    ):
        everybody = (first, second, third)
        for child in everybody:
            assert child.hear() == "ready"
        for child in everybody:
            child.say()
        for child in everybody:
            assert child.hear() == "done"


def test_a_look_imports_no_library(path: Path) -> None:
    code = "import sys; from pathlib import Path; from supervisor import locks; locks.is_held(Path(sys.argv[1])); print(sorted({'filelock', 'trio', 'cattrs', 'attrs'} & set(sys.modules)))"
    with Child(code, path) as child:
        assert child.hear() == "[]"


def test_the_helper_notices_a_child_that_fails() -> None:
    # The tests above rest on it: a failed assertion in a child must turn the test red.
    with Child("assert False") as child, pytest.raises(AssertionError, match="ended instead of speaking"):
        child.hear()
    assert os.path.exists(sys.executable)
    assert PATIENCE_S > 0
