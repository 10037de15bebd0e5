"""Where the groups of an engine are, asked of its keeper; what transport.Directory and AsyncDirectory want.

A role is served by the group of the engine that has it, however our own configuration cuts its groups. An engine that is
gone is rebuilt (`supervisor.tenure`) while whoever asks waits.
"""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING, Any, Protocol

from attrs import evolve

from supervisor import budgets, control, holding, identity, locks
from supervisor.contract import Endpoint, EngineSpec, LaunchSpec, State
from supervisor.control import ControlError
from supervisor.errors import EngineStartError, FailedForGoodError, UsageError
from supervisor.identity import Identity, Liveness
from supervisor.stepping import step

if TYPE_CHECKING:
    from collections.abc import Sequence

    from supervisor.slot import Slot
    from supervisor.tenure import Tenure


class _World(Protocol):
    """In what asking differs between threads and trio."""

    async def ask(self, slot: Slot, op: str, *, limit: float, groups: Sequence[str]) -> dict[str, Any]:
        """One question to the keeper. Raises ControlError."""

    async def pause(self, seconds: float) -> None:
        """Wait."""


class _Threads:
    """The world of threads: nothing of it suspends."""

    async def ask(self, slot: Slot, op: str, *, limit: float, groups: Sequence[str]) -> dict[str, Any]:
        return control.ask(slot, op, limit=limit, groups=list(groups))

    async def pause(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: TID251, ASYNC251 - it is for threads; nothing tells of a keeper that is being replaced


class _Trio:
    """The world of trio tasks."""

    async def ask(self, slot: Slot, op: str, *, limit: float, groups: Sequence[str]) -> dict[str, Any]:
        from supervisor import control_async

        return await control_async.ask(slot, op, limit=limit, groups=groups)

    async def pause(self, seconds: float) -> None:
        import trio

        await trio.sleep(seconds)


class Directory:
    """What was heard of the engine's groups last, and asking anew. Any thread may use it.

    Each question has a form for threads and one for trio; both wait, and raise UsageError for a role that is not ours,
    FailedForGoodError, EngineStartError, or what kept the engine from being rebuilt. `deadline` is on
    `time.monotonic()`.
    """

    def __init__(self, tenure: Tenure, spec: EngineSpec) -> None:
        self._tenure = tenure
        self._ours = {launch.role: launch for group in spec.groups for launch in group.launches}
        self.closed = threading.Event()
        self._group_of: dict[str, str] = {}
        self._known: dict[str, Endpoint] = {}
        self._seen: dict[str, tuple[int, int] | None] = {}
        self._states: dict[str, State] = {}
        self._leaders: dict[int, Identity | None] = {}
        """By port, of the generation that was last heard of there."""

    def current(self, group: str) -> Endpoint | None:
        """As last heard, unless the keeper has written of the group since: then it has to be asked again. Else a
        request could go, with its key, to whoever has the group's old port. Every request asks: so it is use."""
        self._tenure.note_use(time.monotonic())
        if self._record_stamp(group) != self._seen.get(group):
            return None
        return self._known.get(group)

    def state(self, group: str) -> State | None:
        """As last heard."""
        return self._states.get(group)

    def vouches(self, port: int) -> bool:
        """See request_loop.Known. The leader of a generation, by pid and start, listens for as long as it lives, so whoever was
        connected to before it was found alive was it. But for a llama-swap that somebody else told to end: while it drains it
        lives and listens no more, until the keeper's next looks find that out."""
        leader = self._leaders.get(port)
        return leader is None or identity.liveness(leader) is not Liveness.DEAD

    def of_role(self, role: str, deadline: float) -> Endpoint:
        """The endpoint of a role of ours."""
        return step(self._of_role(_Threads(), role, deadline))

    async def of_role_async(self, role: str, deadline: float) -> Endpoint:
        """The same for trio."""
        return await self._of_role(_Trio(), role, deadline)

    def wait_ready(self, deadline: float) -> None:
        """Until every role of ours is served."""
        step(self._wait_ready(_Threads(), deadline))

    async def wait_ready_async(self, deadline: float) -> None:
        """The same for trio."""
        await self._wait_ready(_Trio(), deadline)

    def wait(self, group: str, *, unlike: str | None, deadline: float) -> Endpoint:
        """See transport.Directory."""
        return step(self._wait(_Threads(), group, unlike, deadline))

    async def wait_async(self, group: str, *, unlike: str | None, deadline: float) -> Endpoint:
        """The same for trio."""
        return await self._wait(_Trio(), group, unlike, deadline)

    # --- the same for both ------------------------------------------------------------------------------------------

    async def _of_role(self, world: _World, role: str, deadline: float) -> Endpoint:
        launch = self._launch(role)
        group = self._group_of.get(role) or await self._find_group(world, role, deadline)
        known = self._known.get(group) or await self._wait(world, group, None, deadline)
        return evolve(known, role=role, model=launch.model)

    async def _wait_ready(self, world: _World, deadline: float) -> None:
        for role in self._ours:
            await self._wait(world, await self._find_group(world, role, deadline), None, deadline)

    async def _wait(self, world: _World, group: str, unlike: str | None, deadline: float) -> Endpoint:
        """Ask the keeper, and wait until the group serves. A keeper that is being replaced is asked again."""
        asking, why = _Asking(self, world, deadline), ""
        while True:
            # From before the question, for what is written meanwhile is news.
            stamp = self._record_stamp(group)
            snapshot = await asking.next(group)
            if snapshot is None:
                raise self._late(f"group {group} did not come up in time{why}", group)
            facts = next((facts for facts in snapshot["groups"] if facts["name"] == group), None)
            if facts is None:
                continue
            self._states[group] = State(facts["state"])
            why = f": it is {facts['state']}" + (f", {facts['reason']}" if facts["reason"] else "")
            if facts["state"] == State.FAILED:
                raise FailedForGoodError.of_group(group, facts["reason"])
            if facts["state"] in (State.RUNNING, State.DEGRADED) and facts["generation"] != unlike:
                self._known[group], self._seen[group] = self._endpoint(facts), stamp
                # The warden's start shows whether the keeper's pids mean the same here: elsewhere (another pid namespace)
                # its leader's number is a stranger's, whose end says nothing.
                warden, proxy = snapshot["warden"], facts["proxy"]
                is_known = identity.start_ticks(warden["pid"]) == warden["ticks"]
                # By the keeper's word, not by a look: it may be dead already, and the keeper not know it yet.
                who = (identity.boot_id(), identity.pid_namespace(), proxy["pid"], proxy.get("ticks"))
                self._leaders[proxy["port"]] = Identity(*who) if is_known and who[3] else None
                return self._known[group]

    async def _find_group(self, world: _World, role: str, deadline: float) -> str:
        """What the engine calls the group that has this role."""
        asking = _Asking(self, world, deadline)
        while (snapshot := await asking.next()) is not None:
            for facts in snapshot["groups"]:
                if any(server["role"] == role for server in facts["servers"]):
                    self._group_of[role] = facts["name"]
                    return self._group_of[role]
        raise self._late(f"the engine did not come up with a {role} server in time")

    def _late(self, what: str, group: str | None = None) -> EngineStartError:
        slot = self._tenure.slot
        if not holding.is_held(slot):
            return EngineStartError(what, "`queenright status` says why")
        if group is not None:
            self._states[group] = State.HELD
        return EngineStartError(f"the engine in {slot.path} is held", "`queenright release` lets it run again")

    def _record_stamp(self, group: str) -> tuple[int, int] | None:
        """Which writing of the group's record is on disk: it is replaced as a whole each time."""
        try:
            facts = os.stat(self._tenure.slot.group_record(group))
        except OSError:
            return None
        return facts.st_ino, facts.st_mtime_ns

    def _launch(self, role: str) -> LaunchSpec:
        if role not in self._ours:
            raise UsageError(f"no role {role!r} in this engine", f"it serves: {', '.join(self._ours)}")
        return self._ours[role]

    def _endpoint(self, facts: dict[str, Any]) -> Endpoint:
        key = self._tenure.slot.group_key(facts["name"]).read_text(encoding="ascii").strip()
        server = facts["servers"][0]
        return Endpoint(facts["name"], server["role"], server["model"], facts["url"], key, facts["generation"])


class _Asking:
    """One wait: snapshot after snapshot until the deadline, each as soon as the group named is settled."""

    def __init__(self, directory: Directory, world: _World, deadline: float) -> None:
        self._directory, self._world, self._deadline = directory, world, deadline
        self._tenure = directory._tenure
        self._since = self._tenure.attempts
        self._pauses = iter(budgets.HOLD_DELAYS)
        self._first = True

    async def next(self, *groups: str) -> dict[str, Any] | None:
        """The next one; None when the deadline has passed."""
        while True:
            if not self._first:
                # The keeper is being replaced, or has not noticed yet what the caller has; or the engine is built anew.
                await self._world.pause(next(self._pauses, budgets.HOLD_DELAYS[-1]))
            self._first = False
            if (left := self._deadline - time.monotonic()) <= 0:
                return None
            if self._directory.closed.is_set():
                what = "the engine was closed while a request was held"
                raise UsageError(what, "keep it open until all are answered")
            slot = self._tenure.slot
            try:
                return await self._world.ask(slot, "wait", limit=min(left, budgets.WAIT_ROUND), groups=groups)
            except ControlError as error:
                is_gone = not error.listening and locks.is_held(slot.warden_lock) is False
                if is_gone and not holding.is_held(slot):
                    self._tenure.need(self._since)
