"""The disk: full, or filled by what a server says."""

from __future__ import annotations

import os
import resource
import signal
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from chaos.soak.faults.ground import Fault, Hit, is_dead
from supervisor import budgets, control

if TYPE_CHECKING:
    from pathlib import Path

    from chaos.soak.faults.ground import Ground
    from supervisor.identity import Identity

FLOOD_BYTES: Final = 3 * budgets.LOG_CAP_BYTES
LINE: Final = b"srv  log: the same again, and again, and again, and again, and again, and again, and again and again\n"


class DiskFull(Fault):
    """A limit on the size of the keeper's files stands for the full disk (setrlimit(2), RLIMIT_FSIZE): no record, no key
    and no configuration of a proxy can be written."""

    name, what = "disk full", "the keeper can write no file while a proxy is killed; then there is room again"

    def invoke(self, ground: Ground) -> Hit:
        """Who was killed is found dead, and who lives goes on; with room again the group comes back by itself."""
        keeper, group = ground.keeper, ground.a_group()
        limits = resource.prlimit(keeper.pid, resource.RLIMIT_FSIZE)
        ground.undo.callback(_set_limits, keeper, limits)
        _set_limits(keeper, (1, limits[1]))
        members = ground.before.group(group)
        ground.kill(ground.before.leaders[group], signal.SIGKILL)

        def seen() -> bool:
            return all(map(is_dead, members)) and _answers(ground)

        return Hit(tuple(members), frozenset([group]), heals_first=True, until=seen)


def _set_limits(keeper: Identity, limits: tuple[int, int]) -> None:
    if not is_dead(keeper):
        with suppress(OSError):
            resource.prlimit(keeper.pid, resource.RLIMIT_FSIZE, limits)


def _answers(ground: Ground) -> bool:
    with suppress(control.ControlError):
        return bool(control.ask(ground.slot, "status", brief=True))
    return False


class LogFlood(Fault):
    """Into the server's own standard error, whatever that is: a file, or a pipe that its proxy reads."""

    name, what = "log flood", f"{FLOOD_BYTES >> 20} MiB on a server's standard error: the logs stay below their cap"

    def invoke(self, ground: Ground) -> Hit:
        """Nobody is replaced, and the logs are cut at their next check."""
        server = ground.a_server(ground.a_group())
        block = LINE * 640
        with open(f"/proc/{server.pid}/fd/2", "ab", buffering=0) as said:
            for _ in range(FLOOD_BYTES // len(block)):
                said.write(block)
        return Hit((server,), must_end=False, until=lambda: not _too_long(ground.slot.logs))


def _too_long(logs: Path) -> list[str]:
    """Files beyond their cap; a copy of a cut one may have twice that."""
    found = []
    with os.scandir(logs) as entries:
        for entry in entries:
            with suppress(FileNotFoundError):
                older = 2 if entry.name.endswith(".1") else 1
                if entry.stat().st_size > older * budgets.LOG_CAP_BYTES:
                    found.append(entry.name)
    return found
