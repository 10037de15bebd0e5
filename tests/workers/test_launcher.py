"""The launcher, with real processes: it must not be possible to tell afterwards that it was there, but for the death
signal."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.support import signals_in
from workers import launcher

pytestmark = pytest.mark.process

LAUNCHER = Path(launcher.__file__).resolve()
NOT_US = "4000000"
"""A pid beyond pid_max's default: certainly not our parent."""

DEATH_BUDGET_MS = 20_000
"""The kernel's own work takes microseconds; this bounds a test that fails."""


def command(*argv: str, warden: str = NOT_US) -> list[str]:
    return [sys.executable, "-I", "-S", str(LAUNCHER), "--warden", warden, "--", *argv]


def run(*argv: str, warden: str = NOT_US, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*argv, warden=warden), capture_output=True, text=True, check=False, timeout=60, **options
    )


PROXY = """
import subprocess, sys
server = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL)
print(server.pid, flush=True)
server.wait()
"""


def test_a_server_dies_with_its_parent() -> None:
    server = "import sys, time; print('up', flush=True); time.sleep(1000)"
    parent = subprocess.Popen(
        [sys.executable, "-c", PROXY, *command(sys.executable, "-c", server)], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    with parent, parent.stdout as lines:
        said = sorted([lines.readline(), lines.readline()])  # pid and "up", in either order
        pid = int(said[0])
        descriptor = os.pidfd_open(pid)
        try:
            parent.kill()
            poll = select.poll()
            poll.register(descriptor, select.POLLIN)
            assert poll.poll(DEATH_BUDGET_MS), "the server lives on"
        finally:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
            os.close(descriptor)


def test_it_refuses_when_its_parent_is_the_warden() -> None:
    done = run("/bin/echo", "started", warden=str(os.getpid()))
    assert done.returncode == 75
    assert done.stdout == ""
    assert (
        done.stderr
        == f"queenright launcher: the proxy is dead (parent is {os.getpid()}), so /bin/echo is not started\n"
    )


@pytest.fixture
def no_exec(monkeypatch: pytest.MonkeyPatch) -> None:
    """A launcher that is run in this process must not become the server in its place."""

    def refuse(*arguments: object) -> None:
        raise AssertionError(f"it would have started {arguments}")

    monkeypatch.setattr(os, "execve", refuse)
    monkeypatch.setattr(launcher, "set_death_signal", lambda: None)
    monkeypatch.setattr(launcher, "DEFAULTED", ())


@pytest.mark.usefixtures("no_exec")
def test_it_refuses_when_it_was_orphaned_to_init(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getppid", lambda: 1)
    assert launcher.main(["--warden", NOT_US, "--", "/bin/true"]) == 75


@pytest.mark.usefixtures("no_exec")
def test_it_refuses_when_the_parent_died_before_the_death_signal_was_set(monkeypatch: pytest.MonkeyPatch) -> None:
    parents = iter([50, 51])
    monkeypatch.setattr(os, "getppid", lambda: next(parents))
    assert launcher.main(["--warden", NOT_US, "--", "/bin/true"]) == 75


def test_inherited_descriptors_reach_the_server() -> None:
    reader, writer = os.pipe()
    with open(reader, "rb") as end:
        code = (
            f"import os; os.write({writer}, b'through'); numbers = map(int, os.listdir('/proc/self/fd'));"
            "print(sorted(n for n in numbers if os.path.exists(f'/proc/self/fd/{n}')))"  # not the listing's own
        )
        done = run(sys.executable, "-c", code, pass_fds=[writer], stdin=subprocess.DEVNULL)
        os.close(writer)
        assert end.read() == b"through"
    assert done.stdout.strip() == str([0, 1, 2, writer])  # and nothing of the launcher's own


@pytest.mark.parametrize(
    "environment", [{"A": "1"}, {}, {"LC_ALL": "C", "PYTHONHOME": "/nowhere"}, {"E": "", "U": "ü="}]
)
def test_the_environment_is_the_given_one(environment: dict[str, str]) -> None:
    done = run("/usr/bin/env", env=environment)
    assert done.stdout == "".join(f"{name}={value}\n" for name, value in environment.items())


@pytest.mark.parametrize(("script", "status"), [("exit 7", 7), ("kill -TERM $$", -15), ("exit 0", 0)])
def test_the_exit_status_is_the_servers(script: str, status: int) -> None:
    assert run("/bin/sh", "-c", script).returncode == status


def test_arguments_pass_through_unchanged() -> None:
    odd = ["--warden", "--", "", "a b", "$HOME", "ü", "*"]
    assert run("/usr/bin/printf", "%s\\n", *odd).stdout.splitlines() == odd


def test_no_signal_stays_ignored_or_blocked() -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1, signal.SIGTERM})
    handler = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        process = subprocess.Popen(
            command("/bin/grep", "-E", "^Sig(Ign|Blk)", "/proc/self/status"),
            stdout=subprocess.PIPE,
            text=True,
            restore_signals=False,
        )
    finally:
        signal.signal(signal.SIGCHLD, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    values = dict(line.split(":") for line in process.communicate()[0].splitlines())
    assert {name: signals_in(mask) for name, mask in values.items()} == {"SigBlk": set(), "SigIgn": set()}


def test_what_cannot_be_executed_is_one_line_and_a_shells_status(tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.write_text("not a program")
    for path, status, why in (
        (str(tmp_path / "absent"), 127, "does not exist"),
        (str(plain), 126, "Permission denied"),
        (str(tmp_path), 126, "Permission denied"),
        ("true", 127, "is not an absolute path"),
    ):
        done = run(path)
        assert done.returncode == status
        assert why in done.stderr
        assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "argv", [[], ["--warden", "1", "--"], ["--warden", "x", "--", "/bin/true"], ["-w", "1", "--", "/b"]]
)
def test_wrong_usage_is_64(argv: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-I", "-S", str(LAUNCHER), *argv], capture_output=True, text=True, check=False
    )
    assert done.returncode == 64
    assert done.stderr.startswith("queenright launcher: usage:")
