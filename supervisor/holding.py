"""`queenright hold`: nothing is started in a slot until somebody releases it (a benchmark, a driver update, a reboot).

The file in the slot is the truth, so that a hold outlives keeper, warden and machine; the keeper is told besides.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, NamedTuple

from supervisor import records
from supervisor.errors import RecordError

if TYPE_CHECKING:
    from supervisor.slot import Slot

HOLD_VERSION = 1


class SlotHold(NamedTuple):
    """Who holds the slot, and why. `since`: seconds of the epoch, for people."""

    who: str
    reason: str
    since: float

    def describe(self) -> str:
        """In plain words: `held by …: …`."""
        return f"held by {self.who}" + (f": {self.reason}" if self.reason else "")


def is_held(slot: Slot) -> bool:
    """Whether somebody wants no engine in this slot for now."""
    return os.path.lexists(slot.hold_record)


def find(slot: Slot) -> SlotHold | None:
    """The hold on the slot. One that cannot be read is one: unknown is not released."""
    try:
        facts = records.read_fields(slot.hold_record, version=HOLD_VERSION)
        return SlotHold(str(facts["who"]), str(facts["reason"]), float(facts["since"])) if facts is not None else None
    except (RecordError, KeyError, TypeError, ValueError) as error:
        return SlotHold("somebody", f"its record says no more ({error})".partition("\n")[0], 0.0)


def place(slot: Slot, who: str, reason: str) -> SlotHold:
    """Hold the slot; one that is there stays as it is, with its own reason. The caller has build.lock.

    Raises RecordError when it cannot be written: then nothing is held.
    """
    there = find(slot)
    if there is not None:
        return there
    hold = SlotHold(who, reason, time.time())
    records.write(slot.hold_record, hold._asdict(), version=HOLD_VERSION)
    return hold


def lift(slot: Slot) -> SlotHold | None:
    """Take the hold away, and say what it was; None where there was none. Raises OSError."""
    there = find(slot)
    slot.hold_record.unlink(missing_ok=True)
    return there
