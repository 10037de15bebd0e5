"""What a keeper leaves with the warden for the next one: of a group, and of a generation. It is data of whatever version
its writer was, so what is read is what we know of it, and the rest is as in a new one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from supervisor import records, restart
from supervisor.causes import Cause
from supervisor.errors import RecordError
from supervisor.evidence import Count
from supervisor.inquest import Past

if TYPE_CHECKING:
    from collections.abc import Mapping

    from supervisor.life import Life


def key(group: str) -> str:
    """Under which a group's note stands."""
    return f"group:{group}"


class GroupNote(NamedTuple):
    """What outlasts generations. `failed`: why it was given up, "" where it was not."""

    past: Past
    ports: Mapping[str, int]
    failed: str = ""

    def plain(self) -> dict[str, Any]:
        """As it is left."""
        past = self.past
        return {
            "history": records.unstructure(past.history),
            "losses": records.unstructure(past.losses),
            "ports": dict(self.ports),
            "failed": self.failed,
            "cause": records.unstructure(past.cause) if past.cause else None,
        }


def of_group(note: Mapping[str, Any] | None) -> GroupNote:
    """Read what an earlier keeper left; that of a new group where none did."""
    note, new = note or {}, Past()
    past = Past(
        noted_history(note.get("history"), new.history),
        noted_history(note.get("losses"), new.losses),
        _noted_cause(note.get("cause")),
    )
    return GroupNote(past, dict(note.get("ports", {})), note.get("failed") or "")


class LifeNote(NamedTuple):
    """What it takes to take a generation up. `mark`: what it was started as (`birth.mark_of`); `windows`: what was decided for
    it (`planning.Ledger.windows`)."""

    ports: Mapping[str, int]
    log_start: int
    mark: str
    ready: bool = False
    oom: Count | None = None
    windows: Mapping[str, tuple[int, int]] = {}
    since: float | None = None
    """When it became what it is, in seconds of the epoch, of one that serves."""

    def plain(self) -> dict[str, Any]:
        """As it is left."""
        return {
            "ports": dict(self.ports),
            "log_start": self.log_start,
            "ready": self.ready,
            "spec": self.mark,
            "oom": list(self.oom) if self.oom else None,
            "windows": {role: list(pair) for role, pair in self.windows.items()},
            "since": self.since,
        }


def on_life(life: Life, *, ready: bool, windows: Mapping[str, tuple[int, int]], since: float | None = None) -> LifeNote:
    """To leave of a generation that lives."""
    return LifeNote(life.birth.ports, life.log_start, life.mark, ready, life.oom, windows, since)


def of_life(note: Mapping[str, Any] | None) -> LifeNote:
    """Read what was left of a generation with its start, or later."""
    note = note or {}
    oom = Count(*note["oom"]) if note.get("oom") else None
    windows = {str(role): (int(pair[0]), int(pair[1])) for role, pair in (note.get("windows") or {}).items()}
    since = float(note["since"]) if note.get("since") else None
    return LifeNote(
        dict(note["ports"]), int(note["log_start"]), str(note["spec"]), bool(note.get("ready")), oom, windows, since
    )


def noted_history(noted: object, otherwise: restart.History) -> restart.History:
    """A history that an earlier keeper left: what it does not say is as in a new one, what we do not know is let go.
    `otherwise` where there is none to read."""
    if not isinstance(noted, dict):
        return otherwise
    new = records.unstructure(restart.History())
    try:
        return records.structure({name: noted.get(name, new[name]) for name in new}, restart.History)
    except RecordError:
        return otherwise


def _noted_cause(noted: object) -> Cause | None:
    """None where there is none that we know."""
    try:
        return records.structure(noted, Cause) if noted is not None else None
    except RecordError:
        return None
