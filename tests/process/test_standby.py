"""A keeper that waits for a warden that never comes."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from supervisor import contract, standby, warden
from supervisor.slot import Slot
from tests.process.children import Child
from tests.support import alive, wait_until

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.process

STARTER = """
import sys
from supervisor import standby
waiting = standby.begin()
print(waiting.pid)
if sys.stdin.readline().strip() == "end":
    waiting.end()
    print("ended")
sys.stdin.readline()
"""


def test_it_ends_with_whoever_started_it() -> None:
    with Child(STARTER) as child:
        pid = int(child.hear())
        child.kill()
        wait_until(lambda: not alive(pid))


def test_it_can_be_sent_away() -> None:
    with Child(STARTER) as child:
        pid = int(child.hear())
        assert alive(pid)
        child.say("end")
        assert child.hear() == "ended"
        assert not alive(pid)
        child.say()


def test_it_can_be_sent_away_where_the_kernel_reaps_children() -> None:
    """Whoever started us ignored SIGCHLD, and that outlives exec."""
    with Child("import signal; signal.signal(signal.SIGCHLD, signal.SIG_IGN)" + STARTER) as child:
        pid = int(child.hear())
        child.say("end")
        assert child.hear() == "ended"
        wait_until(lambda: not alive(pid))
        child.say()


@pytest.mark.parametrize("error", [BlockingIOError("no process to be had"), NotImplementedError("setsid")])
def test_where_none_can_be_started_nothing_is_left(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> int:
        raise error

    monkeypatch.setattr(os, "posix_spawn", refuse)
    before = os.listdir("/proc/self/fd")
    assert standby.begin() is None
    assert len(os.listdir("/proc/self/fd")) == len(before)


WARDEN = """
import os, sys
from pathlib import Path
from supervisor import standby, wardens
from supervisor.slot import Slot
waiting = standby.begin()
print(waiting.pid)
command = wardens.command(Slot(Path(sys.argv[1])), waiting=waiting)
os.execve(command[0], command, dict(os.environ))
"""


def test_one_that_a_warden_cannot_wake_ends(tmp_path: Path) -> None:
    """Its log cannot be opened, say. The warden starts another, as soon as it can: one that waits on would hold what it
    imported for as long as the engine runs."""
    slot = Slot(tmp_path / "slot")
    slot.prepare()
    (slot.logs / "keeper.log").mkdir()
    with Child(WARDEN, slot.path) as child:
        pid = int(child.hear())
        wait_until(lambda: not alive(pid))
        assert alive(child.pid)


def test_it_is_marked_as_a_keeper_is() -> None:
    assert standby.MARKER == warden.MARKER == contract.GENERATION_VARIABLE


RUN = """
import os, sys
from supervisor import cli, standby
kept = int(sys.argv[2])
def seen(*_):
    os.execv("/usr/bin/find", ["find", "/proc/self/fd", "-type", "l", "-fprintf", f"/proc/self/fd/{kept}", "%f -> %l\\n"])
standby.begin = seen
os.dup2(os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT), kept)
os.closerange(3, 20)
for number in {0, 1, 2} - {kept}:
    os.close(number)
if kept != 1:
    sys.stdout = None  # as Python has it then
cli.main(["run"])
"""


@pytest.mark.parametrize("kept", [1, 2])
def test_no_lock_and_no_link_takes_the_place_of_a_closed_standard_stream(kept: int, tmp_path: Path) -> None:
    """The warden and its keeper would speak to it: `queenright run <&- 2>&-`."""
    with Child(RUN, tmp_path / "seen", kept) as child:
        child.end()
    links = [line.split()[-3:] for line in (tmp_path / "seen").read_text().splitlines() if " -> " in line]
    for number in {0, 1, 2} - {kept}:
        assert [str(number), "->", "/dev/null"] in links
