"""Whether what listens on a generation's ports is the generation. Somebody else there would be handed prompts and key."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from supervisor import budgets, ports
from supervisor.errors import EngineStartError

if TYPE_CHECKING:
    from supervisor.life import Life


async def prove_proxy(life: Life) -> None:
    """Wait until its proxy listens. A 200 from whoever happens to listen there proves nothing: the listener must belong
    to this generation. Raises EngineStartError where it belongs to somebody else."""
    port, began, pause = life.port, trio.current_time(), budgets.READY_POLL_FIRST
    while True:
        owner = ports.owned_by(port, life.each())  # walked only when somebody listens
        if owner.owner is ports.Owner.OURS:
            return
        if owner.owner is ports.Owner.FOREIGN:
            raise EngineStartError(f"port {port} was taken by another program before the proxy could have it")
        patient = trio.current_time() - began > budgets.READY_POLL_LONG
        await trio.sleep(budgets.READY_POLL_MOST if patient else pause)
        pause = min(2 * pause, budgets.READY_POLL)


def refuse_impostors(life: Life) -> None:
    """Raises EngineStartError where another program has a port of it. A port on which nobody listens is an unloaded
    server's."""
    family = life.family()
    for name, port in life.birth.ports.items():
        if ports.owned_by(port, family).owner is ports.Owner.FOREIGN:
            raise EngineStartError(f"port {port} ({name}) was taken by another program")


def is_impostor(life: Life, role: str) -> bool:
    """Whether another program has the port of that server."""
    port = life.birth.ports.get(role)
    return port is not None and ports.owned_by(port, life.family()).owner is ports.Owner.FOREIGN


def pid_of(life: Life, role: str) -> int | None:
    """The process of the generation that listens on that server's port; None where none does, where another program has it
    too, or where that cannot be told."""
    port = life.birth.ports.get(role)
    return ports.owned_by(port, life.each()).pid if port else None
