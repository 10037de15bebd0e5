"""What sharing costs: to come to an engine that runs, to count its users, and what the engine costs while nothing is
asked of it. The users are real: files that are locked, as those of front ends are."""

from __future__ import annotations

import fcntl
import os
import socket
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Final

from chaos import bench_rig as rig
from chaos import measuring
from supervisor import membership, slot

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from chaos.bench_cells import Bench
    from chaos.measuring import Figure
    from supervisor.slot import Slot

MANY: Final = 1000
SOME: Final = 100
EACH: Final = 250
"""Members of one helper: below the 1024 descriptors that a process has where nobody raised the limit."""

IDLE_S: Final = 5.0  # budget: longer than any of the keeper's periods but the slowest, whose work is small
SETTLE_S: Final = 2.0  # budget: after the last of what an engine's start and a hundred joins have the keeper do

CPUCLOCK_SCHED: Final = 2

ECHO: Final = """
import socket, sys
with socket.socket(socket.AF_UNIX) as listener:
    listener.bind(sys.argv[1])
    listener.listen()
    print(flush=True)
    while True:
        with listener.accept()[0] as peer:
            peer.sendall(peer.recv(4096))
"""


@contextmanager
def _helper(*words: str) -> Iterator[subprocess.Popen[str]]:
    """A process of ours that has said its first word. It ends with its standard input: also when we are killed."""
    helper = subprocess.Popen(
        [sys.executable, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, process_group=0
    )
    try:
        yield helper
    finally:
        helper.kill()
        helper.communicate()


@contextmanager
def members(slot: Slot, count: int) -> Iterator[None]:
    """So many members in the slot, from a few processes. Raises NotMeasuredError."""
    with ExitStack() as stack:
        for first in range(0, count, EACH):
            wanted = str(min(EACH, count - first))
            helper = stack.enter_context(_helper("-m", "chaos.bench_user", "members", str(slot.path), wanted))
            if _line(helper) != wanted:
                raise rig.NotMeasuredError(f"{count} members could not be made in {slot.path}")
        yield


def _line(helper: subprocess.Popen[str]) -> str:
    assert helper.stdout is not None  # noqa: S101 - it is a pipe
    return helper.stdout.readline().strip()


@contextmanager
def _bare(folder: Path) -> Iterator[Callable[[], float]]:
    """What any bind has to do at the least: ask somebody over a Unix socket, and make one file durable."""
    path = folder / "echo"
    with _helper("-I", "-S", "-c", ECHO, str(path)) as helper:
        _line(helper)

        def seconds() -> float:
            began = time.perf_counter()
            with socket.socket(socket.AF_UNIX) as peer, slot.connectable(path) as address:
                peer.connect(address)
                peer.sendall(b"who is there\n")
                peer.recv(4096)
            descriptor = os.open(folder / "durable", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.write(descriptor, b"x" * 256)
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            return time.perf_counter() - began

        yield seconds
        path.unlink()


@contextmanager
def _binder(bench: Bench) -> Iterator[Callable[[str], float]]:
    """A process that binds when told, everything imported and done once before."""
    words = ("-m", "chaos.bench_user", "bind", str(bench.slot.path), str(bench.configuration))
    with _helper(*words) as helper:

        def seconds(what: str) -> float:
            assert helper.stdin is not None  # noqa: S101 - it is a pipe
            with suppress(BrokenPipeError):  # then it says nothing either
                helper.stdin.write(f"{what}\n")
                helper.stdin.flush()
            said = _line(helper)
            try:
                return float(said)
            except ValueError:
                raise rig.NotMeasuredError(f"a process did not bind: {said or 'it ended'}") from None

        for what in ("bind", "open"):
            seconds(what)
        yield seconds


def bind(bench: Bench) -> list[Figure]:
    """The cell `bind`."""
    against = "socket round trip, fsync"
    found = []
    with rig.engine(bench.slot, bench.spec), _bare(bench.folder) as bare, _binder(bench) as binding:
        pairs = bench.measure("bind, 1 member", lambda: binding("bind"), bare, 60)
        found.append(measuring.ratio_figure("bind", "bind, 1 member", against, pairs, goal=4))
        with members(bench.slot, MANY - 1):
            pairs = bench.measure(f"bind, {MANY} members", lambda: binding("bind"), bare, 60)
        found.append(measuring.ratio_figure("bind", f"bind, {MANY} members", against, pairs, goal=6))
        pairs = bench.measure("bind, configuration", lambda: binding("open"), bare, 30)
        found.append(measuring.ratio_figure("bind", "with reading configuration and model", against, pairs))
    return found


def run(bench: Bench) -> list[Figure]:
    """The cell `exec`."""
    environment = rig.child_environment(bench.slot.path)
    ours = [*rig.console_script(), "exec", "--config", str(bench.configuration), "--", "true"]
    base = [sys.executable, "-c", "import supervisor.client"]
    with rig.engine(bench.slot, bench.spec):
        for argv in (ours, base):
            rig.child_seconds(argv, environment, bench.folder)  # for nothing: bytecode, and what is read from disk
        pairs = bench.measure(
            "exec",
            lambda: rig.child_seconds(ours, environment, bench.folder),
            lambda: rig.child_seconds(base, environment, bench.folder),
            20,
        )
    return [measuring.ratio_figure("exec", "queenright exec -- true", "import supervisor.client", pairs, goal=2)]


def probe(bench: Bench) -> list[Figure]:
    """The cell `members`: in a slot without an engine."""
    there = slot.Slot(bench.folder / "members")
    there.prepare()

    def ours() -> float:
        began = time.perf_counter()
        seen = membership.count(there)
        took = time.perf_counter() - began
        if seen != MANY:
            raise rig.NotMeasuredError(f"{seen} members were counted, and there are {MANY}")
        return took

    with members(there, MANY):
        paths = [str(path) for path in there.members.iterdir()]
        pairs = bench.measure("members", ours, lambda: _bare_looks(paths), 30)
    return [measuring.ratio_figure("members", f"count of {MANY}", "open, flock, close of each", pairs, goal=1.5)]


def _bare_looks(paths: list[str]) -> float:
    began = time.perf_counter()
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        with suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        os.close(descriptor)
    return time.perf_counter() - began


def idle(bench: Bench) -> list[Figure]:
    """The cell `idle`: CPU time of the keeper while a hundred use its engine and nobody asks anything."""
    windows = bench.pairs or 4
    found = []
    with rig.engine(bench.slot, bench.spec) as snapshot, members(bench.slot, SOME - 1):
        pid = snapshot["keeper"]["pid"]
        time.sleep(SETTLE_S)
        for number in range(windows):
            bench.tell("idle", number, windows)
            began, before = time.perf_counter(), cpu_seconds(pid)
            time.sleep(IDLE_S)
            found.append(100 * (cpu_seconds(pid) - before) / (time.perf_counter() - began))
        bench.tell("idle", windows, windows)
    return [measuring.amount("idle", f"keeper, {SOME} members", measuring.PERCENT, found, goal=0.5)]


def cpu_seconds(pid: int) -> float:
    """What all its threads have run, those that ended too, to the nanosecond: the clock of clock_getcpuclockid(3), whose
    number is made as in the kernel's <linux/posix-timers.h>. Raises NotMeasuredError."""
    try:
        return time.clock_gettime((~pid << 3) | CPUCLOCK_SCHED)
    except OSError as error:
        raise rig.NotMeasuredError(f"the CPU time of pid {pid} cannot be read: {error}") from error
