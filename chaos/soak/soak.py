"""The soak itself: rounds of load, a fault now and then, and what must hold after each."""

from __future__ import annotations

import random
import time
from contextlib import ExitStack, suppress
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple

from chaos import observer
from chaos.interrupting import undisturbed
from chaos.observer import NotObservedError
from chaos.soak import faults, invariants, ledger, telling
from chaos.soak.faults import Ground, changed_beyond
from chaos.soak.ledger import Ledger
from chaos.soak.load import DEADLINE, Load
from chaos.soak.pauses import Pauses
from chaos.soak.receipts import Receipts
from chaos.soak.seen import Gatherer, Kill, Round, usages
from chaos.soak.verdicts import Judgement, Verdict, worst
from chaos.stage import GONE_LIMIT
from supervisor import control, kinds
from supervisor.errors import QueenrightError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from chaos.observer import Sighting
    from chaos.soak.faults import Fault, Hit
    from chaos.soak.seen import Counted, Ended, Usage
    from supervisor.contract import GroupSpec
    from supervisor.slot import Slot

RECOVERY_LIMIT = 120.0  # budget: from a fault to an engine that is whole and answers; a stop is noticed in 5 s
KILLS_IN_MIND = 10
"""Kills that a request is held against: it lasts two minutes at most."""
SETTLE_LIMIT = 10.0  # budget: for what is on its way out (a visitor's lock, a sweep) before it counts as left over


class Told(NamedTuple):
    """One round, as it goes into the report."""

    number: int
    at_s: float
    fault: str
    pids: tuple[int, ...]
    recovery_s: float | None
    """From the fault until the engine was whole and had answered each kind of request that began after it."""
    outcomes: Mapping[str, int]
    latency_s: Mapping[str, tuple[float, float]]
    """Median and most of the requests that were answered in the round, by way and kind."""
    took_s: Mapping[str, float]
    """The round's own time, by what it was spent on."""
    processes: int | None
    """Of the slot."""
    judgements: Sequence[Judgement]
    usage: Mapping[str, Usage] | None
    paused_s: float = 0.0
    """Of `recovery_s`, what the restart policy asked for."""
    skipped: str = ""
    """The fault that was due and cannot be done here, with the reason."""

    @property
    def verdict(self) -> Verdict:
        return worst(self.judgements)


class Soak:
    """Owner of the run. `groups` are those of the configuration. `plant` is for the tests of the soak itself: it is called before each
    round is judged, with the round as it was seen, and gives what is judged in its place."""

    def __init__(
        self,
        slot: Slot,
        config: Path,
        groups: Sequence[GroupSpec],
        *,
        streams: int = 4,
        every: int = 5,
        names: Sequence[str] = faults.DEFAULT,
        seed: int = 0,
        tell: Callable[[Told], None] = lambda _: None,
        plant: Callable[[Round], Round] = lambda seen: seen,
        receipts: Sequence[Path] = (),
        gateway_deadline_s: float = DEADLINE,
    ) -> None:
        self._slot, self._every, self._names, self.groups = slot, every, names, groups
        self._planned = {group.name: planned_servers(group) for group in groups}
        self._carriers = {launch.role: group.name for group in groups for launch in group.launches}
        self._chance = random.Random(seed)
        self._tell, self._plant = tell, plant
        self._gatherer = Gatherer(slot)
        self.before_a_look: Callable[[], None] = lambda: None
        """For the tests of the soak itself: what they plant must be found by looking."""
        alone = {launch.role for group in groups for launch in group.launches if launch.sequences == 1}
        self.load = Load(config, streams, self._gateway, gateway_deadline_s=gateway_deadline_s, repeatable=alone)
        self._receipts, self._ledger, self._pauses = Receipts(receipts), Ledger(), Pauses(slot)
        self.kills: list[Kill] = []
        self.explained: dict[int, list[str]] = {}
        """Requests that were broken off, by the number of the kill that explains it."""
        self.requests: dict[str, dict[str, int]] = {}
        """How many of each way and kind ended how."""
        self._url = ""
        self.rounds: list[Told] = []
        self.ends: list[Judgement] = []
        self._undo = ExitStack()
        """How the fault that is on is undone."""
        self._config = config
        self.began = time.monotonic()

    def run(self, rounds: int) -> Verdict:
        """So many rounds, then the end. Whatever stops it in between, faults are healed and nothing is left running."""
        try:
            self.load.start()
            observer.wait_until("the engine is whole", self._whole, RECOVERY_LIMIT)
            turns = faults.schedule(self._names, self._every)
            for number in range(1, rounds + 1):
                name = next(turns)
                self._round(number, faults.FAULTS[name] if name else None)
        except NotObservedError as error:
            self.ends.append(Judgement("recovers", Verdict.BROKEN, str(error), len(self.rounds) + 1))
        except BaseException as error:
            why = "interrupted" if isinstance(error, KeyboardInterrupt) else f"{type(error).__name__}: {error}"
            words = f"{len(self.rounds)} of {rounds}: {why}"
            self.ends.append(Judgement("all rounds were done", Verdict.UNKNOWN, words))
            raise
        finally:
            with undisturbed():  # a second Ctrl-C, or the SIGTERM behind a SIGHUP, leaves nothing stopped or running
                self._end()
        return self.verdict

    @property
    def verdict(self) -> Verdict:
        """Of everything that was judged so far."""
        return worst([*(one for told in self.rounds for one in told.judgements), *self.ends])

    # --- one round --------------------------------------------------------------------------------------------------

    def _round(self, number: int, fault: Fault | None) -> None:
        started = began = time.monotonic()
        before = observer.wait_until("the engine is whole", self._whole, RECOVERY_LIMIT)
        self.load.visit(number)
        visited = time.monotonic()
        ground = Ground(self._slot, self._config, before, self._chance, self._undo, tuple(self.load.pids))
        skipped = fault.obstacle(ground) if fault else ""
        hit = None
        if fault is not None and not skipped:
            self._pauses.since_the_last_time()
            began = time.monotonic()
            hit = self._break(fault, ground, number)
        observer.wait_until(
            "requests of each role are answered on each way",
            lambda: self.load.served_since(began, each_role=hit is not None) or None,
            RECOVERY_LIMIT,
        )
        answered = time.monotonic()
        if hit and "warden" in hit.touched:  # its gateway's socket went with it: there is one again once it answers
            self.kills[-1] = self.kills[-1]._replace(until=answered)
        recovery = answered - began if hit else None
        ended = self.load.ended()
        seen = self._plant(self._look(number, ended))
        judgements = invariants.judge(seen)
        self._settle(ended)
        told = Told(
            number,
            time.monotonic() - self.began,
            fault.name if fault and hit else "",
            tuple(victim.pid for victim in hit.victims) if hit else (),
            recovery,
            telling.count(ended),
            telling.latencies(ended),
            {"visit": visited - started, "answers": answered - visited, "look": time.monotonic() - answered},
            len(seen.sighting.everything) if seen.sighting else None,
            [*judgements, *fault_judgements(number, before, seen.sighting, hit)],
            seen.usage,
            self._pauses.since_the_last_time() if hit else 0.0,
            f"{fault.name}: {skipped}" if fault and skipped else "",
        )
        self.rounds.append(told)
        self._tell(told)

    def _break(self, fault: Fault, ground: Ground, number: int) -> Hit:
        """Do it, wait for what is to be seen while it lasts, heal it, and have the engine whole again. It is in the kill log
        from the beginning on: until it is healed it may explain whatever is broken off."""
        began = time.monotonic()
        hit = fault.invoke(ground)
        pids = tuple(victim.pid for victim in hit.victims)
        self.kills.append(Kill(began, inf, number, fault.name, pids, hit.touched))
        if not hit.heals_first:
            self._recovered(hit)
        observer.wait_until(f"what `{fault.name}` waits for", lambda: hit.until() or None, RECOVERY_LIMIT)
        self._undo.close()
        self._recovered(hit)
        self.kills[-1] = self.kills[-1]._replace(until=time.monotonic())
        return hit

    def _settle(self, ended: list[Ended]) -> None:
        """They were judged: what was broken off goes into the kill log, receipts are forgotten."""
        self._receipts.settle(ended)
        for one in ended:
            outcomes = self.requests.setdefault(f"{one.way} {one.kind}", {})
            outcomes[one.outcome] = outcomes.get(one.outcome, 0) + 1
            for number, kill in enumerate(self.kills):
                if one.outcome in ("interrupted", "unreachable") and kill.carried(one, self._carriers):
                    self.explained.setdefault(number, []).append(one.id)

    def _look(self, number: int, ended: list[Ended]) -> Round:
        """Once what is on its way out is out, or the time for that is over: then as it is."""
        self.before_a_look()
        deadline = time.monotonic() + SETTLE_LIMIT
        while True:
            seen = self._see(number, ended)
            calm = all(verdict is Verdict.HOLDS for _, verdict, *_ in invariants.judge(seen._replace(ended=())))
            if calm or time.monotonic() > deadline:
                return seen
            time.sleep(observer.POLL)

    def _see(self, number: int, ended: list[Ended]) -> Round:
        self._receipts.read()
        current = self._gatherer.generations()
        sighting = observer.look(self._slot)
        return Round(
            number,
            self._planned,
            self._carriers,
            sighting,
            self._gatherer.marked(),
            current | self._gatherer.generations(),
            self._gatherer.zombies(),
            self._gatherer.member_locks(),
            self.load.pids,
            self._gatherer.engines_beside(),
            ended,
            self.kills[-KILLS_IN_MIND:],
            usages(sighting),
            promises=self._gatherer.promises(),
            **self._requests(ended),
        )

    def _requests(self, ended: list[Ended]) -> dict[str, Any]:
        """What is seen of the load beside what ended."""
        return {
            "open": self.load.open(),
            "served": self._receipts.of(ended),
            "keeps_receipts": self._receipts.are_kept,
            "strays": self._receipts.strays(self.load.known, ended),
            "controls": self.load.controls,
            "ledger": self._counted(),
        }

    def _counted(self) -> Sequence[Counted] | None:
        """The gateway's own counts beside its callers'."""
        if not self.load.gateway.is_asked:
            return ()
        try:
            page, asked_at, read_at = ledger.fetch(self.load.gateway.url)
        except OSError:
            return None
        ended, under_way = self.load.gateway.uncounted()
        self._ledger.note(ended)
        return self._ledger.reckon(page, asked_at, read_at, under_way)

    def _whole(self) -> Sighting | None:
        """What there is, where nothing is missing."""
        self._gatherer.generations()
        seen = observer.look(self._slot)
        there = all(g in seen.leaders and n in (0, len(seen.servers.get(g, ()))) for g, n in self._planned.items())
        return seen if there and seen.keeper and seen.warden else None

    def _recovered(self, hit: Hit) -> None:
        """Whoever was to end has ended, and the engine is whole without him."""

        def seen() -> bool | None:
            found = self._whole()
            return None if found is None or (hit.must_end and found.everything & set(hit.victims)) else True

        observer.wait_until("the engine is whole again", seen, RECOVERY_LIMIT)

    def _gateway(self) -> str | None:
        """Its URL, as last heard: "" where the configuration has none, None while it is not there yet."""
        with suppress(control.ControlError):
            found = control.ask(self._slot, "status", brief=True)
            if found["contract"] is not None and not found["contract"]["gateway"]["enabled"]:
                return ""  # its state says so only once it was looked at
            self._url = found["gateway"]["url"] or self._url
        return self._url or None

    # --- the end ----------------------------------------------------------------------------------------------------

    def _end(self) -> None:
        """Heal, leave, and look whether anything stayed."""
        from supervisor import stopping

        try:
            self._undo.close()
            self.ends += self._last_requests()
            self.ends += invariants.flat([told.usage for told in self.rounds])
            self.ends.append(self._nothing_left())
            self.ends.append(self._no_promise_left())
        finally:
            self.load.kill()
            with suppress(QueenrightError):  # it went with its members, as it should
                stopping.stop(self._slot, who="the end of the soak")

    def _last_requests(self) -> list[Judgement]:
        """Those that were still open, once nobody asks any more: none may be open then, and the counts must be equal."""
        self.load.calm()
        deadline = time.monotonic() + SETTLE_LIMIT
        ended = self.load.ended()
        while True:
            self._receipts.read()
            slot: dict[str, Any] = {
                "sighting": None,
                "marked": None,
                "current": (),
                "zombies": None,
                "member_locks": None,
            }
            rest: dict[str, Any] = {"front_ends": (), "engines_beside": (), "usage": None}
            kills = self.kills[-KILLS_IN_MIND:]
            seen = Round(
                0, self._planned, self._carriers, ended=ended, kills=kills, **slot, **rest, **self._requests(ended)
            )
            # Nobody asks any more: whatever is open now will never end.
            seen = self._plant(seen._replace(open=[(identifier, max(over, 1.0)) for identifier, over in seen.open]))
            found = invariants.judge(seen, invariants.OF_REQUESTS)
            if all(one.verdict is Verdict.HOLDS for one in found) or time.monotonic() > deadline:
                self._settle(ended)
                self.load.leave()
                return found
            time.sleep(observer.POLL)

    def _no_promise_left(self) -> Judgement:
        left = self._gatherer.promises()
        if left is None:
            return Judgement("no promise is left", Verdict.UNKNOWN, "the book of promises could not be read")
        words = f"memory is promised to {', '.join(left)}" if left else ""
        return Judgement("no promise is left", Verdict.BROKEN if left else Verdict.HOLDS, words)

    def _nothing_left(self) -> Judgement:
        def gone() -> bool | None:
            return True if not observer.look(self._slot).everything and not observer.held_locks(self._slot) else None

        try:
            observer.wait_until("nothing is left after the last member", gone, GONE_LIMIT)
        except NotObservedError as error:
            left = [one.pid for one in observer.look(self._slot).everything]
            return Judgement(
                "nothing is left", Verdict.BROKEN, f"{error}; pids {left}, {observer.held_locks(self._slot)}"
            )
        marked = self._gatherer.marked()
        if marked is None:
            return Judgement("nothing is left", Verdict.UNKNOWN, "the processes of this machine could not be looked at")
        orphans = [f"pid {who.pid}" for who, _ in marked]
        verdict = Verdict.BROKEN if orphans else Verdict.HOLDS
        return Judgement("nothing is left", verdict, ", ".join(orphans))


def planned_servers(group: GroupSpec) -> int:
    """That stand behind the group's proxy; 0 where there is none, and its leader serves itself, or watches who does."""
    return len(group.launches) if kinds.find(group.kind).port_names(group)[0] == kinds.PROXY else 0


def fault_judgements(number: int, before: Sighting, after: Sighting | None, hit: Hit | None) -> list[Judgement]:
    """What must hold of the fault itself, or of there having been none: whoever it did not touch is the same process; and
    what it says of itself."""
    if after is None:
        return [Judgement("the rest is untouched", Verdict.UNKNOWN, "the slot could not be looked at", number)]
    changed = changed_beyond(hit.touched if hit else (), before, after)
    verdict = Verdict.BROKEN if changed else Verdict.HOLDS
    found = [Judgement("the rest is untouched", verdict, f"replaced: {', '.join(changed)}" if changed else "", number)]
    if hit is not None:
        try:
            wrong = hit.wrong()
            verdict = Verdict.BROKEN if wrong else Verdict.HOLDS
        except Exception as error:  # noqa: BLE001 - a checker that crashed has found out nothing
            verdict, wrong = Verdict.UNKNOWN, f"{type(error).__name__}: {error}"
        found.append(Judgement("the fault is met as it must be", verdict, wrong, number))
    return found
