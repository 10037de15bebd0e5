"""A group in plain data: for `status`, and for its record."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from supervisor import identity, listeners, records
from supervisor.contract import State
from supervisor.devices import fragmentation
from supervisor.kinds import PROXY, ServerState
from supervisor.lifecycle import UP

if TYPE_CHECKING:
    from supervisor.contract import GroupSpec
    from supervisor.inquest import Past
    from supervisor.life import Life
    from supervisor.nursing import Nurse
    from supervisor.planning import Ledger
    from supervisor.preparing import Fetch
    from supervisor.probing import Prober


class View(Protocol):
    """What of a group is described."""

    spec: GroupSpec
    state: State
    reason: str
    since: float
    past: Past
    log_tail: list[str]
    nurse: Nurse | None
    ledger: Ledger
    fetch: Fetch

    @property
    def unwritten(self) -> str: ...

    @property
    def is_settled(self) -> bool: ...

    @property
    def is_draining(self) -> bool: ...


def describe(group: View) -> dict[str, Any]:
    """No secrets."""
    nurse, past = group.nurse, group.past
    life = nurse.life if nurse else None
    prober = nurse.prober if nurse and group.state in UP else None
    proxy = _proxy(life, prober) if life else None
    return {
        "name": group.spec.name,
        "state": group.state.value,
        "settled": group.is_settled,
        "draining": group.is_draining,
        "reason": _reason(group, life),
        "since": group.since,
        "fetching": group.fetch.describe(),
        "generation": life.birth.generation if life else None,
        "url": life.birth.url if life else None,
        "proxy": proxy,
        "servers": _servers(group.spec, nurse, prober, group.ledger),
        "restarts": past.history.restarts,
        "reloads": past.losses.restarts,
        "cause": records.unstructure(past.cause) if past.cause else None,
        "unwatched": (nurse.unwatched if nurse else "") or None,
        "unwritten": group.unwritten or None,
        "log_tail": group.log_tail if group.state is State.FAILED else [],
    }


def _proxy(life: Life, prober: Prober | None) -> dict[str, Any]:
    ticks = life.leader.ticks if life.leader else None
    return {"pid": life.pid, "ticks": ticks, "port": life.port, "health": prober and prober.describe(PROXY)}


def _reason(group: View, life: Life | None) -> str:
    """While it loads, with what the kernel says of a load that stands still for want of contiguous memory. The count is the
    machine's: it is an explanation, and decides nothing."""
    if life is None or life.was_ready or group.state not in (State.STARTING, State.REBUILDING):
        return group.reason
    stalls = fragmentation.stalls_text(life.stalls, fragmentation.compaction_stalls())
    return "; ".join(filter(None, (group.reason, stalls)))


def _servers(spec: GroupSpec, nurse: Nurse | None, prober: Prober | None, ledger: Ledger) -> list[dict[str, Any]]:
    life = nurse.life if nurse else None
    servers = []
    for launch in spec.launches:
        if spec.is_outside:
            pid = prober.subjects[launch.role].pid if prober else None
        else:
            pid = listeners.pid_of(life, launch.role) if life else None
        state = life.servers.get(launch.role) if life else None
        servers.append(
            {
                "role": launch.role,
                "model": launch.model,
                "pid": pid,
                "port": life.birth.ports.get(launch.role) if life else None,
                "state": (state or ServerState.DOWN).value,
                "rss_bytes": identity.resident_bytes(pid) if pid else None,
                "memory": ledger.memory(launch.role),
                "loading": nurse and nurse.loads.describe(launch.role),
                "health": prober and prober.describe(launch.role),
            }
        )
    return servers
