"""Where the groups of an engine are, asked of its keeper; what transport.Directory wants.

A role is served by the group of the engine that has it, however our own configuration cuts its groups.
"""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING, Any

from attrs import evolve

from supervisor import budgets, control, locks
from supervisor.contract import Endpoint, EngineSpec, LaunchSpec, State
from supervisor.control import ControlError
from supervisor.errors import EngineStartError, FailedForGoodError, NoEngineError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from supervisor.slot import Slot


class Directory:
    """What was heard of the engine's groups last, and asking anew. Any thread may use it."""

    def __init__(self, slot: Slot, spec: EngineSpec) -> None:
        self._slot = slot
        self._ours = {launch.role: launch for group in spec.groups for launch in group.launches}
        self.closed = threading.Event()
        self._group_of: dict[str, str] = {}
        self._known: dict[str, Endpoint] = {}
        self._seen: dict[str, tuple[int, int] | None] = {}
        self._states: dict[str, State] = {}

    def current(self, group: str) -> Endpoint | None:
        """As last heard, unless the keeper has written of the group since: then it has to be asked again. Else a
        request could go, with its key, to whoever has the group's old port."""
        if self._record_stamp(group) != self._seen.get(group):
            return None
        return self._known.get(group)

    def state(self, group: str) -> State | None:
        """As last heard."""
        return self._states.get(group)

    def of_role(self, role: str, deadline: float) -> Endpoint:
        """The endpoint of a role of ours; waits for it. Raises UsageError for another one, or as `wait` does."""
        launch = self._launch(role)
        group = self._group_of.get(role) or self._find_group(role, deadline)
        known = self._known.get(group) or self.wait(group, unlike=None, deadline=deadline)
        return evolve(known, role=role, model=launch.model)

    def wait_ready(self, deadline: float) -> None:
        """Until every role of ours is served."""
        for role in self._ours:
            self.wait(self._find_group(role, deadline), unlike=None, deadline=deadline)

    def wait(self, group: str, *, unlike: str | None, deadline: float) -> Endpoint:
        """Ask the keeper, and wait until the group serves. A keeper that is being replaced is asked again."""
        for stamp, snapshot in self._snapshots(deadline, group):
            facts = next((facts for facts in snapshot["groups"] if facts["name"] == group), None)
            if facts is None:
                continue
            self._states[group] = State(facts["state"])
            if facts["state"] == State.FAILED:
                raise FailedForGoodError(
                    f"group {group} failed: {facts['reason']}",
                    f"`queenright logs {group}` has more; once it is mended, `queenright stop` and start again",
                )
            if facts["state"] in (State.RUNNING, State.DEGRADED) and facts["generation"] != unlike:
                self._known[group], self._seen[group] = self._endpoint(facts), stamp
                return self._known[group]
        raise EngineStartError(f"group {group} did not come up in time", "`queenright status` says why")

    def _find_group(self, role: str, deadline: float) -> str:
        """What the engine calls the group that has this role."""
        for _, snapshot in self._snapshots(deadline):
            for facts in snapshot["groups"]:
                if any(server["role"] == role for server in facts["servers"]):
                    self._group_of[role] = facts["name"]
                    return self._group_of[role]
        raise EngineStartError(
            f"the engine did not come up with a {role} server in time", "`queenright status` says why"
        )

    def _snapshots(self, deadline: float, *groups: str) -> Iterator[tuple[tuple[int, int] | None, dict[str, Any]]]:
        """One after the other until the deadline, each as soon as these groups are settled; with the stamp of the first
        group's record from before the question, for what is written meanwhile is news."""
        pauses = iter(budgets.HOLD_DELAYS)
        while (left := deadline - time.monotonic()) > 0:
            if self.closed.is_set():
                what = "the engine was closed while a request was held"
                raise UsageError(what, "keep it open until all are answered")
            stamp = self._record_stamp(groups[0]) if groups else None
            try:
                limit = min(left, budgets.WAIT_ROUND)
                yield stamp, control.ask(self._slot, "wait", limit=limit, groups=list(groups))
            except ControlError as error:
                if not error.listening and locks.is_held(self._slot.warden_lock) is False:
                    raise NoEngineError(f"the engine in {self._slot.path} is gone", "open it again") from error
            # The keeper is being replaced, or has not noticed yet what the caller has.
            time.sleep(next(pauses, budgets.HOLD_DELAYS[-1]))  # noqa: TID251 - nothing tells of either

    def _record_stamp(self, group: str) -> tuple[int, int] | None:
        """Which writing of the group's record is on disk: it is replaced as a whole each time."""
        try:
            facts = os.stat(self._slot.group_record(group))
        except OSError:
            return None
        return facts.st_ino, facts.st_mtime_ns

    def _launch(self, role: str) -> LaunchSpec:
        if role not in self._ours:
            raise UsageError(f"no role {role!r} in this engine", f"it serves: {', '.join(self._ours)}")
        return self._ours[role]

    def _endpoint(self, facts: dict[str, Any]) -> Endpoint:
        key = self._slot.group_key(facts["name"]).read_text(encoding="ascii").strip()
        server = facts["servers"][0]
        return Endpoint(facts["name"], server["role"], server["model"], facts["url"], key, facts["generation"])
