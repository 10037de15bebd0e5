"""Tickets: how a process comes to an engine that runs without working out once more what it wants of it.

What a configuration comes to (programs, models, pins), and whether an engine covers it, depends on files and variables
alone. Who has found out leaves a ticket in the slot: all that was looked at, as stat(2) told it, and the contract that
covers it. Who finds everything as it was, and a keeper that serves that very contract, binds: `ladder.decide` is pure and
would say so again. Anything else, and any error, takes the full way (`acquire`), which has the words for it.

The full way takes 200 ms, most of them for importing libraries (measured); so this module imports none. Locks, their
order and the joining are those of `acquire`.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from supervisor import budgets, control, identity, journal, locks, membership, records
from supervisor._version import __version__
from supervisor.errors import QueenrightError
from supervisor.identity import Identity
from supervisor.slot import Slot

if TYPE_CHECKING:
    from collections.abc import Iterator

    from supervisor.contract import EngineSpec
    from supervisor.membership import Membership

VERSION: Final = 1
KEPT: Final = 8
"""Tickets in a slot: configurations that share it, in environments that differ."""

VARIABLES: Final = ("HOME", "PATH", "XDG_CACHE_HOME", "XDG_STATE_HOME")
"""With all of ours (QUEENRIGHT_...), what finding programs, models and slots depends on."""

QUIET_NS: Final = 2_000_000_000
"""Nanoseconds. What changed this shortly before it was looked at may change again within one tick of its timestamps, or
have changed after it was read: no ticket is left then (as in workers.pins, and in git's index)."""


class Seat(NamedTuple):
    """A place at an engine that runs: we are a member, and `role` is served there. `warden` is a pidfd, the caller's;
    `seen` what the keeper said of itself."""

    membership: Membership
    url: str
    key: str
    model: str
    warden: int
    seen: dict[str, Any]


def bind(slot: Slot, config: Path, role: str, *, program: str) -> Seat | None:
    """Become a member by a ticket; None where there is none that holds. Never raises but for what is a bug."""
    try:
        ticket = _valid(slot, config) if slot.examine() else None
        if ticket is None or locks.is_held(Slot(Path(ticket["home"])).warden_lock) is not False:
            return None  # nothing known; or an engine lives in the private slot, which comes first
        with locks.held_briefly(slot.build_lock, timeout=budgets.TICKET_LOCK_WAIT) as held:
            return _bind(slot, ticket, role, program) if held else None
    except (QueenrightError, OSError, LookupError, TypeError, ValueError):
        return None


def _bind(slot: Slot, ticket: dict[str, Any], role: str, program: str) -> Seat | None:
    """Under build.lock, where an engine lives that is just as the ticket says, and serves the role now."""
    seen = control.ask(slot, "status", brief=True)
    is_warm = ticket["root"] in seen["warm"]
    if seen["contract"] != ticket["contract"] or seen["state"] == "stopping" or is_warm is not ticket["keep_warm"]:
        return None
    serving, model = seen["serving"][role], ticket["models"][role]
    key = slot.group_key(serving["group"]).read_text(encoding="ascii").strip()
    pid, ticks = seen["warden"]["pid"], seen["warden"]["ticks"]
    warden = identity.open_pidfd(Identity(identity.boot_id(), identity.pid_namespace(), pid, ticks))
    try:
        if locks.is_held(slot.warden_lock) is not True:
            raise ValueError
        member = membership.join(slot, program=program)
    except BaseException:
        os.close(warden)
        raise
    reason = "an engine that serves all that is wanted is there, as a ticket says"
    journal.note_rung(slot, "bind", reason, program)
    return Seat(member, serving["url"], key, model, warden, seen)


def leave(slot: Slot, config: Path, spec: EngineSpec, began_ns: int) -> None:
    """Leave a ticket, after the full way, for the next one that comes with this configuration. `began_ns` is from before
    it was read (time.time_ns). Nothing is left where that would not be safe or is not possible."""
    from supervisor import ladder
    from supervisor.contract import EngineSpec

    with suppress(QueenrightError, OSError, LookupError, TypeError, ValueError):
        contract = control.ask(slot, "status", brief=True)["contract"]
        if not ladder.covers(spec, records.structure(contract, EngineSpec)):
            return  # ours is a private one, or it is being changed just now
        if (of_kinds := _of_kinds(spec)) is None:
            return
        ticket = {
            "circumstances": _circumstances(config),
            "files": {path: _look(path) for path in map(str, (*_everywhere(config), *of_kinds))},
            "contract": contract,
            "models": {launch.role: launch.model for group in spec.groups for launch in group.launches},
            "keep_warm": spec.keep_warm,
            "root": spec.root,
            "home": str(slot.private(spec.root).path),
        }
        if all(seen is None or max(seen[-2:]) < began_ns - QUIET_NS for seen in ticket["files"].values()):
            others = [each for each in _read(slot) if each["circumstances"] != ticket["circumstances"]]
            kept = [ticket, *others[: KEPT - 1]]
            records.write(slot.tickets, {"tickets": kept}, version=VERSION, durable=False)


def _valid(slot: Slot, config: Path) -> dict[str, Any] | None:
    """The ticket for this configuration, if everything is as it was."""
    now = _circumstances(config)
    for ticket in _read(slot):
        if ticket["circumstances"] == now:
            return ticket if all(_look(path) == seen for path, seen in ticket["files"].items()) else None
    return None


def _read(slot: Slot) -> list[dict[str, Any]]:
    found = records.read_fields(slot.tickets, version=VERSION)
    return list(found["tickets"]) if found else []


def _circumstances(config: Path) -> dict[str, Any]:
    """What tells one ticket from another, and is no file."""
    ours = sorted(name for name in os.environ if name.startswith("QUEENRIGHT_"))
    variables = {name: os.environ[name] for name in (*VARIABLES, *ours) if name in os.environ}
    root = os.path.realpath(config.parent)  # which names the private slot
    return {
        "config": str(config),
        "root": root,
        "variables": variables,
        "program": [__version__, sys.executable, *sys.path],
    }


def _everywhere(config: Path) -> Iterator[str]:
    """The file; and the directories that another program or package of the same name would have to be put into."""
    yield str(config)
    yield from (folder for folder in sys.path if folder)
    yield from (folder for folder in os.environ.get("PATH", os.defpath).split(os.pathsep) if os.path.isabs(folder))
    yield os.path.dirname(__file__)


def _of_kinds(spec: EngineSpec) -> list[Path] | None:
    """What they looked at; None where one of them does not say, as one that was made for an earlier version."""
    from supervisor import kinds

    found: list[Path] = []
    for group in spec.groups:
        look = getattr(kinds.find(group.kind), "looked_at", None)
        if look is None:
            return None
        found += look(group)
    return found


def _look(path: str) -> list[int] | None:
    try:
        seen = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return [seen.st_dev, seen.st_ino, seen.st_mode, seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns]
