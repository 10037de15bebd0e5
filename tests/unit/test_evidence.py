"""Counters of OOM kills and the kernel's log, as they are in the files that kernels of different ages have."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from supervisor import evidence, identity
from supervisor.evidence import Count, KernelLog

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine whose files are the test's; process 7 lives on it."""
    monkeypatch.setattr(identity, "PROC", str(tmp_path / "proc"))
    monkeypatch.setattr(evidence, "CGROUPS", str(tmp_path / "cgroup"))
    write(tmp_path / "proc" / "vmstat", "nr_free_pages 1\noom_kill 5\n")
    return tmp_path


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("cgroups", "file", "text"),
    [
        (
            "0::/user.slice/engine.scope",
            "user.slice/engine.scope/memory.events",
            "low 0\noom 2\noom_kill 1\noom_group_kill 0",
        ),
        ("0::/outside/of/this/container", "memory.events", "oom 0\noom_kill 1"),
        ("1:name=systemd:/\n0::/", "unified/memory.events", "oom_kill 1"),
        ("4:memory:/pods/a\n0::/", "memory/pods/a/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 1"),
        ("4:cpu,memory:/outside\n0::/", "memory/memory.oom_control", "under_oom 0\noom_kill 1"),
    ],
)
def test_the_counter_of_the_processs_own_group_is_found(machine: Path, cgroups: str, file: str, text: str) -> None:
    write(machine / "proc" / "7" / "cgroup", cgroups + "\n")
    counter = write(machine / "cgroup" / file, text + "\n")
    before = evidence.oom_kills(7)
    assert before == Count(str(counter), 1)
    assert evidence.rise(before) == ""
    counter.write_text(text.replace("oom_kill 1", "oom_kill 3") + "\n")
    assert evidence.rise(before) == f"oom_kill of {counter} rose from 1 to 3"


@pytest.mark.parametrize("cgroups", ["", "0::/nowhere\n", "4:memory:/nowhere\n", "nonsense\n"])
def test_without_one_the_machines_own_count_is_taken(machine: Path, cgroups: str) -> None:
    write(machine / "proc" / "7" / "cgroup", cgroups)
    assert evidence.oom_kills(7) == Count(str(machine / "proc" / "vmstat"), 5)


def test_what_cannot_be_read_is_unknown_and_never_a_rise(machine: Path) -> None:
    vmstat = machine / "proc" / "vmstat"
    before = evidence.oom_kills(7)
    vmstat.write_text("oom_kill many\n")
    assert evidence.rise(before) == ""
    vmstat.unlink()
    assert evidence.oom_kills(7) is None
    assert evidence.rise(before) == ""
    assert evidence.rise(None) == ""


@pytest.fixture
def kmsg(tmp_path: Path) -> Path:
    """A pipe in place of /dev/kmsg: it is read as it is, without waiting."""
    path = tmp_path / "kmsg"
    os.mkfifo(path)
    return path


def test_the_kernels_log_is_read_for_the_pids_asked_for(kmsg: Path) -> None:
    log = KernelLog(str(kmsg))
    assert log.of([7]) == ()
    writer = os.open(kmsg, os.O_WRONLY)
    os.write(writer, b"6,1,2,-;Memory cgroup out of memory: Killed process 7 (llama-server) total-vm:9kB\n KEY=value\n")
    os.write(writer, b"6,2,3,-;traps: llama-server[8] trap invalid opcode ip:1 sp:2 error:0\n6,3,4,-;eth0: link up\n")
    os.write(writer, b"6,4,5,-;llama-server[9]: segfault at 0 ip 00 sp 00 error 4 in libggml.so\n")
    assert log.of([7]) == ("Memory cgroup out of memory: Killed process 7 (llama-server) total-vm:9kB",)
    assert log.of([8, 9]) == (
        "traps: llama-server[8] trap invalid opcode ip:1 sp:2 error:0",
        "llama-server[9]: segfault at 0 ip 00 sp 00 error 4 in libggml.so",
    )
    assert log.of([10]) == ()
    os.close(writer)


def test_a_kernels_log_that_may_not_be_read_says_nothing(tmp_path: Path) -> None:
    assert KernelLog(str(tmp_path / "nothing")).of([7]) == ()
