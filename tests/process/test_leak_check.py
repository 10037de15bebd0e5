"""The check that runs after every process test: it finds what a test leaves, and fails the test."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from tests.leak_check import MARKER, Watch
from tests.support import ROOT, alive

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.process

SLEEP = ["/bin/sleep", "1000"]
ORPHAN = (
    "import subprocess, sys; "
    "print(subprocess.Popen(sys.argv[1:], start_new_session=True, stdout=subprocess.DEVNULL).pid)"
)
LEAKY = ROOT / "tests" / "fakes" / "leaky_tests.py"


@contextmanager
def sleeping(environment: dict[str, str] | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """A process in a session of its own."""
    with subprocess.Popen(SLEEP, env=environment, start_new_session=True) as process:
        try:
            yield process
        finally:
            process.kill()


def test_a_child_in_a_session_of_its_own_and_without_our_environment_is_found_and_killed() -> None:
    watch = Watch()
    with sleeping({}) as process:
        with pytest.raises(AssertionError, match=rf"left behind:\nprocess {process.pid} \(descent\): /bin/sleep 1000$"):
            watch.close(within=0)
        process.wait(10)


def test_an_orphan_in_a_session_of_its_own_is_found_and_killed() -> None:
    watch = Watch()
    orphan = int(subprocess.run([sys.executable, "-c", ORPHAN, *SLEEP], stdout=subprocess.PIPE, check=True).stdout)
    assert alive(orphan)
    with pytest.raises(AssertionError, match=rf"left behind:\nprocess {orphan} \(marker\): /bin/sleep 1000$"):
        watch.close(within=0)
    assert not alive(orphan)


def test_a_lock_that_is_held_is_found(tmp_path: Path) -> None:
    (tmp_path / "slot" / "members").mkdir(parents=True)
    member = tmp_path / "slot" / "members" / "some-uuid"
    with member.open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        watch = Watch()
        with pytest.raises(AssertionError, match="lock held: slot/members/some-uuid"):
            watch.close(tmp_path, within=0)
    Watch().close(tmp_path, within=0)


def test_what_ran_before_the_test_is_not_its_own() -> None:
    with sleeping() as process:
        Watch().close(within=0)
        assert process.poll() is None


def test_what_ends_in_time_is_waited_for() -> None:
    watch = Watch()
    with subprocess.Popen(["/bin/sleep", "0.3"]):
        watch.close()


def test_the_marker_is_put_back() -> None:
    outer = os.environ[MARKER]
    watch = Watch()
    assert os.environ[MARKER] == watch.mark != outer
    watch.close()
    assert os.environ[MARKER] == outer


@pytest.mark.long
def test_a_test_that_leaves_a_process_fails_and_one_that_is_not_marked_too() -> None:
    """With pytest itself, on tests that misbehave."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", "-rA", str(LEAKY)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    verdicts = {
        line.partition(" - ")[0].replace(f"{LEAKY.relative_to(ROOT)}::", "") for line in done.stdout.splitlines()
    }
    assert {line for line in verdicts if line.startswith(("PASSED", "FAILED", "ERROR"))} == {
        "PASSED test_that_leaves_a_process",
        "ERROR test_that_leaves_a_process",
        "PASSED test_that_leaves_nothing",
        "PASSED test_that_is_not_marked",
        "ERROR test_that_is_not_marked",
    }
    assert "(descent): /bin/sleep 1000" in done.stdout
    assert "mark it `process`" in done.stdout
