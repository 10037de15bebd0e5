"""Ending a generation: let go, SIGTERM, SIGKILL. The sweep and the last word are the warden's."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import trio

from supervisor import budgets
from supervisor.containment import MAY, words

if TYPE_CHECKING:
    from collections.abc import Callable

    from supervisor.errand import Shape
    from supervisor.life import Life
    from supervisor.procs import Procs


async def end(life: Life, shape: Shape, procs: Procs, complain: Callable[[str], None]) -> bool:
    """Bounded by the group's grace; whether it took SIGKILL. `complain` is told what went wrong with the letting go."""
    generation = life.birth.generation
    with trio.CancelScope(shield=True, deadline=trio.current_time() + budgets.GROUP_STOP):
        with trio.move_on_after(shape.spec.grace_s):
            await _release(life, shape, complain)
            if not life.exited.is_set():
                procs.kill(generation, signal.SIGTERM)
                await life.exited.wait()
            return False
        procs.kill(generation, signal.SIGKILL, everybody=True)
        return True
    return False


async def _release(life: Life, shape: Shape, complain: Callable[[str], None]) -> None:
    """Have it unload, for at most UNLOAD_LIMIT, and no longer than its leader lives."""
    async with trio.open_nursery() as nursery:

        async def until_exited() -> None:
            await life.exited.wait()
            nursery.cancel_scope.cancel()

        nursery.start_soon(until_exited)
        with trio.move_on_after(budgets.UNLOAD_LIMIT):
            try:
                await shape.kind.release(life.birth)
            except MAY as error:  # whatever it is, SIGTERM is next
                complain(f"unload failed: {words(error)}")
        nursery.cancel_scope.cancel()
