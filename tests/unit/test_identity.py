"""Identities of processes from a made-up /proc, and from our own."""

from __future__ import annotations

import os
import signal
import threading
from typing import TYPE_CHECKING

import pytest

from supervisor import budgets, identity, looking
from supervisor.identity import Identity, Liveness

if TYPE_CHECKING:
    from pathlib import Path

BOOT = "11111111-2222-3333-4444-555555555555"
NAMESPACE = 4026531836
NOBODY = 2**22 + 5
"""A pid above pid_max: no process has it."""


@pytest.fixture
def proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A /proc of our own, with a boot id and a namespace."""
    (tmp_path / "sys/kernel/random").mkdir(parents=True)
    (tmp_path / "sys/kernel/random/boot_id").write_text(BOOT + "\n")
    (tmp_path / "self/ns").mkdir(parents=True)
    (tmp_path / "self/ns/pid").symlink_to(f"pid:[{NAMESPACE}]")
    monkeypatch.setattr(identity, "PROC", str(tmp_path))
    return tmp_path


def put(proc: Path, pid: int, *, state: str = "S", ticks: int = 700, threads: int = 1, name: str = "x") -> Identity:
    """A process in the made-up /proc."""
    (proc / str(pid)).mkdir(exist_ok=True)
    before = f"{state} 1 {pid} {pid} 0 -1 4194304 1 2 3 4 5 6 7 8 20 0 {threads} 0 {ticks} 1000 10"
    (proc / str(pid) / "stat").write_text(f"{pid} ({name}) {before}\n")
    return Identity(BOOT, NAMESPACE, pid, ticks)


def test_we_are_alive_and_the_same_by_both_ways() -> None:
    assert identity.own() == identity.of(os.getpid())
    assert identity.liveness(identity.own()) is Liveness.ALIVE
    assert identity.state_of(os.getpid()) == "R"
    assert identity.start_ticks(os.getpid()) == identity.own().ticks


@pytest.mark.parametrize("hours", [-1, 0, 1])
def test_a_corrected_clock_changes_no_identity__psutil_2526(proc: Path, hours: int) -> None:
    recorded = put(proc, 10)
    (proc / "stat").write_text(f"btime {1_700_000_000 + hours * 3600}\n")
    assert identity.of(10) == recorded
    assert identity.liveness(recorded) is Liveness.ALIVE


def test_another_boot_is_dead_even_with_the_same_pid_and_ticks(proc: Path) -> None:
    assert identity.liveness(put(proc, 10)._replace(boot_id="other")) is Liveness.DEAD


def test_another_namespace_is_unknown(proc: Path) -> None:
    assert identity.liveness(put(proc, 10)._replace(pid_namespace=1)) is Liveness.UNKNOWN


def test_a_reused_pid_is_dead(proc: Path) -> None:
    assert identity.liveness(put(proc, 10)._replace(ticks=1)) is Liveness.DEAD


@pytest.mark.parametrize("state", ["Z", "X"])
def test_a_zombie_is_dead(proc: Path, state: str) -> None:
    assert identity.liveness(put(proc, 10, state=state)) is Liveness.DEAD


def test_a_leader_that_left_its_threads_running_lives(proc: Path) -> None:
    assert identity.liveness(put(proc, 10, state="Z", threads=2)) is Liveness.ALIVE


@pytest.mark.parametrize("name", ["a b", "a) Z (b", ") R 1 1", "x\ny"])
def test_a_name_cannot_pass_for_other_fields(proc: Path, name: str) -> None:
    assert identity.liveness(put(proc, 10, name=name)) is Liveness.ALIVE


@pytest.mark.parametrize("content", ["", "10 (x", "10 (x) S", "10 (x) S a b c", None])
def test_what_cannot_be_read_is_unknown_never_gone__psutil_2895(proc: Path, content: str | None) -> None:
    recorded = put(proc, 10)
    stat = proc / "10" / "stat"
    stat.unlink()
    if content is None:
        stat.mkdir()  # reading fails, whoever asks
    else:
        stat.write_text(content)
    assert identity.liveness(recorded) is Liveness.UNKNOWN
    assert identity.of(10) is None
    assert identity.start_ticks(10) is None


def test_a_hidden_process_is_unknown(proc: Path) -> None:
    # hidepid: no entry, but the kernel knows the pid.
    assert identity.liveness(Identity(BOOT, NAMESPACE, os.getpid(), 5)) is Liveness.UNKNOWN
    assert identity.liveness(Identity(BOOT, NAMESPACE, NOBODY, 5)) is Liveness.DEAD


def test_without_proc_everything_is_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identity, "PROC", str(tmp_path / "none"))
    assert identity.liveness(Identity(BOOT, NAMESPACE, NOBODY, 5)) is Liveness.UNKNOWN
    assert identity.of(os.getpid()) is None
    assert identity.resident_bytes(os.getpid()) is None
    assert identity.marker(os.getpid(), "PATH") is None


@pytest.mark.parametrize("pid", [0, -1, NOBODY, 2**40])
def test_impossible_pids_are_nobody(pid: int) -> None:
    real = identity.own()._replace(pid=pid)
    assert identity.liveness(real) is not Liveness.ALIVE
    assert identity.of(pid) is None
    assert identity.children(pid) == []
    with pytest.raises(ProcessLookupError):
        identity.open_pidfd(real)
    assert identity.signal_exact(real, signal.SIGKILL) is False


def test_another_namespace_or_boot_is_never_signalled() -> None:
    for other in (identity.own()._replace(pid_namespace=1), identity.own()._replace(boot_id="other")):
        assert identity.signal_exact(other, signal.SIGKILL) is False


def test_own_memory_is_known() -> None:
    assert (identity.resident_bytes(os.getpid()) or 0) > 1024 * 1024


def test_a_process_that_lets_nobody_read_its_memory_map_hangs_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """`queenright status` read the mappings of each server, and waited with one that waited for a dead disk: beyond Ctrl-C."""
    back, read = threading.Event(), identity.proc_file

    def stuck(pid: int, name: str) -> bytes:
        assert pid == os.getpid() or back.wait(10)
        return read(pid, name)

    monkeypatch.setattr(identity, "proc_file", stuck)
    monkeypatch.setattr(budgets, "PROC_ANSWER", 0.05)
    try:
        seen = looking.with_files({"groups": [{"servers": [{"pid": 1}]}]})
    finally:
        back.set()
    assert seen["groups"][0]["servers"][0]["deleted_model"] is None
    monkeypatch.setattr(budgets, "PROC_ANSWER", 30.0)
    assert b"[stack]" in (identity.proc_file_in_time(os.getpid(), "maps") or b"")
    assert identity.proc_file_in_time(os.getpid(), "nothing") is None
