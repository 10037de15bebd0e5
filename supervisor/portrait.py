"""An engine in plain data, as its keeper sees it: for `status`, and for those who come to bind."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Protocol

from supervisor import membership, records, units
from supervisor._version import __version__
from supervisor.advice import off_device
from supervisor.contract import State
from supervisor.errors import SlotError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from supervisor.contract import EngineSpec
    from supervisor.procs import Procs
    from supervisor.slot import Slot
    from supervisor.tree import Tree


class Shown(Protocol):
    """A part of the keeper that says what is shown of it."""

    def describe(self) -> dict[str, Any]: ...

    def queue(self, group: str) -> dict[str, Any]: ...


class View(Protocol):
    """What of a keeper is shown."""

    slot: Slot
    procs: Procs
    since: float
    spec: EngineSpec | None
    tree: Tree | None
    stopping: str
    draining: str
    warm: set[str]

    @property
    def gateway(self) -> Shown: ...

    @property
    def state(self) -> State: ...


def snapshot(keeper: View) -> dict[str, Any]:
    """The whole state, as `status --json` shows it."""
    hello, of_engine = keeper.procs.hello, engine(keeper)
    return {
        "slot": str(keeper.slot.path),
        "state": of_engine["state"],
        "reason": of_engine["reason"],
        "lifetime": keeper.spec.lifetime.value if keeper.spec else None,
        "held": (keeper.tree.held or None) if keeper.tree else None,
        "held_groups": dict(keeper.tree.held_groups) if keeper.tree else {},
        "draining": keeper.draining or None,
        "warm": sorted(keeper.warm),
        "keeper": {"pid": os.getpid(), "version": __version__, "since": keeper.since},
        "warden": {
            "pid": hello.pid,
            "ticks": hello.ticks,
            "keeper_crashes": hello.crashes,
            "cgroup": units.cgroup_of(hello.pid),
        },
        "gateway": of_engine["gateway"],
        "groups": of_engine["groups"],
        "members": _members(keeper.slot),
        "outside": keeper.slot.left_outside(keeper.tree.generations if keeper.tree else ()),
        "contract": records.unstructure(keeper.spec) if keeper.spec else None,
    }


def engine(keeper: View) -> dict[str, Any]:
    """What it does, without a look at who uses it: that asks for every member's lock."""
    groups, state = _groups(keeper), keeper.state.value
    reason = keeper.stopping or keeper.draining or reason_of(state, groups)
    if state == State.RUNNING and (off := off_device(groups)):
        state, reason = State.DEGRADED.value, off
    return {"state": state, "reason": reason, "gateway": keeper.gateway.describe(), "groups": groups}


def brief(keeper: View) -> dict[str, Any]:
    """What a process that comes to the engine decides by. It costs the same however many use the engine: each comes
    under build.lock, so a thousand that come at once would each wait for a look at all the others."""
    contract = records.unstructure(keeper.spec) if keeper.spec else None
    return {
        "state": keeper.state.value,
        "warm": sorted(keeper.warm),
        "contract": contract,
        "warden": {"pid": keeper.procs.hello.pid, "ticks": keeper.procs.hello.ticks},
        "gateway": keeper.gateway.describe(),
        "serving": keeper.tree.serving() if keeper.tree else {},
    }


def _members(slot: Slot) -> list[dict[str, Any]]:
    try:
        found = membership.members(slot)
    except SlotError:
        return []  # who uses it cannot be told now: for people only, the member watch counts that as in use
    return [member.describe() for member in found]


def _groups(keeper: View) -> list[dict[str, Any]]:
    """`queue` is the gateway's, by role; empty where nobody asked it yet."""
    groups = keeper.tree.groups.values() if keeper.tree else ()
    return [{**group.describe(), "queue": keeper.gateway.queue(group.spec.name)} for group in groups]


def reason_of(state: str, groups: Sequence[Mapping[str, Any]]) -> str:
    """The engine's reason: that of a group which gives the engine its state. Another one's would not explain it."""
    fitting = sorted((g for g in groups if g["reason"]), key=lambda g: g["state"] != state)
    return str(fitting[0]["reason"]) if fitting else ""
