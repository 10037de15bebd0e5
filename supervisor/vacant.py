"""A slot without an engine, for `queenright run`, which becomes its warden: what is there gives way to it, or is left alone.

As in `acquire`, nobody waits for anything while he holds build.lock.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from supervisor import budgets, journal, locks
from supervisor.errors import NoEngineError, OwnedElsewhereError
from supervisor.ladder import Rung
from supervisor.observing import View

if TYPE_CHECKING:
    from collections.abc import Callable

    from supervisor.contract import EngineSpec
    from supervisor.identity import Identity
    from supervisor.ladder import Decision
    from supervisor.slot import Slot


def take(slot: Slot, wanted: EngineSpec, *, program: str, say: Callable[[str], None]) -> locks.Hold:
    """Have the slot empty, and hold its build.lock, for a process that becomes the warden itself. What a dead engine
    left is removed first, and a warden that is proven to hang; and an engine that members built and that ours replaces
    whole is stopped (`ladder.gives_way`): after a SIGKILL of a whole unit they are often faster than its restart. For
    these two alone anything is waited for, without the lock.

    Raises OwnedElsewhereError, HeldError, SlotError, LockTimeoutError, or QueenrightError for what cannot be killed.
    """
    view = View(slot, wanted)
    deadline = time.monotonic() + budgets.HANDOFF_WAIT
    said, tries = False, 0
    while True:
        incumbent = None
        hold = locks.acquire(slot.build_lock, timeout=budgets.BUILD_LOCK_WAIT)
        try:
            decision = view.decide()
            ending = decision.rung is Rung.TAKE_OVER
            if ending or decision.rung is Rung.BUILD:
                journal.note_rung(slot, decision.rung.value, decision.reason, program)
            taken = view.take_over(decision) if ending else decision
            if taken.rung is Rung.BUILD:
                return hold
            if taken.rung in (Rung.BIND, Rung.EXTEND) and tries < budgets.HANDOFF_TRIES:
                incumbent = view.incumbent()
        except BaseException:
            hold.release()
            raise
        hold.release()
        if incumbent is not None:
            tries += 1
            _end_incumbent(slot, incumbent, program, say)
            deadline = time.monotonic() + budgets.HANDOFF_WAIT
            continue
        if taken.rung is Rung.HELD or view.unkillable:
            raise view.failure(taken, 0.0)
        if not (ending or view.silence.is_suspect) or time.monotonic() > deadline:
            raise _occupied(slot, taken)
        if not said:
            said = True
            say(f"{taken.reason}; {view.silence.describe()}: waiting for proof that it hangs")
        time.sleep(budgets.BUILD_LOCK_TRY)  # noqa: TID251 - polls a lock that has no event to wait for


def _end_incumbent(slot: Slot, warden: Identity, program: str, say: Callable[[str], None]) -> None:
    """Stop an engine that gives way to ours, and no other one. The caller has let go of build.lock: what comes to be in
    the slot meanwhile is looked at anew."""
    from supervisor import stopping

    say(
        f"taking over from the engine that members built (warden pid {warden.pid}): it is stopped once nothing is in flight,"
        f" in {budgets.HANDOFF_DRAIN:g} s at most; they come along"
    )
    with suppress(NoEngineError):  # gone by itself
        stopping.stop(slot, who=f"{program} (pid {os.getpid()})", drain_s=budgets.HANDOFF_DRAIN, only=warden)


def _occupied(slot: Slot, decision: Decision) -> OwnedElsewhereError:
    pids = ", ".join(map(str, locks.holders(slot.warden_lock))) or "unknown"
    step = "front ends can use that one as it is; `queenright stop` ends it"
    if decision.rung is Rung.EXTEND:
        step = "front ends that want more have it extended; `queenright stop` ends it"
    return OwnedElsewhereError(f"{slot.path} has an engine already (warden pid {pids}): {decision.reason}", step)
