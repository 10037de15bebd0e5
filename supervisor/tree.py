"""The tree of groups: each its own task, started together, stopped together, none touched for another's sake."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from supervisor import budgets, lifecycle
from supervisor.contract import EngineSpec, State
from supervisor.group import Group
from supervisor.lifecycle import Event

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from supervisor.kinds import Kind
    from supervisor.procs import Procs, Row
    from supervisor.slot import Slot

AT_REST = frozenset({State.DOWN, State.FAILED, State.HELD})
"""A group in one of these has nothing running, or nothing that can be helped."""

SETTLED = frozenset({State.RUNNING, State.FAILED, State.HELD, State.STOPPING})
"""A group in one of these will not come up by waiting any longer."""


class Tree:
    """Owner of the groups. `run` it once."""

    def __init__(
        self, spec: EngineSpec, slot: Slot, find_kind: Callable[[str], Kind], procs: Procs, changed: Callable[[], None]
    ) -> None:
        self.procs = procs
        self.groups = {
            group.name: Group(group, slot, find_kind(group.kind), procs, changed) for group in spec.groups
        }  # fmt: skip

    @property
    def state(self) -> State:
        """One word for all groups."""
        return lifecycle.worst([group.state for group in self.groups.values()])

    async def run(self, stopping: str = "") -> None:
        """Take up what the warden has, start the rest, and live until cancelled. With a reason for `stopping`, nothing
        is started: what an earlier keeper began to stop is stopped."""
        rows = latest_rows(self.procs.rows.values())
        for row in list(self.procs.rows.values()):
            if row.state == "gone" and rows.get(row.group) is not row:
                self.procs.forget(row.gen)
        async with trio.open_nursery() as nursery:
            for name, group in self.groups.items():
                if stopping:
                    group.post(Event.STOP, reason=stopping)
                nursery.start_soon(group.run, rows.get(name), not stopping)

    def is_settled(self, names: Iterable[str]) -> bool:
        """Whether waiting for these groups is over, one way or the other. An unknown name is."""
        return all(self.groups[name].state in SETTLED for name in names if name in self.groups)

    async def stop(self, why: str, changed: Callable[[], object]) -> bool:
        """Stop all groups at once, within the teardown budget; True when nothing is left running.

        `changed()` returns an awaitable of the next change of any group.
        """
        for group in self.groups.values():
            group.post(Event.STOP, reason=why)
        with trio.CancelScope(shield=True, deadline=trio.current_time() + budgets.TEARDOWN):
            while not self.is_at_rest:
                await changed()  # type: ignore[misc]
        return self.is_at_rest and all(group.life is None for group in self.groups.values())

    @property
    def is_at_rest(self) -> bool:
        """Whether nothing runs any more."""
        return all(group.state in AT_REST for group in self.groups.values())

    def kill(self) -> None:
        """End every group now: no unload, no grace."""
        for group in self.groups.values():
            group.end_now()


def latest_rows(rows: Iterable[Row]) -> dict[str, Row]:
    """The one row of each group to take up: a living generation before a dead one, else the last one told."""
    chosen: dict[str, Row] = {}
    for row in rows:
        if row.group not in chosen or row.state != "gone" or chosen[row.group].state == "gone":
            chosen[row.group] = row
    return chosen
