"""How far a server is with loading its model: bytes of the file that it has mapped in or read, over the file's size.

Seen from outside, by what of the process moves (llama-server b10068, a model of 94 MiB): with mmap, its default, the
resident part of the file's mapping (proc_pid_smaps(5)), while `rchar` of proc_pid_io(5) stays at 3 MiB and `read_bytes`
tells what the disk did for anybody; with --no-mmap `rchar`. So the mapping counts where there is one, else what was read, of a
process that has the file open. Reading smaps takes 1 to 8 ms and waits for a lock of the process's memory: in a thread, once a
second, and only while something loads.
"""

from __future__ import annotations

import os
import re
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import trio

from supervisor import budgets, identity, listeners
from supervisor.kinds import ServerState

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from supervisor.contract import GroupSpec
    from supervisor.life import Life


class Loading(NamedTuple):
    """One load. `moved`: seconds since the epoch when `read` last grew, for people. `begun`: on trio's clock."""

    pid: int
    read: int
    size: int
    moved: float
    begun: float


class LoadWatch:
    """Of one life. `changed` is called when a load has moved on."""

    def __init__(self, spec: GroupSpec, life: Life, changed: Callable[[], None]) -> None:
        self._spec, self._life, self._changed = spec, life, changed
        self._loads: dict[str, Loading] = {}

    def describe(self, role: str) -> dict[str, Any] | None:
        """For `status`; None where nothing loads, or where it cannot be told how far it is."""
        found = self._loads.get(role)
        if found is None or self._life.servers.get(role) is not ServerState.LOADING:
            return None
        return {"bytes": found.read, "of": found.size, "moved": round(found.moved, 3)}

    @property
    def long(self) -> dict[str, dict[str, Any]]:
        """`describe` of each role that has loaded for LOAD_SAID, and still does."""
        found = {
            role: self.describe(role)
            for role, load in self._loads.items()
            if trio.current_time() - load.begun >= budgets.LOAD_SAID
        }
        return {role: load for role, load in found.items() if load is not None}

    async def run(self) -> None:
        """Look, once a second, until cancelled."""
        known = set[str]()
        while True:
            moved = [await self._look(launch.role, launch.path) for launch in self._spec.launches]
            long = set(self.long)
            if any(moved) or long - known:
                self._changed()
            known = long
            await trio.sleep(budgets.LOAD_LOOK)

    async def _look(self, role: str, path: str) -> bool:
        """Whether that load is further than it was."""
        if self._life.servers.get(role) is not ServerState.LOADING:
            self._loads.pop(role, None)
            return False
        sizes = parts(path)
        pid = listeners.pid_of(self._life, role) if sizes else None
        if pid is None:
            return False
        # One that hangs in the kernel hangs whoever reads its memory's map: that thread is left behind, one a load.
        read = await trio.to_thread.run_sync(bytes_in, pid, sizes.keys(), abandon_on_cancel=True)
        was = self._loads.get(role)
        if was is not None and was.pid != pid:
            was = None
        if read is None or (was is not None and read <= was.read):
            return False
        size = sum(sizes.values())
        begun = was.begun if was is not None else trio.current_time()
        self._loads[role] = Loading(pid, min(read, size), size, time.time(), begun)
        return True


def parts(path: str) -> dict[str, int]:
    """The files of a model, by their real paths, with their sizes: one, or all that stand beside the first of a split one
    (llama.cpp's `-00001-of-00003.gguf`). Empty where there is none, as of a kind without model files."""
    if not path:
        return {}
    names = [path]
    if split := re.fullmatch(r"(.*)-(\d{5})-of-(\d{5})\.gguf", path):
        names = [f"{split[1]}-{number:05}-of-{split[3]}.gguf" for number in range(1, int(split[3]) + 1)]
    found = {}
    for name in names:
        try:
            found[os.path.realpath(name)] = os.stat(name).st_size
        except OSError:
            continue
    return found


def bytes_in(pid: int, paths: Collection[str]) -> int | None:
    """Bytes of these files that the process has mapped in or read; None for one that has none of them open or mapped, or
    that cannot be read."""
    try:
        mapped = resident_of(identity.proc_file(pid, "smaps"), paths)
        if mapped is not None or not _has_open(pid, paths):
            return mapped
        return int(identity.proc_file(pid, "io").partition(b"rchar: ")[2].split()[0])
    except (OSError, ValueError, IndexError):
        return None


def resident_of(smaps: bytes, paths: Collection[str]) -> int | None:
    """Resident bytes of the mappings of these files, from proc_pid_smaps(5); None where there is none. Raises ValueError."""
    wanted = {os.fsencode(path) for path in paths}
    found, inside = None, False
    for line in smaps.splitlines():
        words = line.split(None, 5)
        if len(words) >= 5 and b"-" in words[0] and not words[0].endswith(b":"):
            inside = len(words) == 6 and words[5] in wanted
        elif inside and words[:1] == [b"Rss:"]:
            found = (found or 0) + int(words[1]) * 1024
    return found


def _has_open(pid: int, paths: Collection[str]) -> bool:
    folder = f"{identity.PROC}/{pid}/fd"
    for name in os.listdir(folder):
        try:
            if os.readlink(f"{folder}/{name}") in paths:
                return True
        except OSError:
            continue
    return False
