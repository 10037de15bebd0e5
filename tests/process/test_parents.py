"""A child hears of its parent's death, whoever takes it in, and whatever else seems to live on."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest
import trio

from supervisor import identity, parents
from supervisor.errors import QueenrightError
from supervisor.parents import wait_parent, watch_parent
from tests.process.children import Child
from tests.support import alive, wait_until

pytestmark = pytest.mark.process

WATCHES = """
import os, sys
from supervisor.parents import watch_parent
def died():
    print("parent died", os.getppid(), flush=True)
    os._exit(0)
watch = watch_parent(died)
print("watching", os.getpid(), flush=True)
sys.stdin.read()
print("stdin ended", flush=True)
"""

WATCHES_IN_TRIO = """
import os, sys
from supervisor import identity
from supervisor.parents import wait_parent
parent = identity.of(os.getppid())
print("watching", os.getpid(), flush=True)
import trio  # takes its time: the parent may die meanwhile
trio.run(lambda: wait_parent(expected=parent))
print("parent died", os.getppid(), flush=True)
"""

REFUSES_TO_END = """
import os, signal, sys
from supervisor.parents import watch_parent
signal.signal(signal.SIGTERM, signal.SIG_IGN)
watch = watch_parent(lambda: sys.stdin.read(), grace_s=0.2)
print("watching", os.getpid(), flush=True)
signal.pause()
"""

WRAPPER = """
import ctypes, os, subprocess, sys
PR_SET_CHILD_SUBREAPER = 36
code = sys.argv[1]
wrapper = os.fork()
if wrapper == 0:
    # The MCP host: starts the server, and is killed. The server's standard input stays open with the one above.
    subprocess.Popen([sys.executable, "-u", "-c", code])
    sys.stdout.flush()
    while True:
        import signal
        signal.pause()
print("wrapper", wrapper, flush=True)
if sys.argv[2] == "subreaper":
    assert ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
os.waitpid(wrapper, 0)
if sys.argv[2] == "subreaper":
    try:
        pid, status = os.waitpid(-1, 0)  # the orphan came to us
        print("reaped", pid, os.waitstatus_to_exitcode(status), flush=True)
    except ChildProcessError:
        print("nobody came", flush=True)
"""


@pytest.mark.parametrize("code", [WATCHES, WATCHES_IN_TRIO], ids=["thread", "trio"])
def test_a_killed_host_is_noticed_under_a_subreaper_with_stdin_open__mcp_markdown_vault_45(code: str) -> None:
    with Child(WRAPPER, code, "subreaper") as top:
        said = dict([top.hear().split(), top.hear().split()])
        wrapper, server = int(said["wrapper"]), int(said["watching"])
        assert alive(server)
        os.kill(wrapper, signal.SIGKILL)
        # Its new parent is not init: comparing with 1 would never have noticed.
        assert top.hear() == f"parent died {top.pid}"
        assert top.hear() == f"reaped {server} 0"


def test_a_killed_host_is_noticed_without_a_subreaper() -> None:
    with Child(WRAPPER, WATCHES, "init") as top:
        said = dict([top.hear().split(), top.hear().split()])
        os.kill(int(said["wrapper"]), signal.SIGKILL)
        assert top.hear().startswith("parent died ")
        wait_until(lambda: not alive(int(said["watching"])), what="the server is gone")


def test_an_orphan_that_does_not_end_is_ended() -> None:
    with Child(WRAPPER, REFUSES_TO_END, "subreaper") as top:
        said = dict([top.hear().split(), top.hear().split()])
        os.kill(int(said["wrapper"]), signal.SIGKILL)
        assert top.hear() == f"reaped {said['watching']} 1"


THREAD_STARTS = """
import subprocess, sys, threading
child = []
thread = threading.Thread(target=lambda: child.append(subprocess.Popen([sys.executable, "-u", "-c", sys.argv[1]])))
thread.start()
thread.join()
sys.stdin.readline()
print("still there", child[0].poll() is None)
child[0].terminate()
child[0].wait()
"""


def test_the_end_of_the_thread_that_started_us_is_nobodys_death__unirl_276() -> None:
    with Child(THREAD_STARTS, WATCHES.replace("sys.stdin.read()", "import signal; signal.pause()")) as host:
        assert host.hear().startswith("watching")
        host.say()
        assert host.hear() == "still there True"
        assert host.end() == 0


def test_a_closed_watch_calls_nobody_and_ends_its_thread() -> None:
    called: list[str] = []
    before = threading.active_count()
    descriptors = len(os.listdir("/proc/self/fd"))
    with watch_parent(lambda: called.append("died")) as watch:
        assert threading.active_count() == before + 1
    watch.close()
    assert threading.active_count() == before
    assert len(os.listdir("/proc/self/fd")) == descriptors
    assert called == []


def someone_else() -> identity.Identity:
    return identity.own()


def test_a_parent_that_was_dead_before_is_reported_at_once() -> None:
    """Whoever took us in cannot be told from who started us: so the parent may say who it is."""
    called = threading.Event()
    with watch_parent(called.set, expected=someone_else(), grace_s=None):
        assert called.wait(10)
    called.clear()
    reused = identity.of(os.getppid())
    assert reused is not None
    with watch_parent(called.set, expected=reused._replace(ticks=reused.ticks - 1), grace_s=None):
        assert called.wait(10)
    called.clear()
    with watch_parent(called.set, expected=reused, grace_s=None):
        assert not called.wait(0.05)


def test_a_parent_that_dies_while_we_look_is_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([os.getpid(), 1])  # whoever it is, it lives
    monkeypatch.setattr(os, "getppid", lambda: next(answers))
    called = threading.Event()
    with watch_parent(called.set, grace_s=None):
        assert called.wait(10)


@pytest.mark.trio
async def test_in_trio_the_wait_can_be_cancelled_and_leaves_no_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    descriptors = len(os.listdir("/proc/self/fd"))
    with trio.move_on_after(0.01) as scope:
        await wait_parent()
    assert scope.cancelled_caught
    await wait_parent(expected=someone_else())
    monkeypatch.setattr(os, "getppid", lambda: 0)  # a container's first process has none to see
    with trio.move_on_after(0.01) as scope:
        await wait_parent()
    assert scope.cancelled_caught
    assert len(os.listdir("/proc/self/fd")) == descriptors


def test_no_clock_is_asked__w10() -> None:
    """Nothing in it reads the time of day: a step of the clock can change nothing."""
    source = Path(parents.__file__).read_text(encoding="utf-8")
    assert "time" not in {line.split()[1] for line in source.splitlines() if line.startswith(("import ", "from "))}


def test_a_system_without_pidfds_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "pidfd_open")
    with pytest.raises(QueenrightError, match="pidfd_open"):
        watch_parent(lambda: None)
