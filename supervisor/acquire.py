"""Carries out the ladder: the one place where a process comes to an engine, under build.lock.

Nobody waits for another lock while he holds build.lock, nor for a model to load: whoever has to wait lets go of it and
looks anew.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from supervisor import budgets, control, journal, ladder, locks, logfiles, membership, records
from supervisor.control import ControlError
from supervisor.errors import EngineStartError, NoEngineError, OwnedElsewhereError, QueenrightError
from supervisor.ladder import Decision, Rung
from supervisor.observing import View

if TYPE_CHECKING:
    from collections.abc import Callable

    from supervisor.contract import EngineSpec
    from supervisor.membership import Membership
    from supervisor.slot import Slot

UNDECIDED = frozenset({Rung.WAIT, Rung.HELD})


class Acquired(NamedTuple):
    """An engine to use, in `slot`: we are a member there, and stay one until `membership.leave()`."""

    membership: Membership
    decision: Decision
    slot: Slot


def acquire(
    slot: Slot,
    wanted: EngineSpec,
    *,
    program: str,
    say: Callable[[str], None] = lambda _: None,
    own: Membership | None = None,
) -> Acquired:
    """Get an engine that serves what is wanted, and become a member of it. It may still be loading.

    It is the one in `slot`, or, where that is another's and in use, one in the private slot of the configuration that
    `wanted.root` is the directory of: `Acquired.slot` says which. Whoever is a member already, and looks again, gives
    that handle as `own`: it does not count as somebody else's use, and is given back once the new one is there.

    Blocks for at most budgets.HANDOFF_WAIT in each of the two, and what it takes to get build.lock and to end a start
    that failed. `say` hears what is waited for, and that the engine is a private one.
    Raises SlotError, LockTimeoutError, HeldError, OwnedElsewhereError (there is an engine, and it is not for us),
    QueenrightError (what a dead engine left cannot be killed), or EngineStartError.
    """
    home = slot.private(wanted.root) if wanted.root else None
    found = _at_home(home, wanted, program, own) if home is not None else None
    if found is None:
        view = View(slot, wanted, own=own, overflows=home is not None)
        member, decision = _climb(view, program, say)
        found = Acquired(member, decision, slot) if member is not None else None
        if found is None and home is not None:
            say(f"{decision.reason}; going on beside it, in {home.path}")
            found = _overflow(slot, home, decision, wanted, program, say, own)
        elif found is None:
            raise OwnedElsewhereError(
                f"the engine in {slot.path} is not for us: {decision.reason}",
                "`queenright status` shows what it serves; `queenright stop` ends it",
            )
    if own is not None:
        own.leave()
    return found


def _at_home(home: Slot, wanted: EngineSpec, program: str, own: Membership | None) -> Acquired | None:
    """The engine in our private slot, if one lives there that will do: while it lives, no second one is built for the
    same contract, though the first slot may be free by now."""
    if locks.is_held(home.warden_lock) is not True:
        return None
    with locks.acquire(home.build_lock, timeout=budgets.BUILD_LOCK_WAIT):
        view = View(home, wanted, own=own)
        decision = view.decide()
        if decision.rung is not Rung.BIND:
            return None
        _note(home, decision, program)
        return Acquired(_bind(view, program), decision, home)


def _overflow(
    slot: Slot,
    home: Slot,
    why: Decision,
    wanted: EngineSpec,
    program: str,
    say: Callable[[str], None],
    own: Membership | None,
) -> Acquired:
    """The same in the private slot."""
    member, decision = _climb(View(home, wanted, own=own), program, say)
    if member is None:
        raise OwnedElsewhereError(
            f"neither the engine in {slot.path} nor the private one in {home.path} is for us: {why.reason}; "
            f"and of the private one: {decision.reason}",
            f"`queenright status` shows what they serve; `queenright stop --slot {home.path}` ends the private one",
        )
    return Acquired(member, why._replace(reason=f"{why.reason}; {decision.rung}: {decision.reason}"), home)


def _climb(view: View, program: str, say: Callable[[str], None]) -> tuple[Membership | None, Decision]:
    """Climb until there is an engine, and join it; or until there is none for us here: OVERFLOW or REFUSE."""
    slot = view.slot
    slot.prepare()
    deadline = time.monotonic() + budgets.HANDOFF_WAIT
    said = ""
    while True:
        with locks.acquire(slot.build_lock, timeout=budgets.BUILD_LOCK_WAIT):
            decision = view.decide()
            if decision.rung not in UNDECIDED or decision.reason != said:
                _note(slot, decision, program)
            try:
                member, decision = _carry_out(view, decision, program)
                failure = None
            except EngineStartError as error:
                failure = error
        if failure is not None:
            raise _after_stopping(view, failure) from failure  # build.lock is free again: a stop may take seconds
        if decision.rung not in UNDECIDED:
            return member, decision
        # From here on without the lock: a keeper that is silent is asked for seconds, and others want to look, too.
        while decision.rung in UNDECIDED:
            if time.monotonic() > deadline:
                raise view.failure(decision, budgets.HANDOFF_WAIT)
            if decision.reason != said:
                said = decision.reason
                say(said)
            time.sleep(budgets.BUILD_LOCK_TRY)  # noqa: TID251 - polls a lock that has no event to wait for
            decision = view.decide()


def _carry_out(view: View, decision: Decision, program: str) -> tuple[Membership | None, Decision]:
    """One rung, under build.lock: the membership it led to, if any, and what is to be done now."""
    taken = decision
    if decision.rung is Rung.TAKE_OVER:
        taken = view.take_over(decision)
    if taken.rung is Rung.BIND:
        return _bind(view, program), decision
    if taken.rung is Rung.BUILD:
        return _build(view.slot, view.wanted, program), decision
    if taken.rung in (Rung.EXTEND, Rung.REPLACE):
        return _configure(view, taken, program)
    return None, taken


def _note(slot: Slot, decision: Decision, program: str) -> None:
    journal.note_rung(slot, decision.rung.value, decision.reason, program)


def _bind(view: View, program: str) -> Membership:
    """Join, and have the keeper know whether our configuration wants the engine kept warm."""
    member = membership.join(view.slot, program=program)
    keep = view.wanted.keep_warm
    if keep is not (view.wanted.root in view.warm):
        with suppress(ControlError):  # its keeper is being replaced; the next one to bind says it again
            control.ask(view.slot, "warm", root=view.wanted.root, keep=keep)
    return member


def _configure(view: View, decision: Decision, program: str) -> tuple[Membership | None, Decision]:
    """Join first, so that the engine does not see itself without a member; then have it serve the contract."""
    slot, wanted = view.slot, view.wanted
    contract = wanted
    if decision.rung is Rung.EXTEND and view.served is not None:
        contract = ladder.extended(view.served, wanted)
    member = membership.join(slot, program=program)
    try:
        who = f"{program} (pid {os.getpid()})"
        control.ask(slot, "configure", contract=records.unstructure(contract), who=who)
        if decision.rung is Rung.REPLACE:
            for root in view.warm:  # those who wanted the other engine to be kept
                if root != wanted.root:
                    control.ask(slot, "warm", root=root, keep=False)
    except ControlError as error:
        member.leave()
        return None, Decision(Rung.WAIT, f"{decision.reason}, and its keeper was asked to change that: {error.what}")
    except BaseException:
        member.leave()
        raise
    return member, decision


def _build(slot: Slot, wanted: EngineSpec, program: str) -> Membership:
    """Join first, so that the engine never sees itself without a member; then start it and wait for its first word.

    All of it within CONTROL_WAIT: build.lock is held meanwhile.
    """
    deadline = time.monotonic() + budgets.CONTROL_WAIT
    member = membership.join(slot, program=program)
    try:
        write_contract(slot, wanted)
        log_start = logfiles.size(slot.keeper_log)
        from supervisor import wardens  # who binds needs none of it

        wardens.start_detached(slot, deadline)
        wait_for_keeper(slot, deadline, log_start)
    except BaseException:
        member.leave()
        raise
    return member


def write_contract(slot: Slot, wanted: EngineSpec) -> None:
    """Leave word of what is to run, for the first keeper of the slot. Raises RecordError; nothing was started then."""
    records.write(slot.contract_record, wanted, version=records.CONTRACT_VERSION)


def wait_for_keeper(slot: Slot, deadline: float, log_start: int) -> None:
    """Until the keeper knows its contract and says so. Raises EngineStartError with what it last said in its log after
    byte `log_start`. `deadline` is on `time.monotonic()`."""
    while (left := deadline - time.monotonic()) > 0:
        try:
            if control.ask(slot, "status", limit=left, brief=True)["contract"] is not None:
                return
        except ControlError as error:
            if not error.listening and locks.is_held(slot.warden_lock) is False:
                break
        time.sleep(budgets.READY_POLL)  # noqa: TID251 - the keeper tells of itself once it can
    words = logfiles.last_words(logfiles.tail(slot.keeper_log, lines=20, since=log_start))
    raise EngineStartError(
        f"the keeper of {slot.path} did not start: {words or 'it said nothing'}", f"see {slot.keeper_log}"
    )


def _after_stopping(view: View, failure: EngineStartError) -> EngineStartError:
    """End what a failed start left, unless somebody has come to use it since: it was only slow then. Returns the error
    to raise, which says so when the ending failed as well."""
    from supervisor import stopping

    try:
        if view.others() != 0:
            return failure
        stopping.stop(view.slot, who="a builder whose engine did not start")
    except NoEngineError:
        return failure
    except QueenrightError as error:
        return EngineStartError(
            f"{failure.what}; and what was started cannot be ended: {error.what}", failure.next_step
        )
    return failure
