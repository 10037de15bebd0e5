"""The leak check itself: it finds a process by each of its ways, and a lock; else every other test here proves nothing."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from tests.leak_check import MARKER

if TYPE_CHECKING:
    from tests.engine.place import Place

pytestmark = pytest.mark.process

SPEAK_AND_WAIT = "import sys; print('up', flush=True); sys.stdin.read()"
OPEN_AND_WAIT = "import sys; kept = open(sys.argv[1].replace('%', '/')); print('up', flush=True); sys.stdin.read()"
CHILD_AND_WAIT = (
    "import subprocess, sys; "
    "child = subprocess.Popen([sys.executable, '-c', \"import sys; print('up', flush=True); sys.stdin.read()\"]); "
    "sys.exit(child.wait())"
)


@pytest.mark.parametrize("way", ["marker", "generation", "command line", "descent", "open file"])
def test_a_process_is_found_by(place: Place, way: str) -> None:
    place.slot.prepare()
    place.slot.keeper_log.touch()
    code, words, environment = SPEAK_AND_WAIT, [], {}
    if way == "marker":
        environment = {MARKER: place.marker.value}
    elif way == "generation":
        environment = {"QUEENRIGHT_GENERATION": "a-generation"}
        place.generations.add("a-generation")
    elif way == "command line":
        words = [str(place.slot.path)]
    elif way == "open file":
        code, words = OPEN_AND_WAIT, [str(place.slot.keeper_log).replace("/", "%")]
    else:
        code = CHILD_AND_WAIT
    assert place.leaks() == []
    with ExitStack() as stack:
        process = stack.enter_context(
            subprocess.Popen(
                [sys.executable, "-c", code, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
            )
        )
        assert process.stdout is not None
        assert process.stdin is not None
        process.stdout.readline()
        if way == "descent":
            place.wardens.add(process.pid)
        found = place.leaks()
        assert [line for line in found if f"process {process.pid} ({way})" in line]
        assert len(found) == (2 if way == "descent" else 1)
        process.stdin.close()
    place.wardens.clear()


def test_a_held_lock_is_found(place: Place) -> None:
    place.slot.prepare()
    with open(place.slot.generation_lock("chat", "abc"), "wb") as file:
        assert place.leaks() == [f"process {os.getpid()} (open file): {own_command()}"]
        fcntl.flock(file, fcntl.LOCK_EX)
        assert "lock held: groups/chat.abc.lock" in place.leaks()
    assert place.leaks() == []


def own_command() -> str:
    """Our command line, as the check shows it."""
    with open("/proc/self/cmdline", "rb") as file:
        return file.read().replace(b"\0", b" ").decode()[:300].strip()
