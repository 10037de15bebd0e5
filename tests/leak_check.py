"""Nothing of a test is left when it has ended: asks another process (leaks.py), and ends what it finds."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

from supervisor import identity

PROGRAM = Path(__file__).resolve().with_name("leaks.py")

MARKER = "LC_QUEENRIGHT_TEST"
"""Variable that marks every process of a test. The environment of warden and keeper is an allow-list, which lets
locale variables through, so this one name reaches front ends, warden, keeper, proxies and servers alike."""

LINGER_S = 6.0
"""After a test's end nothing may be left for longer."""

KILLED_S = 1.0
"""After a SIGKILL nothing is left for longer but what we hold ourselves."""

PATIENCE_S = 60.0


_looker: subprocess.Popen[str] | None = None


def looker() -> subprocess.Popen[str]:
    """The process that looks, kept for the next question: to start it takes longer than ten looks."""
    global _looker
    if _looker is None or _looker.poll() is not None:
        end()
        _looker = subprocess.Popen(
            [sys.executable, "-I", "-S", str(PROGRAM)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={},
            start_new_session=True,  # what a terminal tells all of us is not for it
        )
    return _looker


def end() -> None:
    """No more questions."""
    if _looker is not None:
        _looker.kill()
        _looker.communicate()


def ask(**question: Any) -> list[str]:
    """What is left, a line each; leaks.py says what can be asked."""
    process = looker()
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(json.dumps(question) + "\n")
    process.stdin.flush()
    if not select.select([process.stdout], [], [], PATIENCE_S)[0]:
        end()
        raise TimeoutError(f"no answer to {question}")
    found: list[str] = json.loads(process.stdout.readline())
    return found


def assert_nothing_left(*, within: float = LINGER_S, **question: Any) -> None:
    """Fail if anything is still there after `within` seconds. It is killed, so that other tests are not disturbed.

    Raises:
        AssertionError: naming processes, locks and sockets.
    """
    if found := ask(within=within, **question):
        ask(within=KILLED_S, kill=True, **question)
        raise AssertionError("\n".join(["left behind:", *found]))


class Watch:
    """One test: from here on what it starts is marked and looked for."""

    def __init__(self) -> None:
        looker()  # so that it was there before
        self.mark = uuid.uuid4().hex
        # What fixtures of a module or a session run is theirs to end.
        self._before = [(one.pid, one.ticks) for one in identity.descendants(os.getpid())]
        self._outer = os.environ.get(MARKER)
        os.environ[MARKER] = self.mark

    def close(self, folder: Path | None = None, *, within: float = LINGER_S) -> None:
        """The test has ended: no process of it may live, and no lock be held in its folder."""
        if self._outer is None:
            del os.environ[MARKER]
        else:
            os.environ[MARKER] = self._outer
        assert_nothing_left(
            within=within,
            slot=str(folder or ""),
            marker=f"{MARKER}={self.mark}",
            children=True,
            before=self._before,
        )
