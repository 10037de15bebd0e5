"""The host's memory, as Linux tells it. Another platform gets another module with `read`.

MemAvailable is the kernel's estimate of what can be had without swapping (proc_meminfo(5)). Two things are wrong with it
here. File pages that a living engine has mapped or pinned count as reclaimable, so a host whose engine fills it looks
empty: they are taken off. ZFS's cache does not count, though it is given back: part of it is added (ollama#5700).
"""

from __future__ import annotations

import os
import resource
from contextlib import suppress
from typing import TYPE_CHECKING

from supervisor.devices import cgroups
from supervisor.devices.shape import Figure, HostMemory, How

if TYPE_CHECKING:
    from collections.abc import Mapping

KIB = 1024

MAPPED_LEAST_BYTES = 256 * 2**20
"""From here on a process's resident file pages are taken for a model's: programs and their libraries have less. It is not
asked what the process is called: engines of others count like ours."""

ARC_MOST_SHARE = 0.25
"""Part of MemTotal (not bytes) that is counted of ZFS's cache at most: it shrinks slowly, and an allocation that outruns
it is met by the OOM killer first."""


def read(root: str = "/", pid: int | str = "self") -> HostMemory:
    """`pid`'s control groups are the ones that bound it. `root` is where /proc and /sys are. Never raises: what cannot be
    read is unknown. 4 to 8 ms on a machine with 400 processes."""
    info = meminfo(_read(root, "/proc/meminfo"))
    total = _figure(info, "MemTotal")
    kernel = _figure(info, "MemAvailable")
    if not kernel.is_known and "MemFree" in info:
        kernel = Figure(info["MemFree"], "/proc/meminfo MemFree: this kernel gives no MemAvailable", How.ASSUMED)
    corrections = tuple(_mapped(root, info)) + tuple(_arc(root, total.bytes))
    limits = cgroups.limits(root, pid)
    available, bound_by = kernel, kernel.source
    if kernel.bytes is not None:
        size = max(0, kernel.bytes + sum(one.bytes or 0 for one in corrections))
        source = ", ".join([kernel.source, *(one.source for one in corrections)])
        available = Figure(size, source, kernel.how)
        for limit in limits:
            if limit.room < size:
                size, bound_by = limit.room, limit.source
                available = Figure(size, f"{limit.source}, less what is used, with its inactive file pages")
    return HostMemory(
        total, available, bound_by, kernel, corrections, limits, memlock=memlock(), swap_free=info.get("SwapFree")
    )


def meminfo(text: str) -> dict[str, int]:
    """/proc/meminfo in bytes; what has no unit (HugePages_Total) is left out."""
    found = {}
    for line in text.splitlines():
        name, _, rest = line.partition(":")
        words = rest.split()
        if len(words) == 2 and words[1] == "kB" and words[0].isdecimal():
            found[name] = int(words[0]) * KIB
    return found


def _figure(info: Mapping[str, int], name: str) -> Figure:
    if name in info:
        return Figure(info[name], f"/proc/meminfo {name}")
    return Figure.unknown(f"/proc/meminfo does not say {name}")


def _mapped(root: str, info: Mapping[str, int]) -> list[Figure]:
    """Large resident file pages of living processes, each as a figure below 0.

    Two servers that map one file share its pages: each is counted its part where smaps_rollup can be read (our own
    processes), else in full, and all together for no more than the kernel says is mapped. Locked pages are left out: the
    kernel does not count those as reclaimable.
    """
    found = []
    left = min(info.get("Mapped", 0), info.get("Active(file)", 0) + info.get("Inactive(file)", 0))
    page = os.sysconf("SC_PAGE_SIZE")
    with suppress(OSError):
        for name in sorted(filter(str.isdecimal, os.listdir(os.path.join(root, "proc"))), key=int):
            words = _read(root, f"/proc/{name}/statm").split()  # the third: resident pages that a file or shm backs
            if len(words) < 3 or int(words[2]) * page < MAPPED_LEAST_BYTES:
                continue
            size = min(left, _file_pages(root, name))
            if size >= MAPPED_LEAST_BYTES:
                left -= size
                command = _read(root, f"/proc/{name}/comm").strip() or "?"
                found.append(Figure(-size, f"file pages that pid {name} ({command}) has mapped"))
    return found


def _file_pages(root: str, pid: str) -> int:
    rollup = meminfo(_read(root, f"/proc/{pid}/smaps_rollup"))
    if "Pss_File" in rollup:
        return max(0, rollup["Pss_File"] - rollup.get("Locked", 0))
    status = meminfo(_read(root, f"/proc/{pid}/status").replace("\t", " "))
    return max(0, status.get("RssFile", 0) - status.get("VmLck", 0))


def _arc(root: str, total: int | None) -> list[Figure]:
    """The part of ZFS's cache that is given back: its size above its floor (`c_min`), up to a cap."""
    stats = {}
    for line in _read(root, "/proc/spl/kstat/zfs/arcstats").splitlines():
        words = line.split()
        if len(words) == 3 and words[2].isdecimal():
            stats[words[0]] = int(words[2])
    above = stats.get("size", 0) - stats.get("c_min", 0)
    if above <= 0 or total is None:
        return []
    return [Figure(min(above, int(total * ARC_MOST_SHARE)), "ZFS's cache above its floor (arcstats)")]


def memlock() -> int | None:
    """Bytes that one process may lock (RLIMIT_MEMLOCK, soft; getrlimit(2)); None without a limit."""
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return None if soft == resource.RLIM_INFINITY else soft


def _read(root: str, path: str) -> str:
    with suppress(OSError), open(os.path.join(root, path.lstrip("/")), encoding="utf-8", errors="replace") as file:
        return file.read()
    return ""
