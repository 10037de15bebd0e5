"""Identities of real processes."""

from __future__ import annotations

import os
import select
import signal

import pytest

from supervisor import identity
from supervisor.identity import Liveness
from tests.process.children import PATIENCE_S, Child

pytestmark = pytest.mark.process

LISTENS_TO_SIGNALS = """
import signal, sys
signals = [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1]
signal.pthread_sigmask(signal.SIG_BLOCK, signals)
print("ready")
sys.stdin.readline()
print(sorted(signal.sigpending()))
"""

FAMILY = """
import os, subprocess, sys, threading
inner = "import sys; print('grandchild', flush=True); sys.stdin.readline()"
middle = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]], start_new_session=True)"
def start():
    # From a second thread: the kernel lists children by the thread that started them.
    subprocess.run([sys.executable, "-c", middle, inner])
worker = threading.Thread(target=start)
worker.start()
worker.join()
"""


def test_a_zombie_is_dead_and_a_reaped_process_too() -> None:
    with Child("import sys; print('ready'); sys.stdin.readline()") as child:
        child.hear()
        known = identity.of(child.pid)
        assert known is not None
        assert identity.liveness(known) is Liveness.ALIVE
        os.kill(child.pid, signal.SIGKILL)
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert identity.state_of(child.pid) == "Z"
        assert identity.liveness(known) is Liveness.DEAD
        child.end()
        assert identity.liveness(known) is Liveness.DEAD


def test_a_record_naming_a_strangers_pid_signals_nobody__hermes_114617() -> None:
    with Child(LISTENS_TO_SIGNALS) as sentinel:
        sentinel.hear()
        real = identity.of(sentinel.pid)
        assert real is not None
        recorded = real._replace(ticks=real.ticks - 1)
        assert identity.liveness(recorded) is Liveness.DEAD
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            assert identity.signal_exact(recorded, number) is False
            assert identity.signal_exact(real._replace(boot_id="an earlier boot"), number) is False
        # The same door lets the right one through: so the silence above is a refusal, not a broken door.
        assert identity.signal_exact(real, signal.SIGUSR1) is True
        sentinel.say()
        assert sentinel.hear() == f"[{signal.SIGUSR1!r}]"


def test_a_pidfd_becomes_readable_when_that_process_ends() -> None:
    with Child("import sys; print('ready'); sys.stdin.readline()") as child:
        child.hear()
        known = identity.of(child.pid)
        assert known is not None
        descriptor = identity.open_pidfd(known)
        try:
            assert not os.get_inheritable(descriptor)
            assert select.select([descriptor], [], [], 0)[0] == []
            assert identity.signal_exact(known, signal.SIGKILL) is True
            assert select.select([descriptor], [], [], PATIENCE_S)[0] == [descriptor]
        finally:
            os.close(descriptor)
        child.end()
        assert identity.signal_exact(known, signal.SIGKILL) is False


@pytest.mark.parametrize("with_children_files", [True, False])
def test_descendants_are_found_through_threads_and_sessions(
    monkeypatch: pytest.MonkeyPatch, with_children_files: bool
) -> None:
    if not with_children_files:
        monkeypatch.setattr(identity, "_has_children_files", lambda: False)
    with Child(FAMILY) as child:
        assert child.hear() == "grandchild"
        (middle,) = identity.children(child.pid)
        (inner,) = identity.children(middle)
        assert [each.pid for each in identity.descendants(child.pid)] == [middle, inner]
        assert all(identity.liveness(each) is Liveness.ALIVE for each in identity.descendants(child.pid))
        child.say()
        assert child.end() == 0


def test_a_marker_is_found_by_a_scan_and_only_with_its_own_name() -> None:
    environment = {**os.environ, "QR_TEST_MARK": "a=b", "XQR_TEST_MARK_2": "no"}
    with Child("import sys; print('ready'); sys.stdin.readline()", environment=environment) as child:
        child.hear()
        known = identity.of(child.pid)
        assert identity.marker(child.pid, "QR_TEST_MARK") == "a=b"
        assert identity.marker(child.pid, "QR_TEST") is None
        assert identity.with_marker("QR_TEST_MARK") == [(known, "a=b")]
        assert identity.with_marker("QR_TEST_MARK_2") == []
        child.say()
        child.end()
    assert identity.with_marker("QR_TEST_MARK") == []
