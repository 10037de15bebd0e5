"""`queenright hold`: nothing is started in a slot, or of a group, until somebody releases it, or until its time is over (a
benchmark, a driver update, a reboot).

The file in the slot is the truth, so that a hold outlives keeper, warden and machine; the keeper is told besides. How long it
lasts is told by the clock that no step moves and that sleep does not stop (CLOCK_BOOTTIME of clock_gettime(2)); by the time of day
only over a reboot, where there is no other.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, NamedTuple

from supervisor import identity, records
from supervisor.errors import RecordError

if TYPE_CHECKING:
    from supervisor.slot import Slot

HOLD_VERSION = 1


class Term(NamedTuple):
    """When a hold is over: at `until`, in seconds of the epoch, which in the boot of that id is at `at` of its own clock."""

    until: float
    boot: str
    at: float

    @classmethod
    def of(cls, seconds: float) -> Term:
        """So many seconds from now."""
        return cls(time.time() + seconds, identity.boot_id(), time.clock_gettime(time.CLOCK_BOOTTIME) + seconds)

    @property
    def left_s(self) -> float:
        """Seconds until then; below 0 once it is over."""
        if self.boot == identity.boot_id():
            return self.at - time.clock_gettime(time.CLOCK_BOOTTIME)
        return self.until - time.time()


class SlotHold(NamedTuple):
    """Who holds the slot, or one `group` of it, and why. `since`: seconds of the epoch, for people. `term`: None where it
    lasts until it is released."""

    who: str
    reason: str
    since: float
    group: str = ""
    term: Term | None = None

    def describe(self) -> str:
        """In plain words: `held by …: …`."""
        until = time.strftime(" until %Y-%m-%d %H:%M", time.localtime(self.term.until)) if self.term else ""
        return f"held by {self.who}{until}" + (f": {self.reason}" if self.reason else "")

    def plain(self) -> dict[str, object]:
        """For the file, and for programs."""
        return {**self._asdict(), "term": self.term._asdict() if self.term else None}


def is_held(slot: Slot) -> bool:
    """Whether somebody wants no engine in this slot for now."""
    return os.path.lexists(slot.hold_record) and find(slot) is not None


def find(slot: Slot, group: str = "") -> SlotHold | None:
    """The hold on the slot, or on one group of it, unless its time is over. One that cannot be read is one: unknown is not
    released."""
    hold = _read(slot, group)
    return None if hold is None or _is_over(hold) else hold


def on_groups(slot: Slot) -> dict[str, SlotHold]:
    """The holds on single groups, by their names."""
    found = {name: find(slot, name) for name in slot.held_groups()}
    return {name: hold for name, hold in found.items() if hold is not None}


def over(slot: Slot) -> list[str]:
    """Groups, "" for the whole slot, whose hold's time is over and whose file is still there."""
    held = {name: _read(slot, name) for name in ("", *slot.held_groups())}
    return [name for name, hold in held.items() if hold is not None and _is_over(hold)]


def place(slot: Slot, who: str, reason: str, group: str = "", for_s: float | None = None) -> SlotHold:
    """Hold the slot, or the group; one that is there stays as it is, with its own reason. The caller has build.lock.

    Raises RecordError when it cannot be written: then nothing is held.
    """
    there = find(slot, group)
    if there is not None:
        return there
    hold = SlotHold(who, reason, time.time(), group, Term.of(for_s) if for_s is not None else None)
    records.write(slot.hold_record_of(group), hold.plain(), version=HOLD_VERSION)
    return hold


def lift(slot: Slot, group: str = "") -> SlotHold | None:
    """Take the hold away, and say what it was; None where there was none. Raises OSError."""
    there = find(slot, group)
    slot.hold_record_of(group).unlink(missing_ok=True)
    return there


def _is_over(hold: SlotHold) -> bool:
    return hold.term is not None and hold.term.left_s <= 0


def _read(slot: Slot, group: str) -> SlotHold | None:
    try:
        facts = records.read_fields(slot.hold_record_of(group), version=HOLD_VERSION)
        if facts is None:
            return None
        term = facts.get("term")
        last = Term(float(term["until"]), str(term["boot"]), float(term["at"])) if term is not None else None
        return SlotHold(str(facts["who"]), str(facts["reason"]), float(facts["since"]), group, last)
    except (RecordError, KeyError, TypeError, ValueError) as error:
        return SlotHold("somebody", f"its record says no more ({error})".partition("\n")[0], 0.0, group)
