"""What process tests share: ports, waiting, and proof that nothing is left behind.

Every process that a test starts carries a marker in its environment: the test's own (tests/conftest.py), and where a
part of the test looks for its own processes, one that begins with it (`Marker`). The environment is inherited, also by
what forks itself away into another session, so `/proc/*/environ` finds them all, whatever we believe we started.
"""

from __future__ import annotations

import os
import py_compile
import random
import signal
import socket
import subprocess
import sys
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import pytest

from tests.leak_check import MARKER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

T = TypeVar("T")

ROOT = Path(__file__).resolve().parents[1]
FAKE_LLAMA_SERVER = Path(py_compile.compile(str(ROOT / "tests" / "fakes" / "llama_server.py"), doraise=True) or "")
"""Compiled: that is a third of what it takes to start it, and each test starts some."""
RAN: dict[str, set[str]] = {}
"""Which proxies and servers this run used, for its summary (tests/conftest.py)."""
MEASURED: dict[str, list[str]] = {}
"""Figures of this run by the case they belong to, for its summary; docs/guides/what-broke-elsewhere.md has some."""


def measured(case: str, text: str) -> None:
    """Have the run's summary say what was measured here. It decides nothing: machines are as fast as they are."""
    MEASURED.setdefault(case, []).append(text)


_PORTS = range(10_000, 20_000)
"""Below those that engines choose for themselves (supervisor.ports), so that none of them takes what a test was given."""
_BLOCK = 500
_blocks: list[socket.socket] = []
_ports: list[int] = []


def free_port() -> int:
    """A TCP port that nobody listens on, below the range the kernel gives to outgoing connections.

    No port is given twice, neither in one test run nor to two that run at once: whoever is given one binds it later.
    """
    while True:
        if not _ports:
            _ports.extend(_block())
            random.shuffle(_ports)
        port = _ports.pop()
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port


def _block() -> range:
    """Ports for this process alone, by a name that the kernel gives to one at a time (unix(7), abstract sockets)."""
    for first in _PORTS[::_BLOCK]:
        claim = socket.socket(socket.AF_UNIX)
        try:
            claim.bind(f"\0queenright-tests-{first}")
        except OSError:
            claim.close()
            continue
        _blocks.append(claim)
        return range(first, first + _BLOCK)
    raise AssertionError("so many test runs at once, or so long a one, that no port is left")


def wait_until(condition: Callable[[], T], *, within: float = 10.0, what: str = "") -> T:
    """The first true value of `condition`, looked at every 5 ms for at most `within` seconds.

    Raises:
        AssertionError: the time is over; it names `what` and the last value.
    """
    deadline = time.monotonic() + within
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {within:g} s: {what or condition}; last: {value!r}")
        time.sleep(0.005)


def alive(pid: int) -> bool:
    """Whether a process exists and is not a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] not in {"Z", "X"}


@dataclass(frozen=True, slots=True)
class Marker:
    """One mark on the processes of a test, or of a part of it."""

    value: str = field(default_factory=lambda: f"{os.environ.get(MARKER, '')}.{uuid.uuid4().hex}")

    @property
    def env(self) -> dict[str, str]:
        """Our environment with the marker."""
        return {**os.environ, MARKER: self.value}

    def pids(self) -> list[int]:
        """Living processes that carry it, from `/proc`."""
        wanted = f"{MARKER}={self.value}".encode()
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdecimal():
                continue
            try:
                environment = (entry / "environ").read_bytes()
            except OSError:
                continue
            if wanted in environment.split(b"\0") and alive(int(entry.name)):
                found.append(int(entry.name))
        return sorted(found)

    def kill(self) -> None:
        """SIGKILL all of them, each through a pidfd, until none is left."""
        deadline = time.monotonic() + 10
        while (pids := self.pids()) and time.monotonic() < deadline:
            for pid in pids:
                try:
                    fd = os.pidfd_open(pid)
                except ProcessLookupError:
                    continue
                try:
                    if pid in self.pids():  # still ours, now that the pidfd pins it
                        signal.pidfd_send_signal(fd, signal.SIGKILL)
                except ProcessLookupError:
                    pass
                finally:
                    os.close(fd)
            time.sleep(0.005)

    def assert_no_process_left(self, *, within: float = 2.0) -> None:
        """Fail if a process is still there after `within` seconds; it is killed, so that other tests are not disturbed.

        Raises:
            AssertionError: naming pids and command lines.
        """
        deadline = time.monotonic() + within
        while (pids := self.pids()) and time.monotonic() < deadline:
            time.sleep(0.005)
        if pids:
            left = describe(pids)
            self.kill()
            raise AssertionError(f"left behind: {left}")


def as_plain_user() -> list[str]:
    """Words to put before a command (by its whole path) so that it may read and write what permissions say, as root
    too. Skips the test where that cannot be had."""
    prefix = [sys.executable, "-I", "-S", str(ROOT / "tests" / "plain_user.py")]
    tried = subprocess.run([*prefix, "/bin/true"], capture_output=True, text=True, check=False)
    if tried.returncode != 0:
        pytest.skip(tried.stderr.strip())
    return prefix


def signals_in(mask: str) -> set[int]:
    """The signals in a mask of proc_pid_status(5). Not those that libc keeps for itself (signal(7): 32 and 33): whoever
    started us by posix_spawn(3), as make does, may have left them ignored, and nobody can change that through libc."""
    return {number for number in signal.valid_signals() if int(mask, 16) >> (number - 1) & 1}


def describe(pids: Iterable[int]) -> str:
    """Pids with their command lines, for a failure's text."""
    lines = []
    for pid in pids:
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
        except OSError:
            command = "gone"
        lines.append(f"{pid}: {command.strip()}")
    return "; ".join(lines)


def spawn(
    argv: Sequence[str | Path],
    marker: Marker,
    *,
    log: Path,
    env: Mapping[str, str] | None = None,
    pass_fds: Sequence[int] = (),
) -> subprocess.Popen[bytes]:
    """Start a marked process in a session of its own; its output is appended to `log`, a file, so it never blocks."""
    with log.open("ab") as output:
        return subprocess.Popen(
            [str(word) for word in argv],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**marker.env, **(env or {})},
            start_new_session=True,
            pass_fds=tuple(pass_fds),
            cwd=ROOT,
        )


def end(process: subprocess.Popen[bytes], *, within: float = 15.0) -> int:
    """SIGTERM, wait, and if need be SIGKILL; the exit status."""
    process.terminate()
    try:
        return process.wait(within)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait(5)
