"""One group: one task that owns its state, and the hands that carry out what the lifecycle table says.

Everything that happens to the group comes into one inbox: the warden's news, readiness, the timer of a restart, a
stop. `lifecycle.step` decides, the methods named after its actions act. Work that takes time runs in the nursery and
answers with another happening; it is tagged with its generation, so that what a dead one still has to say is dropped.

Longer than most: what to do is decided and done in modules of one idea each, but the state that they are asked about and
that their answers change has one owner.
"""

from __future__ import annotations

import math
import random
import signal
import time
from typing import TYPE_CHECKING, Any

import trio

from supervisor import accounting, adoption, birth, endings, grace, inquest, lifecycle, logfiles, notes, undoing
from supervisor.causes import Evidence
from supervisor.channels import at_hand
from supervisor.contract import GroupSpec, LaunchSpec, State
from supervisor.description import describe
from supervisor.draining import Drain
from supervisor.errand import THEN, After, Errand, Shape
from supervisor.errors import DoesNotFitError, QueenrightError
from supervisor.happening import Happening
from supervisor.inquest import Finding, Past
from supervisor.lifecycle import Action, Event
from supervisor.nursing import Nurse
from supervisor.planning import Ledger
from supervisor.preparing import Fetch
from supervisor.publishing import Publisher
from supervisor.work import Work

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from supervisor.kinds import Kind
    from supervisor.life import Life
    from supervisor.procs import Procs, Row
    from supervisor.restart import Verdict
    from supervisor.slot import Slot


class Group:
    """Owner of one group's state. `changed` is called after each change, `tell_end` with each death and what follows from
    it; neither may block."""

    def __init__(
        self,
        spec: GroupSpec,
        slot: Slot,
        kind: Kind,
        procs: Procs,
        changed: Callable[[], None],
        tell_end: Callable[[dict[str, Any]], None],
    ) -> None:
        self._tell_end = tell_end
        self.spec, self.slot, self.kind, self.procs, self.changed = spec, slot, kind, procs, changed
        self.state = State.DOWN
        self.reason = ""
        self.since = time.time()
        self.past = Past()
        self.log_tail: list[str] = []
        self.nurse: Nurse | None = None
        self.was_killed = False
        self.swept = 0
        """What the last stop took: SIGKILL, and so many processes that had not ended with their leader."""
        self.retired = trio.Event()
        """Set once it has stopped for good."""
        self.ledger = Ledger(slot.path, spec.name)
        self.fetch = Fetch(lambda event, reason: self.post(event, reason=reason), changed)
        self._blame = ""
        self._evidence = Evidence(endings.STILLBORN)
        self._last_ports: dict[str, int] = {}
        self._in_birth = False
        self._before_birth = trio.CancelScope()
        self.outside: list[Path] = []
        """What earlier engines' generations of it left to be ended (`undoing`): before it is started the first time."""
        self._accounted = ""
        self._errand = Errand()
        self._drain = Drain()
        self._work = Work()
        self._publisher = Publisher(self, slot.group_record(spec.name), changed)
        self._inbox_in, self._inbox = trio.open_memory_channel[Happening](math.inf)

    @property
    def life(self) -> Life | None:
        """The generation that lives, or of which something does."""
        return self.nurse.life if self.nurse else None

    # --- the task ---------------------------------------------------------------------------------------------------

    async def run(self, row: Row | None, wanted: bool = True) -> None:
        """Live. `row` is a generation that the warden already has of this group; without one it is started if it is
        `wanted`, unless an earlier keeper gave it up. Ends only by cancellation."""
        async with trio.open_nursery() as self._work.nursery:
            self._work.start(self._publisher.run)
            left = notes.of_group(self.procs.notes.get(notes.key(self.spec.name)))
            self.past, self._last_ports = left.past, dict(left.ports)
            if row is not None:
                self._take_up(row, wanted)
            elif left.failed:  # what was given up stays so over a keeper's death
                self.state, self.reason = State.FAILED, left.failed
            elif wanted:
                self.post(Event.WANTED)
            async for happening in self._inbox:
                for each in (happening, *at_hand(self._inbox)):
                    self._handle(each)

    def post(self, event: Event, generation: str = "", reason: str = "") -> None:
        """Tell the group that something happened."""
        if event is Event.STOP:
            self._errand = self._errand.stop_sent()
        self._inbox_in.send_nowait(Happening(event, generation, reason))

    def _handle(self, happening: Happening) -> None:
        if happening.event is Event.STOP:
            self._errand = self._errand.stop_came()
        life = self.life
        generation, exited = (life.birth.generation, life.exited.is_set()) if life else ("", False)
        if happening.is_stale(self.state, generation, exited=exited):
            return
        was = self.state
        self.state, actions = lifecycle.step(was, happening.event)
        if self.state is not was:
            self.since = time.time()
        self._note_facts(happening, was)
        for action in actions:
            self._hands[action](self)
        if self.state in lifecycle.AT_REST and self.life is None and not self._in_birth:
            self.ledger.release()
        if happening.event is not Event.STOP:
            self._publisher.publish()
        if self._errand.is_due(self.state, lives=self.life is not None):
            self._go_on()
        self.changed()

    def _note_facts(self, happening: Happening, was: State) -> None:
        """What a happening says beyond the table: reasons, history, what is left for the next keeper."""
        if happening.ends_attempt(was, self.state):
            self._work.end_attempt()
        if happening.gives_reason(was, self.state):
            self.reason = happening.reason
        match happening.event:
            case Event.READY:
                self.past = self.past.became_ready(time.monotonic())
                self.reason, self.log_tail, self._blame = "", [], ""
                if self.life is not None:
                    self.life.prove_started()
                    if self._accounted != happening.generation:  # once for each: READY comes again after a reload
                        self._accounted = happening.generation
                        self._work.attempt(accounting.keep, self.ledger, self.spec, self.kind, self.life, self.changed)
                    self._work.start(
                        self.ledger.settle, self.slot.generation_lock(self.spec.name, happening.generation)
                    )
                self._write_note()
            case Event.NOT_READY | Event.UNHEALTHY:
                self._blame = happening.reason
            case Event.EXITED if self.life is not None:
                self.life.servers_are_down()
                if was is not State.STOPPING:
                    blame = self._blame  # what it was killed for
                    self.reason = f"ended by us: {blame}" if blame else f"its proxy ended: {self.life.ended.describe()}"
            case Event.GIVEN_UP if self.state is State.FAILED:
                self._write_note()
            case Event.GONE:
                self._in_birth = False
                if self.life is not None:
                    self.log_tail = endings.last_words(self.life) or self.log_tail
                    self.swept = self.life.swept if was is State.STOPPING else 0
                self._evidence = endings.of_group(self.life, self.log_tail, self._blame)
            case Event.RELEASE | Event.FETCHED if self.state is not State.STOPPING:
                self.reason = ""
            case Event.WANTED | Event.STOP if was is State.FAILED:
                self.past = self.past.forgiven()
                if happening.event is Event.WANTED and self.life is None:
                    self.reason = ""  # it is a new start; else it tells what could not be ended
            case _:
                pass

    # --- stopped for a purpose --------------------------------------------------------------------------------------

    def reshape(self, spec: GroupSpec, kind: Kind, why: str, drain_s: float = 0.0) -> None:
        """Be what `spec` says: by a stop and a start, or at once where no process would notice. A held one stays held."""
        reads = self.spec.payload, self.spec.manifest
        fetches_other = self.state is State.FETCHING and (spec.payload, spec.manifest) != reads
        if self._errand.after is None and spec.runs_as(self.spec) and not fetches_other:
            self.spec = spec
            return
        self._stop_for(self._errand.to_become(Shape(spec, kind)), why, drain_s)

    def hold(self, why: str) -> None:
        """Stop, and stay down until `release`."""
        self._stop_for(self._errand.to_hold(), why)

    def release(self) -> None:
        """The hold is over: start again."""
        was, self._errand = self._errand, self._errand.released()
        if was.after is not After.HOLD and self.state is State.HELD:
            self.post(Event.RELEASE)
            self.post(Event.WANTED)

    def retry(self) -> bool:
        """Start again what was given up; False where it was not."""
        given_up = self.state is State.FAILED
        if given_up:
            self._handle(Happening(Event.WANTED))
        return given_up

    def retire(self, why: str, drain_s: float = 0.0) -> None:
        """Stop for good: nobody wants the group any more. `retired` says when."""
        self._stop_for(self._errand.to_retire(), why, drain_s)

    def stop(self, why: str) -> None:
        """Stop with the whole engine; whatever it was to do afterwards is off."""
        self._stop_for(self._errand.called_off(), why)

    def end_now(self) -> None:
        """Kill what runs, at once."""
        self.was_killed = self.life is not None
        self._kill()

    @property
    def in_flight(self) -> int | None:
        """Requests that it owes an answer; None where that is not known. One that is not up owes none."""
        return self.nurse.prober.in_flight if self.nurse and self.state in lifecycle.UP else 0

    def as_run(self, launch: LaunchSpec) -> LaunchSpec:
        """A launch of its spec, with what was decided for it when it was planned."""
        return self.ledger.as_run(launch)

    @property
    def is_settled(self) -> bool:
        """Whether it will not come up by being waited for any longer."""
        return (self.is_draining or not self._errand.is_under_way) and self.state in lifecycle.SETTLED

    @property
    def is_at_rest(self) -> bool:
        """Whether nothing of it runs, or nothing that can be helped, and nothing is about to."""
        return not self._errand.is_under_way and self.state in lifecycle.AT_REST

    @property
    def is_draining(self) -> bool:
        """Whether it serves on for a while, before it is stopped for something."""
        return self._drain.is_under_way

    def _stop_for(self, errand: Errand, why: str, drain_s: float = 0.0) -> None:
        """Stop, on that errand. Before it, wait at most `drain_s` for a moment in which it owes nobody an answer."""

        def stop(found: str) -> None:
            self.post(Event.STOP, reason=f"{why}; {found}")

        self._errand = errand
        self._drain.end()
        if self.life is not None or self._in_birth:
            self.ledger.is_to_leave(drain_s)
        if drain_s and self.in_flight != 0:
            self.reason = f"{why}; it waits for its requests in flight, {drain_s:g} s at most"
            self._drain.begin(self._work.start, lambda: {self.spec.name: self.in_flight}, drain_s, stop)
        else:
            self.post(Event.STOP, reason=why)

    def _go_on(self) -> None:
        """It is at rest: what it was stopped for. In the same step, so that nobody finds it in between."""
        self._drain.end()
        errand, self._errand = self._errand, self._errand.done()
        if errand.shape is not None:
            self.spec, self.kind = errand.shape
            self.past = self.past.forgiven()  # it is another one
        if errand.after is After.RETIRE:
            self.retired.set()
        for event in THEN[errand.after] if errand.after is not None else ():
            self._handle(Happening(event))

    # --- what the table's actions do --------------------------------------------------------------------------------

    def _spawn(self) -> None:
        if self.life is not None:  # what could not be killed is still there, and the warden would refuse
            self.post(Event.UNKILLABLE, self.life.birth.generation, self.reason)
            return
        self._in_birth, self._blame = True, ""  # what an earlier one was stopped for is not what this one dies of
        self.past = self.past.without_breaker()
        self._before_birth = trio.CancelScope()  # here: a stop may come before the task has begun
        self._work.start(self._give_birth)

    def _warm(self) -> None:
        if (nurse := self.nurse) is None:
            return
        evidence = endings.of_server(nurse.life, self.reason)
        finding = inquest.on_server(self.past, evidence, now=time.monotonic(), chance=random.random())  # noqa: S311 - no secret: it spreads restarts
        self._heed(evidence, finding)
        if finding.verdict.restart:
            self.reason = finding.verdict.reason
            self._work.attempt(self._warm_up, nurse, finding.verdict.delay)
        else:
            self.post(Event.NOT_READY, nurse.life.birth.generation, finding.verdict.reason)

    def _heed(self, evidence: Evidence, finding: Finding) -> None:
        self.past = finding.past
        self._tell_end(endings.facts(self.spec.name, evidence, finding))

    def _stop(self) -> None:
        self.ledger.leaves()
        self._before_birth.cancel()
        if self.life is not None:
            if not self.life.exited.is_set():  # else it is being swept, and its end is on its way
                self._work.start(self._end, self.life)
        elif not self._in_birth:  # else it is stopped as soon as it is born, or its GONE is in the inbox
            self.post(Event.GONE)

    def _kill(self) -> None:
        if self.life is not None:
            self.procs.kill(self.life.birth.generation, signal.SIGKILL, everybody=True)

    def _forget(self) -> None:
        if self.life is not None:
            self.procs.forget(self.life.birth.generation)
            self.slot.clear_generation(self.spec.name, self.life.birth.generation)
            self.nurse = None
        self.ledger.forget()

    def _consult(self) -> None:
        words = logfiles.last_words(self.log_tail)
        finding = inquest.on_group(self.past, self._evidence, words, now=time.monotonic(), chance=random.random())  # noqa: S311 - as above
        self._heed(self._evidence, finding)
        if finding.is_conflict:
            self._last_ports = {}  # whoever has one of them may be there again
            birth.forget_port(self.slot, self.spec.name)
        if finding.is_for_want_of_memory:  # what it was planned with is not what it takes
            self.ledger.release()
        self.reason, self._blame = finding.verdict.reason, ""
        self._write_note()
        at_once = finding.verdict.restart and not finding.verdict.delay
        if at_once and not self._errand.stops_due:  # in this very step: what it posts to the warden comes in one piece
            self.past = self.past.started_again(time.monotonic())
            self._handle(Happening(Event.AGAIN))
        else:
            self._work.attempt(self._answer, finding.verdict)

    _hands: dict[Action, Callable[[Group], None]] = {  # noqa: RUF012 - a constant table, never changed
        Action.SPAWN: _spawn,
        Action.WARM: _warm,
        Action.STOP: _stop,
        Action.KILL: _kill,
        Action.CONSULT: _consult,
        Action.FORGET: _forget,
    }

    # --- the hands that take time -----------------------------------------------------------------------------------

    async def _answer(self, verdict: Verdict) -> None:
        await trio.sleep(verdict.delay)
        if verdict.restart:
            self.past = self.past.started_again(time.monotonic())
            self.post(Event.AGAIN)
        else:
            self.post(Event.GIVEN_UP, reason=verdict.reason)

    async def _warm_up(self, nurse: Nurse, delay: float) -> None:
        """Load what was lost: at once, and more slowly each time it happens in a row."""
        await trio.sleep(delay)
        self.past = self.past.loaded_again(time.monotonic())
        await nurse.load(self.spec, nurse.life.lost_roles())

    async def _give_birth(self) -> None:
        """What fails here counts as a death; that a file cannot be had, does not."""
        with self._before_birth:
            try:
                while self.outside:
                    await undoing.finish(self.outside[-1], self._wait_for)
                    self.outside.pop()
                await self.fetch.run(self.spec, self.kind)
            except QueenrightError as error:
                self._in_birth = self.state is State.STOPPING
                step = f": {error.next_step}" if error.next_step else ""
                self.post(Event.GONE if self._in_birth else Event.GIVEN_UP, reason=f"{error.what}{step}")
                return
        if self._before_birth.cancel_called:  # also where there was nothing to wait for: nobody wants it any more
            self.post(Event.GONE)
            return
        try:
            draft = await birth.prepare(
                self.spec, self.kind, self.slot, self._last_ports, self.procs.hello.pid, self.ledger
            )
            self._last_ports = dict(draft.birth.ports)
            self._write_note()
            life = await birth.start(draft, self.spec, self.slot, self.procs)
        except (QueenrightError, OSError) as error:
            if isinstance(error, DoesNotFitError):
                self.past = self.past.refused(error.what)
            self._blame = str(error).partition("\n")[0]
            self.post(Event.GONE)
            return
        self._in_birth = self.was_killed = False
        self.swept = 0
        nurse = self._entrust(life)
        self._work.start(nurse.listen, self.procs)
        if self.state is State.STOPPING:  # the stop came while the warden forked
            self._work.start(self._end, life)
        else:
            self._work.attempt(nurse.bring_up, self.spec)
        self.changed()

    def _wait_for(self, trouble: str) -> None:
        """What an earlier engine's generation left outside may have the memory or the port that this one needs."""
        if self.state is not State.STOPPING:
            self.reason = f"of an earlier engine, {trouble}; it is waited for"
            self.changed()

    def _entrust(self, life: Life) -> Nurse:
        def tell(event: Event, reason: str) -> None:
            self.post(event, life.birth.generation, reason)

        def is_up() -> bool:
            return self.state in lifecycle.UP

        self.nurse = Nurse(self.spec, self.kind, life, is_up=is_up, tell=tell, changed=self.changed)
        return self.nurse

    async def _end(self, life: Life) -> None:
        def complain(trouble: str) -> None:
            self.reason = f"{self.reason}; {trouble}"

        if await grace.end(life, Shape(self.spec, self.kind), self.procs, complain):
            self.was_killed = True

    # --- adoption ---------------------------------------------------------------------------------------------------

    def _take_up(self, row: Row, wanted: bool) -> None:
        """Go on with what an earlier keeper started."""
        left = notes.of_life(row.note)
        self.ledger.take_up(left.windows)
        life = adoption.take_up(row, self.spec, self.slot, self.procs.hello.pid)
        changed = wanted and life.mark != birth.mark_of(self.spec)
        self.state, self.reason = adoption.found(row, life, ever_ready=self.past.history.ever_ready, changed=changed)
        if self.state is State.RUNNING and left.since is not None:
            self.since = left.since  # it has been that all the while
        nurse = self._entrust(life)
        if row.state == "gone":
            self._work.start(nurse.be_gone)
            return
        self._work.start(nurse.listen, self.procs)
        if changed:  # the contract was, and its keeper died before it was carried out
            self._stop_for(self._errand.to_start(), "its configuration changed")
        elif row.state == "running":
            self._work.attempt(nurse.bring_up, self.spec)

    # --- what others are told ---------------------------------------------------------------------------------------

    def _write_note(self) -> None:
        """To the warden, for the next keeper."""
        failed = self.reason if self.state is State.FAILED else ""
        self.procs.note_slot(notes.key(self.spec.name), notes.GroupNote(self.past, self._last_ports, failed).plain())
        if self.life is not None:
            is_up = self.state in lifecycle.UP
            since = self.since if is_up else None
            note = notes.on_life(self.life, ready=is_up, windows=self.ledger.windows, since=since)
            self.procs.note_generation(self.life.birth.generation, note.plain())

    def describe(self) -> dict[str, Any]:
        """The group for `status` and for its record. Plain data, no secrets."""
        return describe(self)

    @property
    def unwritten(self) -> str:
        """Why its record on disk is not this; "" while it is, or is about to be."""
        return self._publisher.trouble
