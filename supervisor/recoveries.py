"""How often groups were restarted, and how long they were away. Pure; counted since this keeper began.

A group is away from the moment in which the keeper notices that something of it died until all of it answers again. What
is stopped on purpose, or given up, is no recovery.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from supervisor.contract import State

if TYPE_CHECKING:
    from collections.abc import Mapping

BOUNDS: Final = (0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0)
"""Seconds. A proxy with a small model is back in about one; a large model loads for minutes."""

AWAY: Final = frozenset({State.DEGRADED, State.REBUILDING})
"""A group that was up and lost something."""


class Recoveries:
    """Owned by the keeper. `seconds` holds, by group, how many recoveries took at most each of BOUNDS and how many took
    longer; `total` their sum."""

    def __init__(self) -> None:
        self.restarts: Counter[tuple[str, str]] = Counter()
        """By group and cause (docs/reference/exit-causes.md): of the group, or of a server under its proxy."""
        self.seconds: dict[str, list[int]] = {}
        self.total: dict[str, float] = {}
        self._since: dict[str, float] = {}

    def note_end(self, facts: Mapping[str, Any]) -> None:
        """A death in a group (`endings.facts`), and whether it is started again."""
        if facts["restart"]:
            self.restarts[facts["group"], facts["cause"]] += 1

    def see(self, group: str, state: State, now: float) -> None:
        """A group is in that state. `now` is CLOCK_MONOTONIC seconds."""
        if state in AWAY:
            self._since.setdefault(group, now)
            return
        began = self._since.pop(group, None)
        if state is State.RUNNING and began is not None:
            took = now - began
            counts = self.seconds.setdefault(group, [0] * (len(BOUNDS) + 1))
            counts[sum(took > bound for bound in BOUNDS)] += 1
            self.total[group] = self.total.get(group, 0.0) + took
