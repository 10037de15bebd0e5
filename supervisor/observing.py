"""What a process that wants an engine sees of a slot: the observation that the ladder decides on.

It starts nothing; what a dead or hanging engine left is ended here, for the rung that says so (`View.take_over`).
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from attrs import evolve

from supervisor import control, holding, ladder, leftovers, locks, membership, records, silence
from supervisor.contract import EngineSpec, State
from supervisor.control import ControlError
from supervisor.errors import HeldError, LockTimeoutError, QueenrightError, SlotError, UnkillableError
from supervisor.ladder import Decision, Observation, Rung

if TYPE_CHECKING:
    from supervisor.identity import Identity
    from supervisor.membership import Membership
    from supervisor.slot import Slot


class View:
    """The slot as one process sees it while it tries: what one look tells, and what only several do."""

    def __init__(
        self, slot: Slot, wanted: EngineSpec, *, own: Membership | None = None, overflows: bool = False
    ) -> None:
        self.slot, self.wanted, self.own, self.overflows = slot, wanted, own, overflows
        self.silence = silence.Silence()
        self.unkillable = False
        """Whether leftovers outlived an attempt to kill them."""
        self.served: EngineSpec | None = None
        self.warm: list[str] = []
        """Configuration roots that want the engine to outlive its members."""

    def decide(self) -> Decision:
        """Look, and decide."""
        return ladder.decide(self.observe())

    def observe(self) -> Observation:
        """Look at the slot; starts nothing. The locks say what lives, the keeper says what it serves."""
        self.served = None
        alive = locks.is_held(self.slot.warden_lock)
        seen = Observation(self.wanted, alive, overflows=self.overflows, hold=_hold(self.slot))
        if not alive:
            self.silence.broken()
            left = self._leftovers() if alive is False else ()
            return evolve(seen, leftovers=left, unkillable=self.unkillable)
        began = time.monotonic()
        try:
            snapshot = control.ask(self.slot, "status", brief=True)
        except ControlError as error:
            if error.listening:
                self.silence.look(self.slot, began)
            return evolve(seen, hung=self.silence.proof)
        self.silence.broken()
        if (contract := snapshot["contract"]) is not None:
            self.served = records.structure(contract, EngineSpec)
        self.warm = list(snapshot.get("warm", []))  # an older keeper knows of none
        fits = self.served is None or ladder.covers(self.wanted, self.served)
        return evolve(
            seen,
            stopping=snapshot["state"] == State.STOPPING,
            served=self.served,
            others=0 if fits else self.others(),  # a look at each member, which who binds need not pay
        )

    def others(self) -> int | None:
        """Live members but for the one who looks; None when they cannot be counted. Only the handle that was given
        counts as ours: another one in this process may well be of somebody who wants something else."""
        try:
            found = membership.count(self.slot)
        except SlotError:
            return None
        ours = self.own is not None and self.own.slot == self.slot and self.own.is_only_one
        return found - 1 if ours else found

    def incumbent(self) -> Identity | None:
        """The warden of the engine that the last look saw, where that gives way to ours (`ladder.gives_way`). The caller
        has build.lock, so that it is the same one still."""
        if self.served is None or not ladder.gives_way(self.served, self.wanted) or holding.is_held(self.slot):
            return None
        from supervisor import stopping

        return stopping.find_warden(self.slot)

    def take_over(self, decision: Decision) -> Decision:
        """End a warden that hangs, or what a dead one left; what is to be done then. The caller has build.lock."""
        if self.silence.warden is not None:
            silence.end(self.slot, self.silence.warden)
            return decision._replace(rung=Rung.WAIT)  # for its lock to fall
        leftovers.clear(self.slot)
        self.unkillable = bool(self._leftovers())
        after = self.decide()
        return decision._replace(rung=Rung.BUILD) if after.rung is Rung.BUILD else after

    def failure(self, decision: Decision, waited: float) -> QueenrightError:
        """The error of who waited in vain."""
        if decision.rung is Rung.HELD:
            return HeldError(f"{self.slot.path} is {decision.reason}", "`queenright release` ends that")
        if self.unkillable:
            pids = tuple(process.pid for process in leftovers.find(self.slot))
            return UnkillableError(f"{self.slot.path}: {decision.reason}", "`ps` shows it, probably in state D", pids)
        seen = f" ({self.silence.describe()})" if self.silence.is_kept else ""
        return LockTimeoutError(f"{decision.reason}, for {waited:g} s{seen}", "`queenright stop` ends it")

    def _leftovers(self) -> tuple[str, ...]:
        left = locks.held_generations(self.slot)
        return (*left, *(f"pid {process.pid}" for process in leftovers.find(self.slot)))


def _hold(slot: Slot) -> str:
    """Who holds the slot empty, in words; empty where nobody does."""
    hold = holding.find(slot)
    if hold is None:
        return ""
    since = time.strftime(" since %Y-%m-%d %H:%M", time.localtime(hold.since)) if hold.since else ""
    return f"{hold.describe()}{since}"
