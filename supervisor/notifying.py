"""What the service manager is told that runs the warden, where one does (sd_notify(3)).

`Teller` is pure: the engine as it is now goes in, lines come out. The warden sends them, for it is the unit's main
process, and a manager takes words from that one alone (NotifyAccess=main; systemd/systemd#25961).
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import trio

from supervisor import budgets
from supervisor.wording import percent

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from supervisor.contract import EngineSpec
    from supervisor.procs import Procs


class Seen(NamedTuple):
    """The engine at one moment. `settled`: each group serves, is held, or was given up: there is nothing to wait for.
    `contract` is compared only: another one is a configuration that was changed."""

    settled: bool
    stopping: str
    status: str
    contract: object


class Teller:
    """Owner of what was said already. `watchdog_s`: the manager wants to hear of us within that (WATCHDOG_USEC), 0 for
    never. Times are of the monotonic clock, in seconds."""

    def __init__(self, watchdog_s: float) -> None:
        self._every = watchdog_s / 2 if watchdog_s else 0.0
        self._ready = self._is_stopping = False
        self._contract: object = None
        self._status = ""
        self._fed = self._extended = -budgets.NOTIFY_EXTENSION

    @property
    def pause_s(self) -> float:
        """Until the next words at the latest."""
        return min(budgets.NOTIFY_PULSE, self._every or budgets.NOTIFY_PULSE)

    def lines(self, seen: Seen, now: float) -> list[str]:
        """What is to be said, in one datagram; nothing where all of it is known."""
        said: list[str] = []
        changed = self._ready and seen.contract != self._contract
        self._contract = seen.contract
        if seen.stopping and not self._is_stopping:
            self._is_stopping = True
            said += ["STOPPING=1", f"EXTEND_TIMEOUT_USEC={_microseconds(budgets.WARDEN_STOP + budgets.SWEEP_LIMIT)}"]
        if changed and not self._is_stopping:
            self._ready = False
            said += ["RELOADING=1", f"MONOTONIC_USEC={_microseconds(now)}"]
        elif not self._ready and seen.settled and not self._is_stopping:
            self._ready = True
            said.append("READY=1")
        if not self._ready and not self._is_stopping and now - self._extended >= budgets.NOTIFY_PULSE:
            self._extended = now  # a load may take longer than any fixed limit (systemd/systemd#5868)
            said.append(f"EXTEND_TIMEOUT_USEC={_microseconds(budgets.NOTIFY_EXTENSION)}")
        if self._every and now - self._fed >= self._every:
            self._fed = now
            said.append("WATCHDOG=1")
        if seen.status != self._status:
            self._status = seen.status
            said.append(f"STATUS={seen.status}")
        return said


def _microseconds(seconds: float) -> int:
    return round(seconds * 1_000_000)


def status(state: str, reason: str, groups: Sequence[Mapping[str, Any]], gateway: str) -> str:
    """One line for `systemctl status`."""
    words = [_group(group) for group in groups]
    line = f"{state}: {reason}" if reason and state != "running" else state
    line += f"; {', '.join(words)}" if words else ""
    return " ".join((line + (f"; gateway {gateway}" if gateway else "")).split())


def _group(group: Mapping[str, Any]) -> str:
    if (fetching := group.get("fetching")) and fetching["of"]:
        return f"{group['name']} {group['state']} ({percent(fetching['bytes'], fetching['of'])} of a file)"
    told = [server.get("loading") for server in group.get("servers", [])]
    loads = [one for one in told if one and one.get("of")]
    if group["state"] == "running" or not loads:
        return f"{group['name']} {group['state']}"
    loaded = percent(sum(one["bytes"] for one in loads), sum(one["of"] for one in loads))
    return f"{group['name']} {group['state']} ({loaded} loaded)"


class Keeper(Protocol):
    """What is told of a keeper."""

    procs: Procs
    spec: EngineSpec | None
    stopping: str

    def engine(self) -> dict[str, Any]: ...

    def is_settled(self, groups: list[str]) -> bool: ...

    async def changed(self) -> None: ...


def look(keeper: Keeper) -> Seen:
    """The engine as it is now."""
    found = keeper.engine()
    groups = found["groups"]
    line = status(found["state"], found["reason"], groups, found["gateway"]["url"] or "")
    # A server that somebody else runs comes when it comes: no unit that is ordered after ours waits for it.
    ours = [group.name for group in keeper.spec.groups if not group.url] if keeper.spec else []
    settled = bool(groups) and keeper.is_settled(ours)
    return Seen(settled, keeper.stopping, line, keeper.spec)


async def run(keeper: Keeper, watchdog_s: float) -> None:
    """Tell it, until cancelled. Once this loop does not turn any more the manager hears nothing: that is the watchdog's
    point."""
    teller = Teller(watchdog_s)
    while True:
        if lines := teller.lines(look(keeper), time.monotonic()):
            keeper.procs.notify("\n".join(lines))
        with trio.move_on_after(teller.pause_s):
            await keeper.changed()
            if not keeper.stopping:
                await trio.sleep(budgets.NARRATION_PAUSE)  # a rebuild is six changes in four milliseconds
