"""The tree of groups: each its own task, started together, stopped together, none touched for another's sake."""

from __future__ import annotations

import signal
from functools import partial
from typing import TYPE_CHECKING, Any

import trio

from supervisor import budgets, containment, lifecycle, logfiles, notes, undoing
from supervisor.group import Group
from supervisor.procs import Gone

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping

    from supervisor.contract import EngineSpec, GroupSpec, State
    from supervisor.kinds import Kind
    from supervisor.procs import Procs, Row
    from supervisor.slot import Slot


class Tree:
    """Owner of the groups. `run` it once. `tell` is called after each change, with the group's name where it is one's
    alone; `tell_end` with each death in one; `changed` waits for the next change."""

    def __init__(
        self,
        spec: EngineSpec,
        slot: Slot,
        find_kind: Callable[[str], Kind],
        procs: Procs,
        *,
        tell: Callable[..., None],
        tell_end: Callable[[dict[str, Any]], None],
        changed: Callable[[], Awaitable[None]],
    ) -> None:
        self.slot, self.procs = slot, procs
        self._find_kind, self._tell, self._tell_end, self._changed = find_kind, tell, tell_end, changed
        self._nursery: trio.Nursery | None = None
        self.held = ""
        """Why all of them are held, "" where nobody holds them."""
        self.held_groups: dict[str, str] = {}
        """Those that are held by themselves, and why; they need not be in the contract."""
        self._nobodys: set[str] = set()
        """Generations of groups that the contract has not: they are being ended."""
        self.groups = {group.name: self._make(group) for group in spec.groups}

    def _kind_of(self, spec: GroupSpec) -> Kind:
        return containment.hold(spec.kind, self._find_kind, logfiles.complain)

    def _make(self, spec: GroupSpec) -> Group:
        return Group(spec, self.slot, self._kind_of(spec), self.procs, partial(self._tell, spec.name), self._tell_end)

    @property
    def state(self) -> State:
        """One word for all groups."""
        return lifecycle.worst([group.state for group in self.groups.values()])

    def serving(self) -> dict[str, dict[str, str]]:
        """By role, the group that serves it now and where: for those who bind."""
        found: dict[str, dict[str, str]] = {}
        for name, group in self.groups.items():
            if group.state in lifecycle.UP and (life := group.life) is not None:
                found |= {launch.role: {"group": name, "url": life.birth.url} for launch in group.spec.launches}
        return found

    async def run(self, stopping: str = "", held: str = "", held_groups: Mapping[str, str] | None = None) -> None:
        """Take up what the warden has, start the rest, and live until cancelled. With a reason for `stopping` or `held`
        nothing is started, and what an earlier keeper began to stop is stopped. `held_groups` are single groups that are not
        started either: name and reason."""
        held_groups = held_groups or {}
        rows = latest_rows(self.procs.rows.values())
        async with trio.open_nursery() as self._nursery:
            for row in list(self.procs.rows.values()):
                if row.state == "gone" and rows.get(row.group) is not row:
                    self.procs.forget(row.gen)
            for name, path in undoing.left(self.slot, known=self.procs.rows):
                if name in self.groups:  # before it starts, now or once released: what is there may be in its way
                    self.groups[name].outside.append(path)
                if name not in self.groups or stopping or held or name in held_groups:
                    self._nursery.start_soon(undoing.finish, path, logfiles.complain)
            for name, group in self.groups.items():
                if stopping:
                    group.stop(stopping)
                self._nursery.start_soon(
                    self._live, group, rows.pop(name, None), not (stopping or held or name in held_groups)
                )
            for row in rows.values():
                self._nobodys.add(row.gen)
                self._nursery.start_soon(self._end, row)
            if held:
                self.hold(held)
            self.hold_groups(held_groups)

    async def _live(self, group: Group, row: Row | None, wanted: bool) -> None:
        """A group's life, until it is retired."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(group.run, row, wanted)
            await group.retired.wait()
            nursery.cancel_scope.cancel()
        if self.groups.get(group.spec.name) is group:
            del self.groups[group.spec.name]
            self.procs.note_slot(notes.key(group.spec.name), None)
            self.slot.group_record(group.spec.name).unlink(missing_ok=True)
            self._tell()

    async def _end(self, row: Row) -> None:
        """A generation of a group that the contract has no more: its keeper died while it was being stopped."""
        news = self.procs.follow(row.gen)
        if row.state == "running":
            self.procs.kill(row.gen, signal.SIGKILL, everybody=True)
        while row.state != "gone" and not isinstance(await news.receive(), Gone):
            pass
        await undoing.finish(self.slot.generation_undo(row.group, row.gen), logfiles.complain)
        self.procs.forget(row.gen)
        self.procs.note_slot(notes.key(row.group), None)
        self._nobodys.discard(row.gen)
        self._tell()

    def configure(self, spec: EngineSpec, why: str, drain_s: float = 0.0) -> None:
        """Be what `spec` says. A group that stays as it is is not touched; the others go their own ways, each for itself,
        after at most `drain_s` seconds in which it waits for its requests in flight.

        Raises ConfigError for a kind that is not known; nothing was changed then.
        """
        assert self._nursery is not None  # noqa: S101 - it runs before anybody can ask
        kinds = {
            group.name: containment.Contained(self._find_kind(group.kind), logfiles.complain) for group in spec.groups
        }
        for group in spec.groups:
            if group.name in self.groups and not self.groups[group.name].retired.is_set():
                self.groups[group.name].reshape(group, kinds[group.name], why, drain_s)
            else:
                new = self.groups[group.name] = self._make(group)
                new.outside = [path for name, path in undoing.left(self.slot) if name == group.name]
                why_held = self.held or self.held_groups.get(group.name, "")
                self._nursery.start_soon(self._live, new, None, not why_held)
                if why_held:
                    new.hold(why_held)
        for name in self.groups.keys() - kinds.keys():
            self.groups[name].retire(why, drain_s)
        self._tell()

    def hold(self, why: str) -> None:
        """Stop every group, and keep it down until `release`."""
        self.held = why
        for group in self.groups.values():
            group.hold(why)

    def hold_groups(self, held: Mapping[str, str]) -> None:
        """The same for these groups alone, each with its reason."""
        self.held_groups |= held
        for name, why in held.items():
            if name in self.groups:
                self.groups[name].hold(why)

    def release(self) -> None:
        """Start every group that is held, but for those that are held by themselves."""
        self.held = ""
        for name, group in self.groups.items():
            if name not in self.held_groups:
                group.release()

    def release_groups(self, names: Iterable[str]) -> None:
        """Start these, unless the whole slot is held."""
        for name in names:
            self.held_groups.pop(name, None)
            if name in self.groups and not self.held:
                self.groups[name].release()

    def retry(self, names: Iterable[str]) -> list[str]:
        """Try those again that were given up; says which. An unknown name is none. A kind that was not found is looked for."""
        known = [name for name in names if name in self.groups]
        for group in [self.groups[name] for name in known]:
            if isinstance(group.kind, containment.Absent):
                group.kind = self._kind_of(group.spec)
        return [name for name in known if self.groups[name].retry()]

    def is_settled(self, names: Iterable[str]) -> bool:
        """Whether waiting for these groups is over, one way or the other. An unknown name is."""
        return all(self.groups[name].is_settled for name in names if name in self.groups)

    async def stop(self, why: str) -> bool:
        """Stop all groups at once, within the teardown budget; True when nothing is left running."""
        for group in self.groups.values():
            group.stop(why)
        with trio.CancelScope(shield=True, deadline=trio.current_time() + budgets.TEARDOWN):
            while not self.is_at_rest:
                await self._changed()
        return self.is_at_rest and all(group.life is None for group in self.groups.values())

    @property
    def is_at_rest(self) -> bool:
        """Whether nothing runs any more."""
        return not self._nobodys and all(group.is_at_rest for group in self.groups.values())

    @property
    def generations(self) -> set[str]:
        """Those of which anything is known to live, or is being ended."""
        return self._nobodys | {group.life.birth.generation for group in self.groups.values() if group.life is not None}

    @property
    def in_flight(self) -> dict[str, int | None]:
        """Requests that each group owes an answer; None where that is not known."""
        return {name: group.in_flight for name, group in self.groups.items()}

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
