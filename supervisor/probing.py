"""The hands of supervisor.health: looks at each process of one generation once a second, and says when one must go.

One task for the proxy and one for each server, so that a silent one delays nobody's look. Each look reads the process's
state and CPU time, then asks it. What fails on our side (no descriptor, /proc unreadable) becomes UNKNOWN here and
counts against nobody. After one verdict that kills, no more is said: the next generation gets a prober of its own.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final

import trio

from supervisor import budgets, health, identity, listeners
from supervisor.containment import MAY
from supervisor.health import FATAL, Evidence, Judgement, Limits, Record, Verdict
from supervisor.kinds import PROXY, Answer, Kind, ServerState

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from supervisor.contract import GroupSpec
    from supervisor.life import Life

TICKS: Final = os.sysconf("SC_CLK_TCK")
CANARY_SHARE: Final = 0.4
"""Of the wedge limit, for the answer to a canary. One is asked at half of it: its silence is known before the end."""


class Subject:
    """What is known of one process. `pid` is found anew whenever its server changed its state."""

    def __init__(self, name: str, limits: Limits) -> None:
        self.name, self.limits = name, limits
        self.pid: int | None = None
        self.record = Record()
        self.judgement = Judgement(Verdict.UNKNOWN)
        self.in_flight: int | None = None
        self.progress: int | None = None
        self.closer: str | None = None
        self.closer_answer = Answer.UNKNOWN
        self.canary = Answer.UNKNOWN
        self.asking: set[str] = set()
        """Questions on suspicion that are under way: one of each sort at most."""
        self._ticks: dict[int, int] = {}
        self._looked_at: float | None = None

    def look(self, now: float, closely: bool) -> tuple[bool | None, bool | None]:
        """(stopped, computing), from /proc. `closely`: with all that is below the process, and every thread's state."""
        if self.pid is None or (usage := identity.usage_of(self.pid)) is None:
            self._ticks.clear()
            return None, None
        pids = [self.pid, *(below.pid for below in identity.descendants(self.pid))] if closely else [self.pid]
        found = {pid: seen.cpu_ticks for pid in pids if (seen := identity.usage_of(pid)) is not None}
        spent = sum(ticks - self._ticks[pid] for pid, ticks in found.items() if pid in self._ticks)
        known, elapsed = self.pid in self._ticks, now - (now if self._looked_at is None else self._looked_at)
        self._ticks, self._looked_at = found, now
        computing = spent >= budgets.BURN_SHARE * elapsed * TICKS if known and elapsed > 0 else None
        if closely and computing is False and any(identity.waits_for_a_turn(pid) for pid in pids):
            computing = True
        # `t` is also where a process traced by strace(1) is half of its time; that one goes on.
        return usage.state == "T" or (usage.state == "t" and not computing), computing


class Prober:
    """Watches one generation. `is_up`: whether the group is past its start; until then its start limit alone judges, and only
    a stopped process is told of. `tell` is called once, with a reason, when something must be killed; `changed` when a
    verdict changed."""

    def __init__(
        self,
        spec: GroupSpec,
        kind: Kind,
        life: Life,
        *,
        is_up: Callable[[], bool],
        tell: Callable[[str], None],
        changed: Callable[[], None],
        limits: Limits | None = None,
    ) -> None:
        self.spec, self.kind, self.life = spec, kind, life
        self.is_up, self.tell, self.changed = is_up, tell, changed
        limits = limits or Limits.with_wedge(spec.wedge_limit_s, spec.stall_limit_s)
        self.subjects = {PROXY: Subject(PROXY, limits.of_a_proxy())}
        self.subjects |= {launch.role: Subject(launch.role, limits) for launch in spec.launches}
        self._told = False
        self._settled = trio.current_time() + spec.start_period_s

    # --- what others ask and tell -----------------------------------------------------------------------------------

    def note_activity(self, role: str, in_flight: int, progress: int) -> None:
        """From the kind's watch; see kinds.Activity."""
        if (subject := self.subjects.get(role)) is None:
            return
        subject.in_flight, subject.progress = in_flight, progress
        known = [s for s in self.subjects.values() if s.name != PROXY and s.in_flight is not None]
        proxy = self.subjects[PROXY]
        proxy.in_flight = sum(s.in_flight or 0 for s in known)
        proxy.progress = sum(s.progress or 0 for s in known)

    def forget_activity(self) -> None:
        """Nobody tells of it any more: unknown is neither idle nor stuck."""
        for subject in self.subjects.values():
            subject.in_flight = subject.progress = None
            subject.record = subject.record._replace(in_flight=None, progress=None, quiet_for=0.0, idle_for=0.0)

    @property
    def in_flight(self) -> int | None:
        """Requests that the generation owes an answer; None unless that is known of all its servers."""
        owed = [subject.in_flight for subject in self.subjects.values() if subject.name != PROXY]
        return None if None in owed else sum(number or 0 for number in owed)

    def describe(self, name: str) -> dict[str, Any] | None:
        """Verdict and evidence of a subject, for status; None of a server that is not loaded and owes nothing."""
        subject = self.subjects[name]
        if subject.record.state is not ServerState.READY and subject.judgement.verdict is Verdict.HEALTHY:
            return None
        evidence = subject.judgement.reason or health.evidence_words(subject.record)
        return {"verdict": subject.judgement.verdict.value, "evidence": evidence, "in_flight": subject.in_flight}

    # --- the looks --------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Look until cancelled, or until something must be killed."""
        async with trio.open_nursery() as nursery:
            for subject in self.subjects.values():
                nursery.start_soon(self._follow, subject, nursery)

    async def _follow(self, subject: Subject, nursery: trio.Nursery) -> None:
        while not self._told:
            began = trio.current_time()
            await self._look_once(subject, nursery)
            pause = budgets.PROBE_INTERVAL - (trio.current_time() - began)
            # One that is stopped is looked at again sooner: it will not say more in the meantime.
            await trio.sleep(budgets.PROBE_INTERVAL / 2 if subject.record.stopped else max(0.0, pause))
        nursery.cancel_scope.cancel()

    async def _look_once(self, subject: Subject, nursery: trio.Nursery) -> None:
        state = self._state(subject)
        if subject.name == PROXY:
            subject.pid = self.life.pid
        elif state is not ServerState.READY or state is not subject.record.state:
            subject.pid = None
        suspicious = bool(subject.record.missed) or subject.judgement.wants_closer
        if subject.pid is None and state is ServerState.READY:
            subject.pid = await self._find(subject.name)
        stopped, computing = subject.look(trio.current_time(), suspicious)
        if subject.name == PROXY and not stopped and self._loads() and self._somebody_is_stopped():
            stopped = True
        asked = state is ServerState.READY and not stopped
        answer = await self._ask(subject) if asked else Answer.UNKNOWN
        if self._state(subject) is not state:  # it was unloaded while it was asked: what it said or not means nothing
            return
        seen = Evidence(
            at=trio.current_time(),
            stopped=stopped,
            computing=computing,
            answer=answer,
            in_flight=subject.in_flight,
            progress=subject.progress,
            closer=subject.closer,
            closer_answer=subject.closer_answer,
            canary=subject.canary,
            state=state,
            starting=trio.current_time() < self._settled,
        )
        subject.closer, subject.canary = None, Answer.UNKNOWN
        subject.record = health.observe(subject.record, seen, subject.limits)
        self._judge(subject, nursery)

    def _judge(self, subject: Subject, nursery: trio.Nursery) -> None:
        was = subject.judgement
        subject.judgement = now = health.judge(subject.record, subject.limits, self.spec.start_limit_s)
        if now.verdict in FATAL and not self._told:
            self._told = True
            who = "its proxy" if subject.name == PROXY else f"the {subject.name} server"
            self.tell(f"{who} is {now.verdict.value}: {now.reason}")
        if now.wants_closer:
            self._start(subject, nursery, "closer", self._look_closer)
        if now.wants_canary:
            self._start(subject, nursery, "canary", self._send_canary)
        if now.verdict is not was.verdict:
            self.changed()

    def _start(
        self, subject: Subject, nursery: trio.Nursery, sort: str, ask: Callable[[Subject], Awaitable[None]]
    ) -> None:
        """Ask on suspicion; one question of a sort at a time, and beside the looks."""
        if subject.name == PROXY or sort in subject.asking:
            return
        subject.asking.add(sort)

        async def work() -> None:
            try:
                await ask(subject)
            finally:
                subject.asking.discard(sort)

        nursery.start_soon(work)

    # --- questions --------------------------------------------------------------------------------------------------

    async def _ask(self, subject: Subject) -> Answer:
        with trio.move_on_after(budgets.PROBE_ANSWER):
            try:
                return await self.kind.probe(self.spec, self.life.birth, subject.name)
            except MAY:  # whatever went wrong went wrong on our side
                return Answer.UNKNOWN
        return Answer.SILENT

    async def _look_closer(self, subject: Subject) -> None:
        answer, said = Answer.SILENT, None
        with trio.move_on_after(budgets.PROBE_ANSWER):
            try:
                said = await self.kind.look_closer(self.spec, self.life.birth, subject.name)
            except MAY:
                said = None
            answer = Answer.UNKNOWN if said is None else Answer.ANSWERED
        subject.closer, subject.closer_answer = said, answer
        await trio.sleep(budgets.CLOSER_INTERVAL)

    async def _send_canary(self, subject: Subject) -> None:
        answer = Answer.SILENT
        with trio.move_on_after(CANARY_SHARE * subject.limits.wedge):
            try:
                answer = await self.kind.canary(self.spec, self.life.birth, subject.name)
            except MAY:
                answer = Answer.UNKNOWN
        subject.canary = answer
        await trio.sleep(budgets.CLOSER_INTERVAL)

    # --- who is who -------------------------------------------------------------------------------------------------

    def _state(self, subject: Subject) -> ServerState:
        if not self.is_up():
            return ServerState.LOADING
        return ServerState.READY if subject.name == PROXY else self.life.servers.get(subject.name, ServerState.DOWN)

    def _loads(self) -> bool:
        return not self.is_up() or ServerState.LOADING in self.life.servers.values()

    def _somebody_is_stopped(self) -> bool:
        """While servers load they have no port yet by which to tell them apart: any process of the family counts."""
        states = (identity.state_of(pid) for pid in self.life.family())
        return any(state == "T" for state in states)

    async def _find(self, role: str) -> int | None:
        """The process that answers on the role's port, if it is ours to see."""
        if self.spec.is_outside:
            with trio.move_on_after(budgets.PROBE_ANSWER):
                try:
                    return await self.kind.outside(self.life.birth)
                except MAY:
                    return None
            return None
        return listeners.pid_of(self.life, role)
