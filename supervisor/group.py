"""One group: one task that owns its state, and the hands that carry out what the lifecycle table says.

Everything that happens to the group comes into one inbox: the warden's news, readiness, the timer of a restart, a
stop. `lifecycle.step` decides, the methods named after its actions act. Work that takes time runs in the nursery and
answers with another happening; it is tagged with its generation, so that what a dead one still has to say is dropped.

Longer than most: the hands share one state, and a second module would make a second owner of it.
"""

from __future__ import annotations

import math
import os
import random
import signal
import time
from contextlib import suppress
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple

import trio

from supervisor import (
    budgets,
    causes,
    draining,
    endings,
    environment,
    evidence,
    identity,
    journal,
    lifecycle,
    logfiles,
    ports,
    records,
    restart,
)
from supervisor.birth import Life, forget_port, known_birth, mark_of, new_birth
from supervisor.causes import Cause, Evidence, Word
from supervisor.contract import Exit, GroupSpec, State
from supervisor.errors import EngineStartError, QueenrightError
from supervisor.kinds import PROXY, Birth, Kind, ServerState
from supervisor.lifecycle import Action, Event
from supervisor.probing import Prober
from supervisor.procs import Exited, Gone, Procs, Row

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from supervisor.slot import Slot

OF_THE_LIVING = frozenset({Event.READY, Event.NOT_READY, Event.SERVER_LOST, Event.UNHEALTHY})
"""What only a generation that is meant to live can tell."""


class After(StrEnum):
    """What a group was told to stop for."""

    START = "start again"
    HOLD = "stay down until released"
    RETIRE = "be no more"


class Happening(NamedTuple):
    """What came into the inbox. `generation` is whose news it is; "" for what concerns the group as such."""

    event: Event
    generation: str = ""
    reason: str = ""


class Group:
    """Owner of one group's state. `changed` is called after each change; it must not block."""

    def __init__(self, spec: GroupSpec, slot: Slot, kind: Kind, procs: Procs, changed: Callable[[], None]) -> None:
        self.spec, self.slot, self.kind, self.procs, self.changed = spec, slot, kind, procs, changed
        self.state = State.DOWN
        self.reason = ""
        self.since = time.time()
        self.history = restart.History()
        self._losses = restart.History(ever_ready=True)
        """Of servers under a proxy that lives: a row of its own, so that a lost server does not slow the group's restart."""
        self.life: Life | None = None
        self.prober: Prober | None = None
        self.servers: dict[str, ServerState] = {}
        self.log_tail: list[str] = []
        self.cause: Cause | None = None
        """Of the last end, of the group or of one of its servers; it stays when the group is back."""
        self.was_killed = False
        self.swept = 0
        """What the last stop took: SIGKILL, and so many processes that had not ended with their leader."""
        self._ended = Exit(1, 0)
        self._evidence = Evidence(self._ended)
        self._breaker: restart.Verdict | None = None
        self._blame = ""
        self._last_ports: dict[str, int] = {}
        self.retired = trio.Event()
        """Set once it has stopped for good."""
        self._after: After | None = None
        self._draining: trio.CancelScope | None = None
        """Of the wait for a quiet moment before a stop; whatever else stops the group ends it."""
        self._stops_due = 0
        """Stops that are still in the inbox: only after the last of them it is at rest for what `_after` says."""
        self._is_held = False
        self._next: tuple[GroupSpec, Kind] | None = None
        self._attempt: set[trio.CancelScope] = set()
        self._in_birth = False
        self._publishing = trio.CapacityLimiter(1)
        self._to_publish = False
        self._inbox_in, self._inbox = trio.open_memory_channel[Happening](math.inf)
        self._nursery: trio.Nursery | None = None

    # --- the task ---------------------------------------------------------------------------------------------------

    async def run(self, row: Row | None, wanted: bool = True) -> None:
        """Live. `row` is a generation that the warden already has of this group; without one it is started if it is
        `wanted`, unless an earlier keeper gave it up. Ends only by cancellation."""
        async with trio.open_nursery() as self._nursery:
            note = self.procs.notes.get(self.note_key) or {}
            self.history = endings.noted_history(note.get("history"), self.history)
            self._losses = endings.noted_history(note.get("losses"), self._losses)
            self.cause = endings.noted_cause(note.get("cause"))
            self._last_ports = dict(note.get("ports", {}))
            if row is not None:
                self._take_up(row, wanted)
            elif note.get("failed"):  # what was given up stays so over a keeper's death
                self.state, self.reason = State.FAILED, note["failed"]
            elif wanted:
                self.post(Event.WANTED)
            async for happening in self._inbox:
                self._handle(happening)

    def post(self, event: Event, generation: str = "", reason: str = "") -> None:
        """Tell the group that something happened."""
        self._stops_due += event is Event.STOP
        self._inbox_in.send_nowait(Happening(event, generation, reason))

    def _handle(self, happening: Happening) -> None:
        self._stops_due -= happening.event is Event.STOP
        if self._is_stale(happening):
            return
        was = self.state
        self.state, actions = lifecycle.step(was, happening.event)
        self._note_facts(happening, was)
        for action in actions:
            self._hands[action](self)
        if self.state is not was:
            self.since = time.time()
        if self.state not in (State.STOPPING, State.DOWN) and happening.event is not Event.STOP:
            self._publish()  # in those, the record is about to be removed
        if self._after is not None and not self._stops_due and self.state in lifecycle.AT_REST:
            self._go_on()
        self.changed()

    def _is_stale(self, happening: Happening) -> bool:
        """Whether these are the last words of a generation that is no more, or that is on its way out."""
        life = self.life
        if happening.generation and (life is None or happening.generation != life.birth.generation):
            return True
        ending = self.state in (State.STOPPING, *lifecycle.AT_REST) or (life is not None and life.exited.is_set())
        return ending and happening.event in OF_THE_LIVING

    def _note_facts(self, happening: Happening, was: State) -> None:
        """What a happening says beyond the table: reasons, history, the record for those who bind."""
        match happening.event:
            case Event.READY:
                self.history = self.history.became_ready(time.monotonic())
                self._losses = self._losses.became_ready(time.monotonic())
                self.reason, self.log_tail, self._blame = "", [], ""
                self._prove_started()
                self._write_note()
            case Event.NOT_READY:
                self._blame = happening.reason
                self.reason = happening.reason
            case Event.UNHEALTHY if self.state is not State.STOPPING:
                self._end_attempt()  # what its load or watch will say of the kill is not the cause
                self._blame = self.reason = happening.reason
            case Event.EXITED:
                self._end_attempt()
                self.servers |= dict.fromkeys(self.servers, ServerState.DOWN)  # the prober has the same table
                if was is not State.STOPPING:
                    self.reason = f"its proxy ended: {self._ended.describe()}"
            case Event.SERVER_LOST:
                self.reason = happening.reason
            case Event.UNKILLABLE:
                self._end_attempt()
                self.reason = happening.reason
            case Event.GIVEN_UP if self.state is State.FAILED:
                self.reason = happening.reason
                self._write_note()
            case Event.STOP if self.state is State.STOPPING is not was:
                self._end_attempt()
                self.reason = happening.reason
            case Event.GONE:
                self._in_birth = False
                self._remember_last_words()
            case Event.RELEASE:
                self.reason = ""
            case Event.WANTED | Event.STOP if was is State.FAILED:
                self.history = self.history.forgiven()
                self._losses, self._breaker = restart.History(ever_ready=True), None
            case _:
                pass

    def _prove_started(self) -> None:
        """What is kept of a start that went well. Of a later load only who the processes are."""
        if self.life is not None:
            if not self.life.was_ready:
                self.life.start_log.take()
            self.life.kin |= set(self.life.family())
            self.life.was_ready = True

    def _remember_last_words(self) -> None:
        life, log = self.life, self.slot.group_log(self.spec.name)
        if life is not None:
            self.log_tail = logfiles.tail(log, lines=endings.TAIL_LINES, since=life.log_start) or self.log_tail
            if not life.was_ready:
                life.start_log.take()
        self._evidence = endings.of_group(life, log, self.log_tail, self._ended, self._blame)

    # --- stopped for a purpose --------------------------------------------------------------------------------------

    def reshape(self, spec: GroupSpec, kind: Kind, why: str, drain_s: float = 0.0) -> None:
        """Be what `spec` says: by a stop and a start, or at once where no process would notice. A held one stays held."""
        if self._after is None and spec.runs_as(self.spec):
            self.spec = spec
            return
        self._next = spec, kind
        self._stop_for(After.HOLD if self._is_held else After.START, why, drain_s)

    def hold(self, why: str) -> None:
        """Stop, and stay down until `release`."""
        self._is_held = True
        self._stop_for(After.HOLD, why)

    def release(self) -> None:
        """The hold is over: start again."""
        self._is_held = False
        if self._after is After.HOLD:
            self._after = After.START
        elif self.state is State.HELD:
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
        self._stop_for(After.RETIRE, why, drain_s)

    def stop(self, why: str) -> None:
        """Stop with the whole engine; whatever it was to do afterwards is off."""
        self._after = None
        self._end_drain()
        self.post(Event.STOP, reason=why)

    @property
    def in_flight(self) -> int | None:
        """Requests that it owes an answer; None where that is not known. One that is not up owes none."""
        is_up = self.prober is not None and self.state in (State.RUNNING, State.DEGRADED)
        return self.prober.in_flight if self.prober is not None and is_up else 0

    @property
    def is_settled(self) -> bool:
        """Whether it will not come up by being waited for any longer."""
        return (self.is_draining or not self._is_in_between) and self.state in lifecycle.SETTLED

    @property
    def is_at_rest(self) -> bool:
        """Whether nothing of it runs, or nothing that can be helped, and nothing is about to."""
        return not self._is_in_between and self.state in lifecycle.AT_REST

    @property
    def _is_in_between(self) -> bool:
        """Whether it is being stopped for something that is still to come."""
        return self._after is not None and not (self._after is After.RETIRE and not self._stops_due)

    def _stop_for(self, after: After, why: str, drain_s: float = 0.0) -> None:
        """Stop, and then `after`. Before it, wait at most `drain_s` for a moment in which it owes nobody an answer."""
        self._after = after
        self._end_drain()
        if drain_s and self.in_flight != 0:
            self._draining = trio.CancelScope()
            self.reason = f"{why}; it waits for its requests in flight, {drain_s:g} s at most"
            self._start_soon(self._drain, self._draining, why, drain_s)
        else:
            self.post(Event.STOP, reason=why)

    async def _drain(self, scope: trio.CancelScope, why: str, limit_s: float) -> None:
        with scope:
            found = await draining.wait_idle(lambda: {self.spec.name: self.in_flight}, limit_s)
            self._draining = None
            self.post(Event.STOP, reason=f"{why}; {found}")

    @property
    def is_draining(self) -> bool:
        """Whether it serves on for a while, before it is stopped for something."""
        return self._draining is not None

    def _end_drain(self) -> None:
        if self._draining is not None:
            self._draining.cancel()
            self._draining = None

    def _go_on(self) -> None:
        """It is at rest: what it was stopped for. In the same step, so that nobody finds it in between."""
        if self._after is After.RETIRE and self.life is not None:
            return  # it cannot be killed: shown for as long as it lives
        self._end_drain()
        after, self._after = self._after, None
        if self._next is not None:
            (self.spec, self.kind), self._next = self._next, None
            self.servers = {}
            self.history, self._losses = self.history.forgiven(), restart.History(ever_ready=True)  # it is another one
        match after:
            case After.START:
                self._handle(Happening(Event.RELEASE))  # it may have been held before
                self._handle(Happening(Event.WANTED))
            case After.HOLD:
                self._handle(Happening(Event.HOLD))
            case After.RETIRE:
                self.retired.set()
            case _:
                pass

    def end_now(self) -> None:
        """Kill what runs, at once."""
        self.was_killed = self.life is not None
        self._kill()

    # --- what the table's actions do --------------------------------------------------------------------------------

    def _spawn(self) -> None:
        if self.life is not None:  # what could not be killed is still there, and the warden would refuse
            self.post(Event.UNKILLABLE, self.life.birth.generation, self.reason)
            return
        self._in_birth = True
        self._start_soon(self._give_birth)

    def _warm(self) -> None:
        life = self.life
        if life is None:
            return
        cause = causes.name(endings.of_server(life, self.slot.group_log(self.spec.name), self.reason))
        now = time.monotonic()
        self._losses = self._losses.died(now, random.random())  # noqa: S311 - no secret: it spreads restarts
        verdict = restart.decide(self._losses, ended=endings.NO_EXIT, why=self.reason, now=now)
        self._name_it(cause, verdict)
        if cause.word is not Word.UNKNOWN:
            self.reason = f"{self.reason} ({cause.describe()})"
        if verdict.restart:
            self._in_attempt(self._warm_up, life, verdict.delay)
        else:  # its proxy would load it at the next request: the group goes, and stays down
            self._breaker = verdict
            self.post(Event.NOT_READY, life.birth.generation, verdict.reason)

    def _name_it(self, cause: Cause, verdict: restart.Verdict) -> None:
        """For status, and for those who ask later."""
        self.cause = cause
        journal.note(
            self.slot, "ended", group=self.spec.name, generation=self.life.birth.generation if self.life else None,
            cause=cause.word.value, detail=cause.detail, restart=verdict.restart, delay=round(verdict.delay, 3),
        )  # fmt: skip

    def _stop(self) -> None:
        if self.life is not None:
            if not self.life.exited.is_set():  # else it is being swept, and its end is on its way
                self._start_soon(self._end, self.life)
        elif not self._in_birth:  # else it is stopped as soon as it is born, or its GONE is in the inbox
            self.post(Event.GONE)

    def _kill(self) -> None:
        if self.life is not None:
            self.procs.kill(self.life.birth.generation, signal.SIGKILL, everybody=True)

    def _forget(self) -> None:
        if self.life is not None:
            self.procs.forget(self.life.birth.generation)
            for path in self.kind.command(self.spec, self.life.birth).files:
                with suppress(OSError):
                    path.unlink()
            self.life = None

    def _consult(self) -> None:
        cause, now = causes.name(self._evidence), time.monotonic()
        why = self._blame or self._ended.describe()
        words = logfiles.last_words(self.log_tail)
        why = f"{why}: {words}" if words else why
        conflict = cause.word is Word.PORT_CONFLICT
        self.history = self.history.died(now, random.random(), port_conflict=conflict)  # noqa: S311 - as above
        verdict = self._breaker or restart.decide(
            self.history, ended=self._ended, why=f"{cause.describe()}; {why}" if cause.says_more else why, now=now
        )
        self._name_it(cause, verdict)
        if conflict:
            self._last_ports = {}  # whoever has one of them may be there again
            forget_port(self.slot, self.spec.name)
        self.reason, self._blame, self._breaker = verdict.reason, "", None
        self._write_note()
        self._in_attempt(self._answer, verdict)

    _hands: dict[Action, Callable[[Group], None]] = {  # noqa: RUF012 - a constant table, never changed
        Action.SPAWN: _spawn,
        Action.WARM: _warm,
        Action.STOP: _stop,
        Action.KILL: _kill,
        Action.CONSULT: _consult,
        Action.FORGET: _forget,
    }

    # --- the hands that take time -----------------------------------------------------------------------------------

    async def _answer(self, verdict: restart.Verdict) -> None:
        await trio.sleep(verdict.delay)
        if verdict.restart:
            self.history = self.history.started_again(time.monotonic())
            self.post(Event.AGAIN)
        else:
            self.post(Event.GIVEN_UP, reason=verdict.reason)

    async def _give_birth(self) -> None:
        """Choose ports, write the files, have the warden start it. What fails here counts as a death."""
        files: tuple[Path, ...] = ()
        try:
            birth = new_birth(self.spec, self.kind, self.slot, self._last_ports, self.procs.hello.pid)
            command = self.kind.command(self.spec, birth)
            files = tuple(command.files)
            for path, text in command.files.items():
                await trio.to_thread.run_sync(records.write_text_private, path, text)
            log = self.slot.group_log(self.spec.name)
            started_at = logfiles.size(log)
            logfiles.make_room(self.slot.logs, self.spec.name)
            self._last_ports = dict(birth.ports)
            self._write_note()
            news = self.procs.follow(birth.generation)
            spawned = await self.procs.spawn(
                gen=birth.generation,
                group=self.spec.name,
                argv=list(command.argv),
                env={**environment.clean(os.environ), **command.environment},
                lock=self.slot.generation_lock(self.spec.name, birth.generation),
                log=log,
                note={"ports": dict(birth.ports), "log_start": started_at, "ready": False, "spec": mark_of(self.spec)},
                cwd=command.workdir,
            )
        except (QueenrightError, OSError) as error:
            self._ended, self._blame = Exit(1, 127), str(error).partition("\n")[0]
            for path in files:  # there are keys in them
                with suppress(OSError):
                    path.unlink()
            self.post(Event.GONE)
            return
        self._in_birth = self.was_killed = False
        self.swept = 0
        self.life = self._new_life(birth, spawned.pid, started_at, mark_of(self.spec))
        self.life.oom = evidence.oom_kills(spawned.pid)
        self._watch_health(self.life)
        self._start_soon(self._listen, self.life, news)
        if self.state is State.STOPPING:  # the stop came while the warden forked
            self._start_soon(self._end, self.life)
        else:
            self._in_attempt(self._come_up, self.life, [launch.role for launch in self.spec.launches])
            self._in_attempt(self._keep_start, self.life)
        self.changed()

    def _new_life(self, birth: Birth, pid: int, log_start: int, mark: str) -> Life:
        log, path = self.slot.group_log(self.spec.name), self.slot.start_log(self.spec.name, birth.generation)
        return Life(birth, pid, log_start, mark, logfiles.StartLog(log, log_start, path))

    async def _keep_start(self, life: Life) -> None:
        """Its first lines, before the cap on the log takes them."""
        while not (life.was_ready or life.start_log.is_full):
            life.start_log.take()
            await trio.sleep(budgets.START_LOG_LOOK)

    async def _come_up(self, life: Life, roles: list[str]) -> None:
        """Load these servers, say that the group can serve, and then watch it."""
        if await self._load(life, roles):
            await self.kind.watch(self.spec, life.birth, self._report, self._note_activity)

    async def _warm_up(self, life: Life, delay: float) -> None:
        """Load what was lost: at once, and more slowly each time it happens in a row."""
        await trio.sleep(delay)
        self._losses = self._losses.started_again(time.monotonic())
        await self._load(life, self._lost_roles())

    async def _load(self, life: Life, roles: list[str]) -> bool:
        """Whether the group became ready; it is told either way."""
        stage, delays = "its proxy does not listen yet", iter(restart.POLICY.delays)
        try:
            with trio.fail_after(self.spec.start_limit_s):
                await self._proxy_is_ours(life)
                stage = "its servers are loading"
                while True:
                    await self.kind.load(self.spec, life.birth, roles, self._report)
                    self._refuse_impostors(life)
                    if not (roles := self._lost_roles()):  # one died while another was being loaded
                        break
                    await trio.sleep(next(delays, restart.POLICY.delays[-1]))
        except trio.TooSlowError:
            limit = f"{self.spec.start_limit_s:g} s (start_limit_s of group {self.spec.name})"
            self.post(Event.NOT_READY, life.birth.generation, f"not ready within {limit}: {stage}")
            return False
        except EngineStartError as error:
            self.post(Event.NOT_READY, life.birth.generation, error.what)
            return False
        self.post(Event.READY, life.birth.generation)
        return True

    def _refuse_impostors(self, life: Life) -> None:
        """A server whose port somebody else has would hand prompts and key to him: raises EngineStartError. A port on
        which nobody listens is an unloaded server's."""
        family = life.family()
        for name, port in life.birth.ports.items():
            if ports.owned_by(port, family).owner is ports.Owner.FOREIGN:
                raise EngineStartError(f"port {port} ({name}) was taken by another program")

    def _lost_roles(self) -> list[str]:
        return [role for role, state in self.servers.items() if state is ServerState.LOST]

    async def _proxy_is_ours(self, life: Life) -> None:
        """A 200 from whoever happens to listen there proves nothing: the listener must belong to this generation."""
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

    def _report(self, role: str, state: ServerState) -> None:
        if self.life is None:
            return
        if state is ServerState.READY and not self._is_its_own(role):
            state = ServerState.LOST  # somebody answers in its place; loading it again tells
        was, self.servers[role] = self.servers.get(role), state
        if state is ServerState.LOST and was is not ServerState.LOST:
            self.post(Event.SERVER_LOST, self.life.birth.generation, f"the {role} server died; it is loaded again")
        self.changed()

    def _note_activity(self, role: str, in_flight: int, progress: int) -> None:
        if self.prober is not None:
            self.prober.note_activity(role, in_flight, progress)

    def _watch_health(self, life: Life) -> None:
        """From its birth on, so that a process that was stopped while it loads is noticed, too."""
        self.prober = Prober(
            self.spec,
            self.kind,
            life,
            self.servers,
            is_up=lambda: self.state in (State.RUNNING, State.DEGRADED),
            tell=lambda reason: self.post(Event.UNHEALTHY, life.birth.generation, reason),
            changed=self.changed,
        )
        self._in_attempt(self.prober.run)

    def _is_its_own(self, role: str) -> bool:
        if self.life is None or role not in self.life.birth.ports:
            return True
        owner = ports.owned_by(self.life.birth.ports[role], self.life.family()).owner
        return owner is not ports.Owner.FOREIGN

    async def _listen(self, life: Life, news: trio.MemoryReceiveChannel[Any]) -> None:
        generation = life.birth.generation
        async for item in news:
            match item:
                case Exited(ended):
                    self._ended = ended
                    life.exited.set()
                    self.post(Event.EXITED, generation)
                case Gone(killed):
                    self.swept = killed if self.state is State.STOPPING else 0
                    self.post(Event.GONE, generation)
                    return
                case unkillable:
                    pids = " ".join(map(str, unkillable.pids)) or "none seen, but its lock is held"
                    self.post(Event.UNKILLABLE, generation, f"cannot be killed: pids {pids}")

    async def _end(self, life: Life) -> None:
        """Let go, SIGTERM, SIGKILL; the sweep and the last word are the warden's. Bounded by the group's grace."""
        generation = life.birth.generation
        with trio.CancelScope(shield=True, deadline=trio.current_time() + budgets.GROUP_STOP):
            with trio.move_on_after(self.spec.grace_s):
                await self._release(life)
                if not life.exited.is_set():
                    self.procs.kill(generation, signal.SIGTERM)
                    await life.exited.wait()
                return
            self.was_killed = True
            self.procs.kill(generation, signal.SIGKILL, everybody=True)

    async def _release(self, life: Life) -> None:
        """Have it unload, for at most UNLOAD_LIMIT, and no longer than its leader lives."""
        async with trio.open_nursery() as nursery:

            async def until_exited() -> None:
                await life.exited.wait()
                nursery.cancel_scope.cancel()

            nursery.start_soon(until_exited)
            with trio.move_on_after(budgets.UNLOAD_LIMIT):
                try:
                    await self.kind.release(life.birth)
                except Exception as error:  # noqa: BLE001 - whatever it is, SIGTERM is next
                    self.reason = f"{self.reason}; unload failed: {error}"
            nursery.cancel_scope.cancel()

    # --- adoption ---------------------------------------------------------------------------------------------------

    def _take_up(self, row: Row, wanted: bool) -> None:
        """Take up what an earlier keeper started: same processes, same ports, same keys."""
        note = row.note or {}
        birth = known_birth(self.spec, self.slot, row.gen, dict(note["ports"]), self.procs.hello.pid)
        life = self._new_life(birth, row.pid, int(note["log_start"]), str(note["spec"]))
        life.was_ready = bool(note.get("ready"))
        life.oom = evidence.Count(*note["oom"]) if note.get("oom") else None
        self.life, self._ended = life, row.exit
        self.state = State.REBUILDING if self.history.ever_ready else State.STARTING
        self.reason = "taken up by a new keeper"
        if row.state != "running":
            life.exited.set()
        if row.state == "unkillable":  # the warden said so once, to the keeper before us
            self.state, self.reason = State.FAILED, f"cannot be killed: what is left of pid {row.pid}"
        if row.state == "gone":
            self.post(Event.GONE, row.gen)
            return
        self._start_soon(self._listen, life, self.procs.follow(row.gen))
        changed = wanted and life.mark != mark_of(self.spec)
        if changed:  # the contract was changed, and its keeper died before it was carried out
            self._stop_for(After.START, "its configuration changed")
        elif row.state == "running":
            self._watch_health(life)
            ready = bool(note.get("ready"))
            self.state = State.RUNNING if ready else self.state
            # One that was ready is proven, not loaded: a server that its idle time unloaded stays unloaded, and one
            # that died meanwhile is the watch's to report.
            self._in_attempt(self._come_up, life, [] if ready else [launch.role for launch in self.spec.launches])
            self._in_attempt(self._keep_start, life)

    # --- records ----------------------------------------------------------------------------------------------------

    @property
    def note_key(self) -> str:
        return f"group:{self.spec.name}"

    def _write_note(self) -> None:
        """To the warden, for the next keeper."""
        history = records.unstructure(self.history)
        failed = self.reason if self.state is State.FAILED else ""
        self.procs.note_slot(
            self.note_key,
            {
                "history": history, "losses": records.unstructure(self._losses), "ports": self._last_ports,
                "failed": failed, "cause": records.unstructure(self.cause) if self.cause else None,
            },
        )  # fmt: skip
        if self.life is not None:
            ready = self.state in (State.RUNNING, State.DEGRADED)
            birth = self.life.birth
            note = {
                "ports": dict(birth.ports),
                "log_start": self.life.log_start,
                "ready": ready,
                "spec": self.life.mark,
                "oom": list(self.life.oom) if self.life.oom else None,
            }
            self.procs.note_generation(birth.generation, note)

    def _publish(self) -> None:
        """To disk, for those who bind without asking: soon, and as it is then. A full disk loses nothing."""
        if not self._to_publish:
            self._to_publish = True
            self._start_soon(self._write_record)

    async def _write_record(self) -> None:
        """Not at once: a rebuild is several changes within milliseconds, and must not wait for the description of each."""
        await trio.sleep(budgets.PUBLISH_PAUSE)
        self._to_publish = False
        if self.state in (State.STOPPING, State.DOWN):
            return  # it is about to be removed
        path, facts = self.slot.group_record(self.spec.name), self.describe()
        try:
            # One at a time, first come, first served: an older state must not be the last to be written.
            await trio.to_thread.run_sync(
                lambda: records.write(path, facts, version=records.GROUP_VERSION, durable=False),
                limiter=self._publishing,
            )
        except QueenrightError as error:
            self.reason = error.what
            self.changed()

    def describe(self) -> dict[str, Any]:
        """The group for `status` and for its record. Plain data, no secrets."""
        life = self.life
        prober = self.prober if life and self.state in (State.RUNNING, State.DEGRADED) else None
        proxy = {"pid": life.pid, "port": life.port, "health": prober and prober.describe(PROXY)} if life else None
        family = life.family() if life else []
        servers = []
        for launch in self.spec.launches:
            port = life.birth.ports.get(launch.role) if life else None
            owner = ports.owned_by(port, family) if port else None
            pid = owner.pid if owner and owner.owner is ports.Owner.OURS else None
            servers.append(
                {
                    "role": launch.role,
                    "model": launch.model,
                    "pid": pid,
                    "port": port,
                    "state": self.servers.get(launch.role, ServerState.DOWN).value,
                    "rss_bytes": identity.resident_bytes(pid) if pid else None,
                    "health": prober and prober.describe(launch.role),
                }
            )
        return {
            "name": self.spec.name,
            "state": self.state.value,
            "settled": self.is_settled,
            "draining": self.is_draining,
            "reason": self.reason,
            "since": self.since,
            "generation": life.birth.generation if life else None,
            "url": life.birth.url if life else None,
            "proxy": proxy,
            "servers": servers,
            "restarts": self.history.restarts,
            "cause": records.unstructure(self.cause) if self.cause else None,
            "log_tail": self.log_tail if self.state is State.FAILED else [],
        }

    # --- nursery ----------------------------------------------------------------------------------------------------

    def _start_soon(self, function: Callable[..., Any], *arguments: Any) -> None:
        assert self._nursery is not None  # noqa: S101 - set before anything can happen
        self._nursery.start_soon(function, *arguments)

    def _in_attempt(self, function: Callable[..., Any], *arguments: Any) -> None:
        """Start work that ends with the present attempt."""
        scope = trio.CancelScope()
        self._attempt.add(scope)

        async def work() -> None:
            with scope:
                await function(*arguments)
            self._attempt.discard(scope)

        self._start_soon(work)

    def _end_attempt(self) -> None:
        """Stop waiting for readiness, watching, or counting down to a restart."""
        for scope in self._attempt:
            scope.cancel()
