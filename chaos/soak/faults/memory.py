"""Memory: slow to come back after a death, and taken away until the kernel kills for it."""

from __future__ import annotations

import os
import secrets
import signal
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from chaos.soak.faults.ground import Fault, Hit, is_dead, pause
from supervisor.devices import cgroups, reservations
from supervisor.devices.promises import HOST, Grant
from supervisor.devices.survey import survey

if TYPE_CHECKING:
    from collections.abc import Iterable

    from chaos.soak.faults.ground import Ground
    from supervisor.devices.cgroups import Around
    from supervisor.identity import Identity

RELEASE: Final = 0.8  # budget: below MEMORY_SETTLE (1 s), for which who plans waits for memory that is on its way back
V1_LIMITS: Final = ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes")
"""The second is of memory and swap together, and may not be less than the first."""

V2_LIMITS: Final = ("memory.swap.max", "memory.max")


class SlowRelease(Fault):
    """As a driver that gives a dead process's memory back late. At our own seam: a promise in the machine's book of
    reservations stands for it, of all memory of the host and of every device."""

    name, what = (
        "slow release",
        f"kill -9 of the warden, and nobody has memory for {RELEASE:g} s: the next engine waits",
    )

    def invoke(self, ground: Ground) -> Hit:
        """It is promised before the death, and let go after it."""
        seen = survey()
        grants = [Grant(HOST, seen.host.total.bytes or 0)]
        grants += [Grant(device.uuid, device.total.bytes or 0) for device in seen.devices]
        with reservations.planning() as book:
            promise = book.reserve(ground.slot.path, "what the dead still hold", grants)
        ground.undo.callback(promise.release)
        ground.kill(ground.warden, signal.SIGKILL)
        pause(RELEASE)
        promise.release()
        return Hit((ground.warden,), ground.all_touched)


class Place(NamedTuple):
    """Where a control group may be made, the files that take its memory away, in order, and the one that counts whom that
    killed."""

    folder: Path
    limits: tuple[str, ...]
    counter: str


class OutOfMemory(Fault):
    """A server alone in a control group that may have no memory at all: the next page that it asks for ends it. The group
    lies beside the engine's own with version 2, where processes are in leaves only, and within it with version 1; where
    whoever runs us may make some (cgroups(7))."""

    name, what = "oom kill", "the kernel's OOM killer ends a server, in a control group of its own"

    def obstacle(self, ground: Ground) -> str:
        """No group is around it, or it is not ours to divide."""
        place = self.place_of(next(one for servers in ground.before.servers.values() for one in servers))
        if place is None:
            return "no control group limits memory here"
        handed_down = place.folder / "cgroup.subtree_control"  # version 1 hands down what there is
        if handed_down.exists() and "memory" not in handed_down.read_text(encoding="ascii").split():
            return f"{place.folder} does not hand memory limits down"
        if not (os.access(place.folder, os.W_OK) and os.access(place.folder / "cgroup.procs", os.W_OK)):
            return f"{place.folder} is not delegated to us"
        return ""

    def place_of(self, server: Identity) -> Place | None:
        """For the control group that is to limit the server's memory; None where there is nothing to make one in."""
        return place_among(cgroups.around(pid=server.pid))

    def invoke(self, ground: Ground) -> Hit:
        """What it holds already stays charged to its old group: it is what it asks for next that it does not get."""
        group = ground.a_group()
        server = ground.a_server(group)
        place = self.place_of(server)
        assert place is not None  # noqa: S101 - `obstacle` asked
        mine = place.folder / f"queenright-soak-{secrets.token_hex(4)}"
        mine.mkdir()
        ground.undo.callback(_remove, mine)
        ground.undo.callback(ground.kill, server, signal.SIGKILL)  # in there it can do nothing any more
        for name in place.limits:
            with suppress(FileNotFoundError):  # a kernel without swap accounting
                (mine / name).write_text("0")
        (mine / "cgroup.procs").write_text(str(server.pid))

        def wrong() -> str:
            killed = [line for line in events if line.startswith("oom_kill ")]
            return (
                "" if any(line.split()[1] != "0" for line in killed) else "the kernel says it killed nobody for memory"
            )

        events: list[str] = []

        def seen() -> bool:
            if is_dead(server):
                events.extend((mine / place.counter).read_text(encoding="ascii").splitlines())
                return True
            return False

        return Hit((server,), frozenset([group]), until=seen, wrong=wrong)


def place_among(groups: Iterable[Around]) -> Place | None:
    """Where both versions are mounted, version 1 has the controller (cgroups(7))."""
    for group in sorted(groups, key=lambda one: one.version):
        if group.version == 1:
            return Place(Path(group.folder), V1_LIMITS, "memory.oom_control")
        if group.steps:
            return Place(Path(group.folder).parent, V2_LIMITS, "memory.events")
    return None


def _remove(folder: Path) -> None:
    for _ in range(50):  # a dead process is in it until it is reaped
        try:
            folder.rmdir()
        except FileNotFoundError:
            return
        except OSError:
            pause(0.1)
