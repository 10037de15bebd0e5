"""What of a recovery is a pause that the restart policy asked for: who dies again and again is started later each time, and a
soak kills far more often than anything else does. Read from the slot's journal; nothing is judged by it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from supervisor.following import Follower

if TYPE_CHECKING:
    from supervisor.slot import Slot


class Pauses:
    """Of the engine in a slot, as they are noted."""

    def __init__(self, slot: Slot) -> None:
        self._journal = Follower(slot.events, 0)

    def since_the_last_time(self) -> float:
        """Seconds, of the group that had to wait most; groups wait beside each other."""
        waited: dict[str, float] = {}
        for line in self._journal.take():
            try:
                event = json.loads(line)
                if event["what"] == "ended" and event["restart"]:
                    waited[event["group"]] = waited.get(event["group"], 0.0) + event["delay"]
            except (ValueError, LookupError, TypeError):
                continue  # cut by the cap, or damaged by a fault
        return max(waited.values(), default=0.0)
