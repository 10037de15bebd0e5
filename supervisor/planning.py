"""Planning a group before it is started: what it will take is decided and promised to it while nobody else on the machine
plans. The hands of `devices.promises`; what is decided is the kind's (`kinds.Planning`).

A promise is kept for as long as the group is wanted, over the deaths of its generations: what starts again takes the plan
it had, at once and without a look at the devices, for nobody else was promised its memory meanwhile. It is planned anew
when it was stopped, when it is another one, when memory is what it died of, and by a new keeper.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import trio
from attrs import evolve

from supervisor import budgets
from supervisor.devices import promises
from supervisor.devices.promises import Grant
from supervisor.errors import DoesNotFitError, EngineStartError, LockTimeoutError, SlotError
from supervisor.kinds import Planned, Planning

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from supervisor.contract import GroupSpec, LaunchSpec
    from supervisor.devices.reservations import Promise
    from supervisor.kinds import Kind

_leaving: dict[tuple[str, str], float] = {}
"""(slot, group) of this keeper's groups that are to stop, and the moment (monotonic) by which they begin to: their memory is
about to be free."""


NOTHING_FOUND: Final[Mapping[str, Any]] = {"held": None, "compared": [], "asked": [], "warnings": []}
"""Of a server that nobody has looked at."""

COMPARED: Final = ("as planned", "under")
"""Verdicts of a look that found something, and nothing wrong with it."""

BEFORE: Final = "at the start before: "
"""Begins a warning that is not of this generation."""


_one_at_a_time = trio.Lock()
"""Groups of one keeper wait for each other here, and not in threads: a hundred that wait for the book would have all that
trio lends, and the keeper could write nothing meanwhile. Nor do they count as others who go on planning."""


class _Held(NamedTuple):
    """A plan, what it is a plan of, and the promise; None where there is no book to write it in."""

    of: GroupSpec
    planned: Planned
    promise: Promise | None


class Ledger:
    """The plan and the promise of one group of this keeper."""

    def __init__(self, slot: Path, group: str) -> None:
        self._slot, self._group = slot, group
        self._held: _Held | None = None
        self._deciding: trio.CancelScope | None = None
        self._found: dict[str, dict[str, Any]] = {}
        self._warned: dict[str, list[str]] = {}
        """By role, what was wrong at the last start that somebody looked at, while no later one was looked at."""
        self._noted: Mapping[str, tuple[int, int]] = {}
        self._left: Promise | None = None
        """What an earlier keeper promised to the generation that was taken up."""
        self.trouble = ""
        """Why nothing is promised to it, though it runs; "" otherwise."""

    @property
    def planned(self) -> Planned | None:
        """The plan that it runs by; None before there is one, and for a kind that makes none."""
        return self._held.planned if self._held else None

    def memory(self, role: str) -> dict[str, Any]:
        """What is shown of a server: what was decided, the lines it rests on (None where its kind does not plan, or an
        earlier keeper did), and what was found since."""
        planned = self._held.planned.memory.get(role, {}) if self._held else {}
        context, sequences = self.windows.get(role, (None, None))
        found = self._found.get(role, NOTHING_FOUND)
        return {
            "context": context,
            "sequences": sequences,
            "binds": planned.get("binds"),
            "ledger": planned.get("ledger"),
            "estimate": planned.get("estimate"),
            "notes": planned.get("notes", []),
            **found,
            "warnings": [*self._warned.get(role, ()), *found["warnings"]],
        }

    def note(self, found: Mapping[str, Mapping[str, Any]]) -> bool:
        """What was found of the servers' memory, by role; whether it is news. A warning stays for as long as the
        generation lives, and after that until a start without it."""
        was = dict(self._found)
        for role, facts in found.items():
            warned = self._found.get(role, NOTHING_FOUND)["warnings"]
            fresh = [one for one in facts["warnings"] if one not in warned]
            self._found[role] = {**facts, "warnings": [*warned, *fresh]}
            if facts["warnings"] or any(one["verdict"] in COMPARED for one in facts["compared"]):
                self._warned.pop(role, None)  # this start says it itself, or is within the band
        return self._found != was

    def forget(self) -> None:
        """What was found was of a generation that is gone. What was wrong with it stays, until a start is without that."""
        for role, facts in self._found.items():
            if facts["warnings"]:
                self._warned[role] = [BEFORE + one for one in facts["warnings"]]
        self._found = {}

    def as_run(self, launch: LaunchSpec) -> LaunchSpec:
        """The launch with what was decided for it, where something was; and with the context that its server serves, where
        that turned out to be less (a server caps it at what the model was trained for, quietly)."""
        context, sequences = self.windows.get(launch.role, (launch.context, launch.sequences))
        for one in self._found.get(launch.role, NOTHING_FOUND)["asked"]:
            if one["what"] == "context per sequence" and 0 < (one["effective"] or 0) < context:
                context = one["effective"]
        return evolve(launch, context=context, sequences=sequences)

    @property
    def windows(self) -> Mapping[str, tuple[int, int]]:
        """Tokens per sequence and sequences of each role, as decided; also for a generation that an earlier keeper
        planned."""
        if self._held is None:
            return self._noted
        return {one.role: (one.context, one.sequences) for one in self._held.planned.spec.launches}

    def take_up(self, windows: Mapping[str, tuple[int, int]]) -> None:
        """What an earlier keeper left of its plan."""
        self._noted = dict(windows)

    async def plan(self, spec: GroupSpec, kind: Kind, generation_lock: Path) -> GroupSpec:
        """What to start for `spec`: itself, where its kind makes no plan, or its configuration wants none.

        Raises DoesNotFitError with the numbers, EngineStartError where the group is to stop before it is planned, and what
        `Planning.plan` raises. Nothing is promised then.
        """
        if not (isinstance(kind, Planning) and spec.is_planned):
            return spec
        if self._held is not None and self._held.of.runs_as(spec):
            return self._held.planned.spec
        self.release()
        with trio.CancelScope() as self._deciding:
            return await self._decide(spec, kind, generation_lock)
        raise EngineStartError("stopped before it was planned", "start it again")

    async def _decide(self, spec: GroupSpec, kind: Planning, generation_lock: Path) -> GroupSpec:
        attempt = _Attempt(self._slot, self._group, generation_lock)
        for step in promises.attempts(self._draining_until):
            # What is decided by the memory there is waits for all of it; what is not, only where there is too little.
            if step.predecessor_lives and not step.is_last and spec.is_open:
                await trio.sleep(budgets.MEMORY_LOOK)
                continue
            try:
                async with _one_at_a_time:
                    planned, promise = await trio.to_thread.run_sync(attempt.make, spec, kind, abandon_on_cancel=True)
                break
            except trio.Cancelled:
                attempt.abandon()
                raise
            except DoesNotFitError:
                if step.is_last:
                    raise
            await trio.sleep(budgets.MEMORY_LOOK)
        self.trouble = attempt.trouble
        self._held = _Held(spec, planned, promise)
        return planned.spec

    def _draining_until(self) -> float | None:
        """By when the last of the groups beside it begins to stop that are to; None where none is. What they hold is about
        to be free: that is no ground to refuse."""
        mine = (str(self._slot), self._group)
        return max((until for key, until in _leaving.items() if key != mine and key[0] == mine[0]), default=None)

    async def settle(self, generation_lock: Path) -> None:
        """The group has loaded: from here on the devices' own figures say what it holds."""
        held = self._held
        if held is None and not self._noted:  # nobody planned it
            return
        if held is not None and held.promise is None:
            return
        promise = held.promise if held else None

        def write() -> Promise | None:
            from supervisor.devices import reservations

            with reservations.planning(wait=budgets.MEMORY_SETTLE) as book:  # not to be cancelled, so not for long
                if promise is None:  # an earlier keeper made it, and died while this was loading
                    return book.settle_left(generation_lock)
                return book.settle(promise, promise.reservation.grants, generation_lock)

        while True:
            try:
                async with _one_at_a_time:
                    settled = await trio.to_thread.run_sync(write)
                break
            except LockTimeoutError as error:  # somebody goes on planning, or is stopped in the middle of it
                self.trouble = error.what
            except SlotError as error:  # it stays a promise, which others count twice: on the safe side
                self.trouble = error.what
                return
            await trio.sleep(budgets.PLANNING_WAIT)
        if settled is None:
            return
        if held is None and self._held is None:
            self._left = settled
        elif held is not None and self._held is held:
            self._held = held._replace(promise=settled)
        else:  # it was stopped meanwhile
            settled.release()

    def is_to_leave(self, within: float) -> None:
        """The group is to stop, and begins to within so many seconds: it owes answers until then."""
        _leaving[str(self._slot), self._group] = time.monotonic() + within

    def leaves(self) -> None:
        """The group is being stopped: a plan that is being made is given up."""
        self.is_to_leave(0.0)
        if self._deciding is not None:
            self._deciding.cancel()

    def release(self) -> None:
        """Nothing of the group runs, and it is not about to start again as it was."""
        _leaving.pop((str(self._slot), self._group), None)
        held, self._held, self._noted = self._held, None, {}
        if self._left is not None:
            self._left.release()
            self._left = None
        if held is not None and held.promise is not None:
            held.promise.release()


class _Attempt:
    """What runs in a thread that may be abandoned: what it has promised by then is taken back."""

    def __init__(self, slot: Path, group: str, generation_lock: Path) -> None:
        self._slot, self._group, self._generation_lock = slot, group, generation_lock
        self._turn = threading.Lock()
        self._promise: Promise | None = None
        self._is_abandoned = False
        self.trouble = ""

    def make(self, spec: GroupSpec, kind: Planning) -> tuple[Planned, Promise | None]:
        from supervisor.devices import reservations
        from supervisor.devices.survey import survey
        from supervisor.fitting import granted, untold

        try:
            with reservations.planning() as book:
                seen = survey()
                if why := untold(seen):
                    self.trouble = why
                    return _unplanned(spec, why), None
                planned = kind.plan(spec, granted(seen, book.live().values()))
                grants = [Grant(device, size) for device, size in planned.grants.items() if size]
                promise = book.reserve(self._slot, self._group, grants, generation_lock=self._generation_lock)
        except (SlotError, LockTimeoutError) as error:
            # Without a book, or with one that somebody keeps shut (he may be stopped), it is planned as if we were alone
            # here: an engine that could serve must not wait for another's sake.
            self.trouble = error.what
            seen = survey()
            return (_unplanned(spec, why) if (why := untold(seen)) else kind.plan(spec, seen)), None
        with self._turn:
            if not self._is_abandoned:
                self._promise = promise
                return planned, promise
        promise.release()
        return planned, None

    def abandon(self) -> None:
        with self._turn:
            self._is_abandoned = True
            promise, self._promise = self._promise, None
        if promise is not None:
            promise.release()


def _unplanned(spec: GroupSpec, why: str) -> Planned:
    """What is started where that cannot be told: nothing is refused and nothing reckoned, and it is started as it is written.
    Raises EngineStartError where that is what a plan was to find."""
    if spec.is_open:
        raise EngineStartError(
            f"what memory there is could not be told ({why}), and `auto` is decided by that",
            "`queenright doctor` says more; or give context and sequences as numbers",
        )
    return Planned(spec, {}, {})
