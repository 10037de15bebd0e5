"""One supervisor with its dummy children, from outside: what they note, how they are killed, and that all end.

Whatever was started here is gone when the `with` ends. That is the rig's doing where it is not the supervisor's: the
bench is a child subreaper (prctl(2)), so what a supervisor loses comes to it, and is found by the children's own notes.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from attrs import frozen

from chaos.bench_rig import NotMeasuredError, child_environment, memory_mebibytes
from chaos.interrupting import undisturbed
from chaos.peers import HERE, Peer, Work
from supervisor import identity, ports
from supervisor.identity import Identity

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

POLL: Final = 0.0003  # budget: between two looks; a twentieth of the quickest recovery
COMPILE_LIMIT = 60.0  # budget: cc on 90 lines takes 0.2 s
ANSWER_LIMIT = 1.0  # budget: one look at a page that is answered in 0.1 ms
DEATH_LIMIT = 10.0  # budget: from SIGKILL to gone
PR_SET_CHILD_SUBREAPER: Final = 36


@frozen
class Child:
    """A life of a child, as it noted it itself: which port, its identity, and CLOCK_MONOTONIC seconds."""

    port: int
    who: Identity
    at: float


def dummy(folder: Path) -> tuple[tuple[str, ...], str]:
    """The children's command, and in words what it is: C where there is a compiler, else Python."""
    compiler = next((found for name in ("cc", "gcc", "clang") if (found := shutil.which(name))), None)
    if compiler is not None:
        program = folder / "dummy"
        for linking in (["-static"], []):  # a static one starts in half the time
            with suppress(OSError, subprocess.SubprocessError):
                subprocess.run(
                    [compiler, "-O2", *linking, "-o", str(program), str(HERE / "dummy.c")],
                    check=True, timeout=COMPILE_LIMIT, stdin=subprocess.DEVNULL, capture_output=True,
                )  # fmt: skip
                return (str(program),), f"children in C ({Path(compiler).name}{' -static' if linking else ''})"
    return (sys.executable, "-I", "-S", "-E", str(HERE / "dummy.py")), "children in Python (no compiler was found)"


def alive(who: Identity) -> bool:
    """Whether it lives; a zombie does not."""
    return identity.liveness(who) is not identity.Liveness.DEAD


def settle(seconds: float, condition: Callable[[], bool]) -> bool:
    """Look until it holds, for at most so long; whether it does."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True


class Supervised:
    """See the module."""

    def __init__(self, peer: Peer, parent: Path, program: Sequence[str], count: int, grace: float) -> None:
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self.peer = peer
        self.folder = Path(tempfile.mkdtemp(prefix="peer-", dir=parent))
        self.events = self.folder / "events"
        chosen: set[int] = set()
        while len(chosen) < count:
            chosen.add(ports.choose(None, chosen))
        work = Work(self.folder, (*program, "--events", str(self.events)), tuple(sorted(chosen)), grace)
        self.count = count
        self.argv = peer.prepare(work, peer.found())
        self._seen: dict[tuple[int, int], Identity | None] = {}
        self.start_again()

    def __enter__(self) -> Supervised:
        return self

    def __exit__(self, *_: object) -> None:
        with undisturbed():
            try:
                self._end_all()
            finally:
                shutil.rmtree(self.folder, ignore_errors=True)

    def start_again(self) -> None:
        """The supervisor's command, in the foreground."""
        with (self.folder / "output").open("ab") as output:
            self.began = time.monotonic()
            self.process = subprocess.Popen(
                self.argv,
                cwd=self.folder,
                env=child_environment(self.folder / "slot"),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    # --- what the children noted ------------------------------------------------------------------------------------

    def noted(self, what: str) -> list[Child]:
        """Every note of that kind whose process could still be told from others when it was read, in order."""
        found = []
        text = self.events.read_text(encoding="ascii") if self.events.exists() else ""
        for line in text.splitlines(keepends=True):
            if line.endswith("\n") and (words := line.split())[3] == what:
                port, pid, stamp = map(int, words[:3])
                if (pid, stamp) not in self._seen:
                    self._seen[pid, stamp] = identity.of(pid)
                if (who := self._seen[pid, stamp]) is not None:
                    found.append(Child(port, who, stamp / 1e9))
        return found

    def children(self) -> list[Child]:
        """The living ones that listen, by port."""
        return sorted((one for one in self.noted("listen") if alive(one.who)), key=lambda one: one.port)

    def grandchildren_of(self, child: Child) -> list[Identity]:
        """What a child forked."""
        return identity.descendants(child.who.pid)

    def refused_starts(self) -> int:
        """How many found their port taken."""
        text = self.events.read_text(encoding="ascii") if self.events.exists() else ""
        return sum(line.endswith(" taken") for line in text.splitlines())

    def living(self) -> list[Identity]:
        """All children and grandchildren that live."""
        noted = [one.who for what in ("start", "grandchild") for one in self.noted(what)]
        return [who for who in noted if alive(who)]

    def wait_listening(self, limit: float) -> float | None:
        """Until all children listen; seconds from the supervisor's start, by the children's clocks. Raises
        NotMeasuredError where they do not within `limit`."""
        deadline = self.began + limit
        while len(found := {one.port: one.at for one in self.noted("listen")}) < self.count:
            if self.process.poll() is not None or time.monotonic() > deadline:
                words = (self.folder / "output").read_text(encoding="utf-8", errors="replace").strip()[-500:]
                last = words.splitlines()[-1] if words else "it said nothing"
                raise NotMeasuredError(f"{self.peer.name} started {len(found)} of {self.count} children: {last}")
            time.sleep(0.002)
        return max(found.values()) - self.began

    # --- what is done to them -----------------------------------------------------------------------------------------

    def kill_and_wait(self, child: Child, limit: float, number: int = signal.SIGKILL) -> float | None:
        """Signal a child; seconds until another one answers on its port, None if none does within `limit`."""
        began = time.monotonic()
        identity.signal_exact(child.who, number)
        while time.monotonic() - began < limit:
            if self._answers(child.port) and (number == signal.SIGKILL or self._is_new(child)):
                return time.monotonic() - began
            time.sleep(POLL)
        return None

    def _is_new(self, child: Child) -> bool:
        return any(one.port == child.port and one.who != child.who for one in self.noted("listen"))

    def _answers(self, port: int) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", port), ANSWER_LIMIT) as connection:
                connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
                return connection.recv(64).startswith(b"HTTP/1.1 200")
        except OSError:
            return False

    def stop(self, limit: float) -> tuple[float | None, int]:
        """Signal the supervisor; seconds until it and all it kept are gone (None: not within `limit`), and how many are
        left."""
        watched = self.living()
        began = time.monotonic()
        self.process.send_signal(self.peer.stop)
        gone = settle(limit, lambda: self.process.poll() is not None and not any(map(alive, watched)))
        took = time.monotonic() - began
        return (took if gone else None), sum(map(alive, watched))

    def kill_supervisor(self) -> None:
        """SIGKILL its first process, and wait for its end."""
        self.process.kill()
        self.process.wait(DEATH_LIMIT)

    # --- what it costs ------------------------------------------------------------------------------------------------

    def own_pids(self) -> list[int]:
        """The supervisor's processes, children and grandchildren excluded."""
        kept = {who.pid for who in self.living()}
        below = [who.pid for who in identity.descendants(self.process.pid)]
        return [pid for pid in (self.process.pid, *below) if pid not in kept]

    def cpu_seconds(self) -> float:
        """CPU time of the supervisor's processes, threads that ended included: their CPU clocks, to the nanosecond
        (clock_getcpuclockid(3); the numbers are those of linux/posix-timers.h)."""
        spent = 0.0
        for pid in self.own_pids():
            with suppress(OSError):
                spent += time.clock_gettime((~pid << 3) | 2)
        return spent

    def memory_mebibytes(self) -> float:
        """PSS of the supervisor's processes."""
        return sum(memory_mebibytes(pid, "Pss") for pid in self.own_pids())

    # --- the end ------------------------------------------------------------------------------------------------------

    def _end_all(self) -> None:
        """SIGKILL everything, the supervisor first, until nothing is found any more."""
        family = [who for who in identity.descendants(self.process.pid)] if self.process.poll() is None else []
        self.process.kill()
        self.process.wait(DEATH_LIMIT)

        def nothing_left() -> bool:
            left = [who for who in {*family, *self.living(), *self._lost()} if alive(who)]
            for who in left:
                identity.signal_exact(who, signal.SIGKILL)
            return not left

        if not settle(DEATH_LIMIT, nothing_left):
            raise NotMeasuredError(f"something that {self.peer.name} started cannot be killed")

    def _lost(self) -> list[Identity]:
        """Processes that came to us when their parents died, and that work in this folder or are run from it: reaped
        where they are dead already."""
        found = []
        for pid in identity.children(os.getpid()):
            who = identity.of(pid)
            if who is None or not _names(pid, self.folder):
                continue
            found += [who, *identity.descendants(pid)]
        for who in found:
            with suppress(ChildProcessError):
                os.waitpid(who.pid, os.WNOHANG)
        return found


def _names(pid: int, folder: Path) -> bool:
    """Whether a process's command line or working directory is of this folder."""
    with suppress(OSError):
        return os.fsencode(folder) in Path(f"/proc/{pid}/cmdline").read_bytes() or Path(
            f"/proc/{pid}/cwd"
        ).resolve().is_relative_to(folder)
    return False
