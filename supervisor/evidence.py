"""What the kernel knows of an end: counters of OOM kills, and its log. Reads only; whatever cannot be read is unknown.

An OOM kill looks like any SIGKILL. The control group of the victim counts it (cgroup v2: `oom_kill` in memory.events,
v1: in memory.oom_control; both in the victim's own group, whichever group's limit was met), and before those there is
the machine's own count in /proc/vmstat. A counter is compared with what it was when the generation was born: that it
rose proves a kill in that group, not whose, so the kernel's log is asked for pids where it may be read.
"""

from __future__ import annotations

import os
import re
from collections import deque
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from supervisor import identity

if TYPE_CHECKING:
    from collections.abc import Collection

CGROUPS = "/sys/fs/cgroup"
KMSG = "/dev/kmsg"
RECORD = 8192
"""Bytes of one record of the kernel's log, at most (CONSOLE_EXT_LOG_MAX is less); a shorter read fails with EINVAL."""

RECORDS = 512
"""Records read at one time, at most: a kernel that says more than this between two deaths must not hold up a restart."""

TELLING = re.compile(r"Killed process (\d+)|traps: \S+\[(\d+)\]|\S+\[(\d+)\]: segfault")


class Count(NamedTuple):
    """A counter of OOM kills: the file, and what it said."""

    source: str
    kills: int


def oom_kills(pid: int) -> Count | None:
    """The counter that counts for this process, now; None where the kernel has none."""
    for source in sources(pid):
        if (kills := _read(source)) is not None:
            return Count(source, kills)
    return None


def rise(before: Count | None) -> str:
    """How the counter rose since; "" when it did not, or when that cannot be told."""
    if before is None or (now := _read(before.source)) is None or now <= before.kills:
        return ""
    return f"oom_kill of {before.source} rose from {before.kills} to {now}"


def sources(pid: int) -> list[str]:
    """Files with such a counter, the nearest to the process first. In a container its path may name a group outside of
    what is mounted, so the mount's own root is tried too."""
    found = []
    with suppress(OSError, ValueError), open(f"{identity.PROC}/{pid}/cgroup", encoding="utf-8") as file:
        for line in file:
            number, controllers, path = line.rstrip("\n").split(":", 2)
            if number == "0":
                found += [f"{root}{path.rstrip('/')}/memory.events" for root in (CGROUPS, f"{CGROUPS}/unified")]
                found.append(f"{CGROUPS}/memory.events")
            elif "memory" in controllers.split(","):
                found += [f"{CGROUPS}/memory{p.rstrip('/')}/memory.oom_control" for p in (path, "")]
    return [*found, f"{identity.PROC}/vmstat"]


def _read(source: str) -> int | None:
    with suppress(OSError, ValueError, IndexError), open(source, encoding="ascii") as file:
        return next((int(line.split()[1]) for line in file if line.startswith("oom_kill ")), None)
    return None


class KernelLog:
    """The lines of the kernel's log that speak of a process that was killed, from now on. Empty where it may not be
    read (dmesg_restrict). Never waits."""

    def __init__(self, path: str = KMSG) -> None:
        self._recent: deque[tuple[int, str]] = deque(maxlen=64)
        try:
            self._file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            self._file = -1
            return
        with suppress(OSError):
            os.lseek(self._file, 0, os.SEEK_END)

    def of(self, pids: Collection[int]) -> tuple[str, ...]:
        """What it says of these processes."""
        self._take()
        return tuple(text for pid, text in self._recent if pid in pids)

    def _take(self) -> None:
        for _ in range(RECORDS):
            try:
                record = os.read(self._file, RECORD)
            except BrokenPipeError:  # what we had not read yet was overwritten; the next read goes on behind it
                continue
            except OSError:
                return
            if not record:
                return
            for line in record.decode("utf-8", "replace").splitlines():
                self._remember(line)

    def _remember(self, line: str) -> None:
        """`6,1234,5678901,-;the text`: the text alone, where it tells of a process."""
        text = line.partition(";")[2]
        if (found := TELLING.search(text)) is not None:
            self._recent.append((int(next(group for group in found.groups() if group)), text))


@cache
def kernel_log() -> KernelLog:
    """The one of this process: a record is read once, whoever asks."""
    return KernelLog()
