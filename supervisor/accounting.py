"""Looking whether a plan came true: what the processes of a generation hold, and what its servers say. The hands; what is
made of it is the kind's (`kinds.ReadingBack`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from supervisor import budgets, listeners, logfiles
from supervisor.containment import MAY
from supervisor.kinds import ReadingBack, ServerState

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from supervisor.contract import GroupSpec
    from supervisor.devices.held import Held
    from supervisor.kinds import Kind
    from supervisor.life import Life
    from supervisor.planning import Ledger


async def keep(ledger: Ledger, spec: GroupSpec, kind: Kind, life: Life, changed: Callable[[], None]) -> None:
    """Look when it is ready, and then now and again, until it is gone or this is cancelled. A look that fails says
    nothing."""
    if not isinstance(kind, ReadingBack):
        return
    while not life.exited.is_set():
        with trio.move_on_after(budgets.READBACK_LIMIT):
            if await _look(ledger, spec, kind, life):
                changed()
        with trio.move_on_after(budgets.READBACK_LOOK):
            await life.exited.wait()


async def _look(ledger: Ledger, spec: GroupSpec, kind: ReadingBack, life: Life) -> bool:
    with_decisions = ledger.planned.spec if ledger.planned else _as_run(spec, ledger)
    memory = ledger.planned.memory if ledger.planned else {}
    held = await trio.to_thread.run_sync(_held, spec, life, abandon_on_cancel=True)
    log = await trio.to_thread.run_sync(_said, life, abandon_on_cancel=True)
    try:
        return ledger.note(await kind.read_back(with_decisions, memory, life.birth, held, log))
    except MAY:  # a kind's trouble with a page of numbers must not end the group
        return False


def _as_run(spec: GroupSpec, ledger: Ledger) -> GroupSpec:
    from attrs import evolve

    return evolve(spec, launches=tuple(ledger.as_run(launch) for launch in spec.launches))


def _held(spec: GroupSpec, life: Life) -> Mapping[str, Held]:
    """By role, of the servers that are loaded. Device memory is asked for only where the machine has a device."""
    from supervisor.devices.held import held
    from supervisor.devices.survey import survey

    found = {}
    for launch in spec.launches:
        is_loaded = life.servers.get(launch.role) is ServerState.READY
        if is_loaded and (pid := listeners.pid_of(life, launch.role)) is not None:
            found[launch.role] = pid
    seen = survey() if found else None
    lines = {one.pid: one for one in held(found.values(), seen)}
    return {role: lines[pid] for role, pid in found.items()}


def _said(life: Life) -> str:
    return "\n".join(logfiles.tail(life.log, lines=logfiles.START_LINES, since=life.log_start))
