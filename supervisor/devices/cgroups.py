"""What control groups let a process have: every ancestor counts, for each has a limit of its own (cgroups(7)).

Version 2: memory.max and memory.high, against memory.current. Version 1: memory.limit_in_bytes, against
memory.usage_in_bytes. Page cache is in both of these; the inactive part of it is given back before anything is killed.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import NamedTuple

from supervisor.devices.shape import Limit

UNLIMITED = 2**60
"""Version 1 has no word for no limit: it shows the largest multiple of a page, 2**63 less 4096."""


def limits(root: str = "/", pid: int | str = "self") -> tuple[Limit, ...]:
    """Of the groups around a process that have a limit, the outermost first. What cannot be read is not there: outside of
    our own view of the hierarchy, in a container, nobody can look. Never raises."""
    found: dict[str, Limit] = {}
    for group in around(root, pid):
        for count in range(len(group.steps) + 1):
            folder = os.path.join(group.mounted_at, *group.steps[:count])
            limit = _limit(root, folder, group.version)
            if limit is not None:
                found.setdefault(folder, limit)
    return tuple(found.values())


class Around(NamedTuple):
    """The control group of a process in a hierarchy that may limit memory: where that is mounted, the steps down from there, and
    its version, 1 or 2. Without a step it is what is mounted, or outside of it."""

    mounted_at: str
    steps: tuple[str, ...]
    version: int

    @property
    def folder(self) -> str:
        return os.path.join(self.mounted_at, *self.steps)


def around(root: str = "/", pid: int | str = "self") -> list[Around]:
    """One for each such hierarchy that is mounted. Never raises."""
    found = []
    for mounted_at, seen_from, version in _mounts(root, pid):
        path = _path_of(root, pid, version)
        if path is not None:
            inside = os.path.relpath(path, seen_from) if _is_in(path, seen_from) else "."
            found.append(Around(mounted_at, () if inside == "." else tuple(inside.split("/")), version))
    return found


def _limit(root: str, folder: str, version: int) -> Limit | None:
    names = ("memory.max", "memory.high") if version == 2 else ("memory.limit_in_bytes",)
    most: tuple[int, str] | None = None
    for name in names:
        number = _number(root, f"{folder}/{name}")
        if number is not None and number < UNLIMITED and (most is None or number < most[0]):
            most = (number, f"{folder}/{name}")
    used = _number(root, f"{folder}/{'memory.current' if version == 2 else 'memory.usage_in_bytes'}")
    if most is None or used is None:
        return None
    wanted = "inactive_file" if version == 2 else "total_inactive_file"
    cache = 0
    for line in _read(root, f"{folder}/memory.stat").splitlines():
        name, _, value = line.partition(" ")
        if name == wanted and value.isdecimal():
            cache = int(value)
    return Limit(folder, most[0], used, min(cache, used), most[1])


def _mounts(root: str, pid: int | str) -> list[tuple[str, str, int]]:
    """Where the hierarchies with the memory controller are: (mount point, which part of it is mounted, version), from
    proc_pid_mountinfo(5)."""
    found = []
    for line in _read(root, f"/proc/{pid}/mountinfo").splitlines():
        before, _, after = line.partition(" - ")
        fields, kind = before.split(), after.split()
        if len(fields) < 5 or len(kind) < 3:
            continue
        if kind[0] == "cgroup2":
            found.append((fields[4], fields[3], 2))
        elif kind[0] == "cgroup" and "memory" in kind[2].split(","):
            found.append((fields[4], fields[3], 1))
    return found


def _path_of(root: str, pid: int | str, version: int) -> str | None:
    for line in _read(root, f"/proc/{pid}/cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if (version == 2 and number == "0" and not controllers) or (
            version == 1 and "memory" in controllers.split(",")
        ):
            return path
    return None


def _is_in(path: str, folder: str) -> bool:
    return folder == "/" or path == folder or path.startswith(folder + "/")


def _number(root: str, path: str) -> int | None:
    text = _read(root, path).strip()
    return int(text) if text.isdecimal() else None


def _read(root: str, path: str) -> str:
    with suppress(OSError, ValueError), open(os.path.join(root, path.lstrip("/")), encoding="utf-8") as file:
        return file.read()
    return ""
