"""What `queenright doctor` looks at: each check is cheap, says what it found in a sentence, and starts nothing."""

from __future__ import annotations

import os
import pwd
import time
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attrs import frozen

from supervisor import identity, kinds, locks, looking, resolving, units
from supervisor.advice import NEXT, troubles
from supervisor.contract import GENERATION_VARIABLE
from supervisor.errors import QueenrightError
from supervisor.screen import gateway_words
from supervisor.wording import amount

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from supervisor.config_shape import Config
    from supervisor.slot import Slot

SYSTEMD = Path("/run/systemd/system")


class Finding(StrEnum):
    """How good it is. Only `bad` makes the doctor's exit status 1."""

    OK = "ok"
    WARNING = "warning"
    BAD = "bad"


@frozen
class Check:
    """One thing that was looked at."""

    name: str
    finding: Finding
    text: str
    next_step: str = ""


def slot_check(slot: Slot) -> Check:
    """Ownership, permissions, filesystem, locks: as every start examines them."""
    try:
        there = slot.examine()
    except QueenrightError as error:
        return Check("slot", Finding.BAD, error.what, error.next_step)
    return Check("slot", Finding.OK, f"{slot.path} can be used" if there else f"{slot.path} is not there yet")


def space_check(slot: Slot) -> Check:
    """Whether the filesystem takes another file: without, records and events are lost, and no generation starts."""
    path = next(place for place in (slot.path, *slot.path.parents) if place.exists())
    found = os.statvfs(path)
    return space_of(str(path), blocks=found.f_bavail, inodes=found.f_favail if found.f_files else None)


def space_of(path: str, *, blocks: int, inodes: int | None) -> Check:
    """The same, from what is free to us (statvfs(3)). `inodes` is None where they are not counted, as on btrfs."""
    missing = "space" if blocks == 0 else "inode" if inodes == 0 else ""
    if not missing:
        return Check("disk", Finding.OK, "the slot's filesystem takes files")
    text = f"the filesystem of {path} has no {missing} left: records and events are not written, nothing can be started"
    return Check("disk", Finding.WARNING, text, "free some; records are then written by themselves")


def engine_checks(slot: Slot) -> Iterator[Check]:
    """What runs, and what of an earlier engine is still there."""
    snapshot = looking.with_files(looking.look(slot))
    for trouble in troubles(snapshot, time.time()):
        if trouble.kind in ("outside", "model file"):
            yield Check(f"{trouble.kind} {trouble.about}", Finding.WARNING, trouble.text, trouble.next_step)
    if snapshot["state"] == "down":
        if left := locks.held_generations(slot):
            text = f"no engine runs, but processes of an earlier one live: {', '.join(left)}"
            yield Check("engine", Finding.BAD, text, "`queenright stop` ends them")
        else:
            yield Check("engine", Finding.OK, "none runs, and nothing of an earlier one is left")
        return
    if snapshot["keeper"] is None and snapshot["state"] != "starting":
        next_step = f"it is replaced by itself; {_last_of_keepers(slot, snapshot['warden'])}"
        yield Check("engine", Finding.WARNING, snapshot["reason"], next_step)
    else:
        yield Check("engine", Finding.OK, f"an engine is {snapshot['state']}")
    if gateway := snapshot.get("gateway"):
        wrong = bool(gateway["reason"])
        finding = Finding.WARNING if wrong else Finding.OK
        yield Check("gateway", finding, gateway_words(gateway), NEXT["gateway"] if wrong else "")
    for group in snapshot["groups"]:
        if group["state"] == "failed":
            next_step = f"`queenright logs {group['name']} --start`, and `queenright retry {group['name']}` when mended"
            yield Check(f"group {group['name']}", Finding.BAD, group["reason"], next_step)
        for server in group["servers"]:
            for warning in (server.get("memory") or {}).get("warnings", ()):
                yield Check(f"memory of {server['role']}", Finding.WARNING, warning, NEXT["memory"])
    warden = (snapshot["warden"] or {}).get("pid")
    yield lifetime_check(warden or os.getpid())


def _last_of_keepers(slot: Slot, warden: dict[str, Any]) -> str:
    """Where to read on: one that was killed left no words."""
    if warden["last_words"]:
        return "`queenright logs keeper` has the last words"
    if warden["last_keeper"]:
        return f"{slot.warden_record} says of {warden['last_keeper']}"
    return "none ended before it"


def configuration_checks(config: Config) -> Iterator[Check]:
    """Binaries, models and flags of every group, as a start would find them."""
    running = _command_lines()
    for name, group in config.groups.items():
        try:
            spec = resolving.resolve_group(config, group)
        except QueenrightError as error:
            yield Check(f"configuration of {name}", Finding.BAD, error.what, error.next_step)
            continue
        models = ", ".join(launch.model for launch in spec.launches)
        yield Check(f"configuration of {name}", Finding.OK, f"{models} with {spec.pin}")
        if not spec.is_outside:  # in a container it has no mark of ours
            yield from _stranger_checks(name, [launch.path for launch in spec.launches], running)
        kind = kinds.find(group.kind)
        for advice in kind.advise(group, config.engine) if isinstance(kind, kinds.Advising) else ():
            finding = Finding.WARNING if advice.next_step else Finding.OK
            yield Check(f"{name}/{advice.role}", finding, advice.text, advice.next_step)


def _command_lines() -> dict[int, list[str]]:
    """Of all processes, by pid. Read once for all groups: one that hangs takes PROC_ANSWER, and a thread, each time."""
    read = ((pid, identity.proc_file_in_time(pid, "cmdline")) for pid in identity.pids())
    return {pid: [os.fsdecode(word) for word in line.split(b"\0")] for pid, line in read if line}


def _stranger_checks(group: str, paths: Sequence[str], running: Mapping[int, Sequence[str]]) -> Iterator[Check]:
    """Processes of no engine that were started with a model of ours: it is in memory twice then, or will be
    (NousResearch/hermes-agent#116249). What they hold counts in every plan as what is not free; nobody signals them."""
    real = {os.path.realpath(path) for path in paths if os.path.isabs(path) and os.path.isfile(path)}
    names = {os.path.basename(path) for path in (*paths, *real)}
    for pid, (program, *words) in running.items():
        try:
            near = [word for word in words if os.path.basename(word) in names]
            beside = os.readlink(f"{identity.PROC}/{pid}/cwd") if near else ""
        except OSError:  # gone, or another user's, of whom nobody here can tell whether it is an engine's
            continue
        found = next((word for word in near if os.path.realpath(os.path.join(beside, word)) in real), None)
        if found is not None and identity.marker(pid, GENERATION_VARIABLE) is None:
            holds = identity.resident_bytes(pid)
            text = f"pid {pid} ({os.path.basename(program)}), no engine's, was started with {found} too; it holds {amount(holds)}"
            next_step = "end it, or have it serve for all: a group of kind `attached` (docs/guides/other-engines.md)"
            yield Check(f"stranger beside {group}", Finding.WARNING, text, next_step)


def memory_checks(pid: int | str = "self") -> Iterator[Check]:
    """Host and devices, as a planner finds them. `pid` is in the control groups that an engine is in."""
    from supervisor.devices import fragmentation
    from supervisor.devices.remarks import remarks
    from supervisor.devices.survey import survey

    blocks = fragmentation.blocks_in(fragmentation.free_blocks())
    for one in remarks(survey(pid=pid), blocks, fragmentation.compaction_stalls()):
        yield Check(one.about, Finding.WARNING if one.next_step else Finding.OK, one.text, one.next_step)


def lifetime_check(pid: int) -> Check:
    """Whether something else ends the engine together with whoever started it: its control group tells."""
    path = units.cgroup_of(pid)
    user = f"user id {os.getuid()}"
    with suppress(KeyError):
        user = pwd.getpwuid(os.getuid()).pw_name
    return lifetime_of(path, user, lingers=not SYSTEMD.exists() or units.lingers())


def lifetime_of(path: str, user: str, *, lingers: bool) -> Check:
    """The same, from facts. systemd ends a unit with all that is in its control group (systemd.kill(5)), and a user's
    own manager with his last session unless he lingers (loginctl(1))."""
    found = units.units_of(path)
    foreign = [unit for unit in found if not unit.startswith(("user@", "session-", "init.scope", units.OURS))]
    if foreign:
        text = f"it is in the control group of {foreign[-1]}: a stop of that unit ends the engine for everybody"
        return Check(
            "lifetime", Finding.WARNING, text, "give the engine a unit of its own: `queenright run` as a service"
        )
    if found and found[-1] != "init.scope" and not lingers:
        text = f"it is in {found[-1]}, and {user} does not linger: it may end with the last session"
        return Check("lifetime", Finding.WARNING, text, f"loginctl enable-linger {user}")
    where = f"; it is in {found[-1]}" if found else ""
    return Check("lifetime", Finding.OK, f"no unit or session that we can see ends it by its own end{where}")
