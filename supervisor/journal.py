"""events.jsonl: what happened in a slot, with reasons, one JSON object a line. For people; nothing is decided by it."""

from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING, Any

from supervisor import logfiles

if TYPE_CHECKING:
    from supervisor.slot import Slot


def note(slot: Slot, what: str, *, at: float | None = None, **facts: Any) -> None:
    """Append one event, of now or of the time `at`. A disk that is full loses the event and nothing else."""
    when = round(time.time() if at is None else at, 3)
    line = json.dumps({"at": when, "what": what, **facts}, separators=(",", ":")) + "\n"
    try:
        with open(os.open(slot.events, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "w", encoding="utf-8") as file:
            file.write(line)
        logfiles.cap(slot.events)
    except OSError:
        pass


def note_rung(slot: Slot, rung: str, reason: str, program: str) -> None:
    """A decision of the ladder, by this process."""
    note(slot, "ladder", rung=rung, reason=reason, program=program, pid=os.getpid())


def last_rung(slot: Slot, *rungs: str) -> dict[str, Any] | None:
    """The last decision of the ladder for one of these rungs that is still in the file, as it was noted: `at rung reason
    program pid`. None where there is none, or where it does not parse."""
    for line in reversed(logfiles.tail(slot.events, lines=10_000)):
        try:
            event = json.loads(line)
            if event["what"] == "ladder" and event["rung"] in rungs:
                return {key: event[key] for key in ("at", "rung", "reason", "program", "pid")}
        except (ValueError, LookupError, TypeError):
            continue  # cut by the cap, or damaged
    return None
