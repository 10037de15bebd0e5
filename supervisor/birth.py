"""The birth of a generation: its ports and keys, its files, its start."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
from collections.abc import Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import attrs
import trio
from attrs import evolve

from supervisor import environment, evidence, logfiles, notes, ports, records, undoing
from supervisor.devices import fragmentation
from supervisor.errors import EngineStartError, QueenrightError, RecordError
from supervisor.kinds import Birth, Command, Kind
from supervisor.life import Life

if TYPE_CHECKING:
    from collections.abc import Container, Iterator

    from supervisor.contract import GroupSpec
    from supervisor.planning import Ledger
    from supervisor.procs import Procs
    from supervisor.slot import Slot


class Draft(NamedTuple):
    """A generation whose files are written, and that is not started yet."""

    birth: Birth
    command: Command
    mark: str
    windows: Mapping[str, tuple[int, int]]
    undo: Path
    """Written where the command has one."""


async def prepare(
    spec: GroupSpec, kind: Kind, slot: Slot, last_ports: Mapping[str, int], warden_pid: int, ledger: Ledger
) -> Draft:
    """Plan it, choose ports and write the files. Raises QueenrightError or OSError; no file is left then."""
    birth = new_birth(spec, kind, slot, last_ports, warden_pid)
    planned = await ledger.plan(spec, kind, slot.generation_lock(spec.name, birth.generation))
    command = kind.command(planned, birth)
    undo = slot.generation_undo(spec.name, birth.generation)
    with _files_of(command, undo):
        for path, text in command.files.items():
            await trio.to_thread.run_sync(records.write_text_private, path, text)
        if command.undo:
            text = undoing.text_of(command.undo, environment_of(command))
            await trio.to_thread.run_sync(records.write_text_private, undo, text)
        birth = evolve(birth, log_start=logfiles.size(birth.log))
        logfiles.make_room(slot.logs, spec.name)
    return Draft(birth, command, mark_of(spec), ledger.windows, undo)


async def start(draft: Draft, spec: GroupSpec, slot: Slot, procs: Procs) -> Life:
    """Have the warden start it; its news can be followed. Raises SpawnRefusedError; no file is left then."""
    birth, command = draft.birth, draft.command
    procs.follow(birth.generation)
    with _files_of(command, draft.undo):
        spawned = await procs.spawn(
            gen=birth.generation,
            group=spec.name,
            argv=list(command.argv),
            env=environment_of(command),
            lock=slot.generation_lock(spec.name, birth.generation),
            log=birth.log,
            note=notes.LifeNote(birth.ports, birth.log_start, draft.mark, windows=draft.windows).plain(),
            cwd=command.workdir,
        )
    life = Life(slot, spec.name, birth, spawned.pid, draft.mark)
    life.oom = evidence.oom_kills(spawned.pid)
    life.stalls = fragmentation.compaction_stalls()
    return life


def environment_of(command: Command) -> dict[str, str]:
    """What it is started with."""
    return {**environment.clean(os.environ), **environment.STEADY, **command.environment}


def remove_files(command: Command) -> None:
    """There are keys in them."""
    for path in command.files:
        with suppress(OSError):
            path.unlink()


def clear_unborn(slot: Slot, known: Container[str]) -> None:
    """Remove what a keeper wrote for a generation that was never started, or that nobody remembers: keys are in it. What is
    to be undone outside stays until it was: an earlier engine may have left it, and it may be run where nothing was started."""
    with suppress(OSError):
        for path in slot.groups.iterdir():
            parts = path.name.split(".")
            if len(parts) == 3 and parts[2] in ("json", "keys") and parts[1] not in known:
                path.unlink(missing_ok=True)


@contextmanager
def _files_of(command: Command, undo: Path) -> Iterator[None]:
    """Of a generation that is not born after all they are removed."""
    try:
        yield
    except (QueenrightError, OSError):
        remove_files(command)
        undo.unlink(missing_ok=True)
        raise


_given: dict[str, tuple[int, ...]] = {}
"""The ports of each group of this keeper. One that was given to a group is nobody else's, though nobody listens there yet:
of a hundred groups that start together two would choose the same one in four starts of ten."""


def new_birth(spec: GroupSpec, kind: Kind, slot: Slot, last_ports: Mapping[str, int], warden_pid: int) -> Birth:
    """For a generation that is about to be started. A port stays what it was, unless somebody took it: that of the proxy
    also over engines, since a program under `queenright exec` has its URL for good.

    Raises QueenrightError when there is no port or the key cannot be written.
    """
    chosen: dict[str, int] = {}
    remembered = _remembered_port(slot, spec.name)
    others = {port for group, theirs in _given.items() if group != spec.name for port in theirs}
    for number, name in enumerate(kind.port_names(spec)):  # what is remembered is the first one's, where clients go
        wish = last_ports.get(name, remembered if number == 0 else None)
        chosen[name] = ports.choose(wish, others.union(chosen.values()))
    if spec.key_file:  # at each start, for it may be another by now; who takes up a generation has the copy
        records.write_text_private(slot.group_key(spec.name), _foreign_key(Path(spec.key_file)) + "\n")
    first = next(iter(chosen.values()))
    if first != remembered:
        with suppress(RecordError):  # then the next engine has another port
            records.write_text_private(slot.group_port(spec.name), f"{first}\n")
    return known_birth(spec, slot, secrets.token_hex(8), chosen, warden_pid)


def _remembered_port(slot: Slot, group: str) -> int | None:
    try:
        port = int(slot.group_port(group).read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
    return port if 0 < port < 65536 else None


def forget_port(slot: Slot, group: str) -> None:
    """Somebody else is there: the next generation is to have another one."""
    with suppress(OSError):
        slot.group_port(group).unlink()


def known_birth(
    spec: GroupSpec, slot: Slot, generation: str, chosen: Mapping[str, int], warden_pid: int, log_start: int = 0
) -> Birth:
    """For a generation of this name and these ports. The client's key is made once and kept; the generation's can be
    told from the client's and the generation's name, so a keeper that takes over needs nothing more. A server that
    somebody else runs has a key of its own."""
    _given[spec.name] = tuple(chosen.values())
    key_path = slot.group_key(spec.name)
    try:
        client_key = key_path.read_text(encoding="ascii").strip()
    except (OSError, ValueError):  # a generation that has another key will not know this one, and is rebuilt
        client_key = ""
    if not client_key:
        client_key = secrets.token_urlsafe(24)
        records.write_text_private(key_path, client_key + "\n")
    config = slot.generation_config(spec.name, generation)
    return Birth(
        generation, chosen, config, client_key, generation_key(client_key, generation), warden_pid,
        slot.group_log(spec.name), log_start, spec.url,
    )  # fmt: skip


def _foreign_key(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, ValueError) as error:
        raise EngineStartError(f"the key in {path} cannot be read: {error}", "correct `key_file`") from None


def mark_of(spec: GroupSpec) -> str:
    """Short, and the same for two specs exactly where one generation could be of both (`GroupSpec.runs_as`)."""
    return hashlib.sha256(json.dumps(_told(spec.essence), sort_keys=True).encode()).hexdigest()[:16]


def _told(value: Any) -> Any:
    """As plain data, without what is as it is by default: a field that a later version adds changes no mark, so an upgraded
    keeper takes its groups up. And without what two equal specs may differ in."""
    if (defaults := _defaults(type(value))) is not None:  # type: ignore[arg-type]  # every class is hashable
        told = ((name, getattr(value, name), default) for name, default in defaults)
        return {name: _told(one) for name, one, default in told if one != default}
    if isinstance(value, Mapping):
        return {str(key): _told(one) for key, one in value.items()}
    return [_told(one) for one in value] if isinstance(value, tuple | list) else value


@cache
def _defaults(kind: Any) -> tuple[tuple[str, Any], ...] | None:
    """Name and default of each field that counts; None for what is no class of ours."""
    if not attrs.has(kind):
        return None
    return tuple((one.name, _default(one.default)) for one in attrs.fields(kind) if one.eq)


def _default(found: Any) -> Any:
    factory = getattr(found, "factory", None)
    return factory() if factory is not None else found


def generation_key(client_key: str, generation: str) -> str:
    """The key that one generation alone accepts. Derived, so that it need not be kept anywhere else."""
    return hmac.new(client_key.encode(), generation.encode(), hashlib.sha256).hexdigest()[:32]
