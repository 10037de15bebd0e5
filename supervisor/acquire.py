"""Carries out the ladder: the one place where a process comes to an engine, under build.lock."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from attrs import frozen

from supervisor import budgets, control, ladder, leftovers, locks, logfiles, membership, records, stopping, wardens
from supervisor.contract import EngineSpec
from supervisor.control import ControlError
from supervisor.errors import (
    EngineStartError,
    LockTimeoutError,
    NoEngineError,
    OwnedElsewhereError,
    QueenrightError,
)
from supervisor.ladder import Decision, Observation, Rung
from supervisor.membership import Membership

if TYPE_CHECKING:
    from collections.abc import Callable

    from supervisor.slot import Slot


@frozen
class Acquired:
    """An engine to use: we are a member, and stay one until `membership.leave()`."""

    membership: Membership
    decision: Decision


def observe(slot: Slot, wanted: EngineSpec) -> Observation:
    """Look at the slot; starts nothing. The locks say what lives, the keeper says what it serves."""
    alive = locks.is_held(slot.warden_lock)
    if not alive:
        left = [f"pid {process.pid}" for process in leftovers.find(slot)] if alive is False else []
        return Observation(wanted, alive, leftovers=(*leftovers.held(slot), *left))
    try:
        snapshot = control.ask(slot, "status")
    except ControlError:
        return Observation(wanted, alive)
    contract = snapshot["contract"]
    served = records.structure(contract, EngineSpec) if contract is not None else None
    return Observation(wanted, alive, stopping=snapshot["state"] == "stopping", served=served)


def acquire(slot: Slot, wanted: EngineSpec, *, program: str, say: Callable[[str], None] = lambda _: None) -> Acquired:
    """Get an engine that serves what is wanted, and become a member of it. It may still be loading.

    Blocks for at most budgets.HANDOFF_WAIT, and what it takes to get build.lock and to end a start that failed. `say`
    hears what is waited for.
    Raises SlotError, LockTimeoutError, OwnedElsewhereError (there is an engine, and it is not for us), or
    EngineStartError.
    """
    slot.prepare()
    deadline = time.monotonic() + budgets.HANDOFF_WAIT
    said = ""
    while True:
        with locks.acquire(slot.build_lock, timeout=budgets.BUILD_LOCK_WAIT):
            decision = ladder.decide(observe(slot, wanted))
            if decision.rung is Rung.BIND:
                return Acquired(membership.join(slot, program=program), decision)
            if decision.rung is Rung.BUILD:
                try:
                    return Acquired(_build(slot, wanted, program), decision)
                except EngineStartError as error:
                    failure = error
        if decision.rung is Rung.BUILD:
            raise _after_stopping(slot, failure) from failure  # build.lock is free again: a stop may take seconds
        if decision.rung is Rung.REFUSE:
            raise OwnedElsewhereError(
                f"the engine in {slot.path} is not for us: {decision.reason}",
                "`queenright status` shows what it serves; `queenright stop` ends it",
            )
        if time.monotonic() > deadline:
            raise LockTimeoutError(f"{decision.reason}, for {budgets.HANDOFF_WAIT:g} s", "`queenright stop` ends it")
        if decision.reason != said:
            said = decision.reason
            say(said)
        time.sleep(budgets.BUILD_LOCK_TRY)  # noqa: TID251 - polls a lock that has no event to wait for


def _build(slot: Slot, wanted: EngineSpec, program: str) -> Membership:
    """Join first, so that the engine never sees itself without a member; then start it and wait for its first word.

    All of it within CONTROL_WAIT: build.lock is held meanwhile.
    """
    deadline = time.monotonic() + budgets.CONTROL_WAIT
    member = membership.join(slot, program=program)
    try:
        write_contract(slot, wanted)
        log_start = logfiles.size(slot.keeper_log)
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
            if control.ask(slot, "status", limit=left)["contract"] is not None:
                return
        except ControlError as error:
            if not error.listening and locks.is_held(slot.warden_lock) is False:
                break
        time.sleep(budgets.READY_POLL)  # noqa: TID251 - the keeper tells of itself once it can
    words = logfiles.last_words(logfiles.tail(slot.keeper_log, lines=20, since=log_start))
    raise EngineStartError(
        f"the keeper of {slot.path} did not start: {words or 'it said nothing'}", f"see {slot.keeper_log}"
    )


def _after_stopping(slot: Slot, failure: EngineStartError) -> EngineStartError:
    """End what a failed start left, unless somebody has come to use it since: it was only slow then. Returns the error
    to raise, which says so when the ending failed as well."""
    try:
        if membership.count(slot) > 0:
            return failure
        stopping.stop(slot, who="a builder whose engine did not start")
    except NoEngineError:
        return failure
    except QueenrightError as error:
        return EngineStartError(
            f"{failure.what}; and what was started cannot be ended: {error.what}", failure.next_step
        )
    return failure
