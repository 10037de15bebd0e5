"""What a generation is born with: ports and keys. And the handle on it while it lives."""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
from contextlib import suppress
from typing import TYPE_CHECKING

import trio
from attrs import evolve

from supervisor import evidence, identity, ports, records
from supervisor.errors import RecordError
from supervisor.kinds import Birth, Kind

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from supervisor.contract import GroupSpec
    from supervisor.logfiles import StartLog
    from supervisor.slot import Slot


class Life:
    """A generation while it lives. `log_start` is where its part of the log begins; `mark` tells what it was started
    as (`mark_of`); `exited`: its leader is dead.

    For naming what ends it: `was_ready`, the OOM kills counted before, and the processes it had when it became ready.
    """

    def __init__(self, birth: Birth, pid: int, log_start: int, mark: str, start_log: StartLog) -> None:
        self.birth, self.pid, self.log_start, self.mark, self.start_log = birth, pid, log_start, mark, start_log
        self.exited = trio.Event()
        self.was_ready = False
        self.oom: evidence.Count | None = None
        self.kin: set[int] = {pid}

    @property
    def port(self) -> int:
        """Where clients go."""
        return next(iter(self.birth.ports.values()))

    def family(self) -> list[int]:
        """Pids of the leader and all below it, now."""
        return list(self.each())

    def each(self) -> Iterator[int]:
        """The same one by one, the leader first: who has found what he looks for need not walk further."""
        yield self.pid
        yield from identity.below(self.pid)


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
    for name in kind.port_names(spec):
        chosen[name] = ports.choose(last_ports.get(name, remembered), others.union(chosen.values()))
        remembered = None  # it is that of the first name, where clients go
    first = next(iter(chosen.values()))
    if first != _remembered_port(slot, spec.name):
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


def known_birth(spec: GroupSpec, slot: Slot, generation: str, chosen: Mapping[str, int], warden_pid: int) -> Birth:
    """For a generation of this name and these ports. The client's key is made once and kept; the generation's can be
    told from the client's and the generation's name, so a keeper that takes over needs nothing more."""
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
    return Birth(generation, chosen, config, client_key, generation_key(client_key, generation), warden_pid)


def mark_of(spec: GroupSpec) -> str:
    """Short, and the same for two specs exactly where one generation could be of both (`GroupSpec.runs_as`)."""
    bounds = evolve(spec, grace_s=0.0, start_limit_s=0.0)
    return hashlib.sha256(json.dumps(records.unstructure(bounds), sort_keys=True).encode()).hexdigest()[:16]


def generation_key(client_key: str, generation: str) -> str:
    """The key that one generation alone accepts. Derived, so that it need not be kept anywhere else."""
    return hmac.new(client_key.encode(), generation.encode(), hashlib.sha256).hexdigest()[:32]
