"""Records that are not what was written: other bytes in them, or the second half missing, as after a power cut."""

from __future__ import annotations

import signal
from contextlib import suppress
from typing import TYPE_CHECKING

from chaos.soak.faults.ground import Fault, Hit

if TYPE_CHECKING:
    import random
    from collections.abc import Callable
    from pathlib import Path

    from chaos.soak.faults.ground import Ground


def records_of(ground: Ground) -> list[Path]:
    """What is for readers only: the truth is in the locks and with the warden. Keys, and what a proxy has read, are none."""
    slot = ground.slot
    found = [slot.contract_record, slot.keeper_record, slot.warden_record, slot.tickets]
    for group in sorted(ground.before.leaders):
        found += [slot.group_record(group), slot.group_port(group)]
    return [path for path in found if path.exists()]


def _damage(ground: Ground, how: Callable[[bytes, random.Random], bytes]) -> None:
    """In place: a reader may meet it half done."""
    for path in records_of(ground):
        with suppress(FileNotFoundError):
            path.write_bytes(how(path.read_bytes(), ground.chance))


def corrupted(data: bytes, chance: random.Random) -> bytes:
    """The same length, a few bytes of it others."""
    bad = bytearray(data)
    for _ in range(max(1, len(bad) // 20) if bad else 0):
        bad[chance.randrange(len(bad))] = chance.randrange(256)
    return bytes(bad)


def truncated(data: bytes, chance: random.Random) -> bytes:
    """Any beginning of it, nothing too."""
    return data[: chance.randrange(len(data))] if data else data


class CorruptRecords(Fault):
    """The next keeper has only them to read, if it were to believe them."""

    name, what = "corrupt records", "other bytes in every record, and kill -9 of the keeper: no process is replaced"

    def invoke(self, ground: Ground) -> Hit:
        """The engine stays who it is, and the next who comes binds."""
        _damage(ground, corrupted)
        ground.kill(ground.keeper, signal.SIGKILL)
        return Hit((ground.keeper,), frozenset(["keeper"]))


class TruncatedRecords(Fault):
    """The keeper lives; who comes reads what there is."""

    name, what = "truncated records", "every record cut off somewhere: no process is replaced, and who comes binds"

    def invoke(self, ground: Ground) -> Hit:
        """Nothing is touched by it."""
        _damage(ground, truncated)
        return Hit(must_end=False)
