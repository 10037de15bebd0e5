"""Whether a process that lives also works: evidence in, verdict out. Pure; supervisor.probing gathers the evidence.

Five verdicts and five rules (docs/concepts.md, "Health"). The rule behind them: only evidence *against* a process kills
it. What could not be asked or read is unknown, unknown is not dead, and what an observation does not know it leaves as
the one before had it. Each further sign of life can only better a verdict (a property test).
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from supervisor import budgets
from supervisor.kinds import Answer, ServerState


class Verdict(StrEnum):
    """What is thought of a process, from the best to the worst; `status` shows these words."""

    HEALTHY = "healthy"
    """It answers, and what it was asked moves on or is fresh."""
    UNKNOWN = "unknown"
    """Nothing is known of it yet."""
    BUSY = "busy"
    """It says nothing, or nothing new, and computes: left alone."""
    STALLED = "stalled"
    """Requests are in flight, none moves on, and it does not compute, or has done so for suspiciously long: asked more
    closely, and left alone as yet."""
    HUNG = "hung"
    """It does not answer and does not compute, or was stopped: killed."""
    WEDGED = "wedged"
    """It answers and serves nobody, the canary neither: killed."""


FATAL = frozenset({Verdict.HUNG, Verdict.WEDGED})
MISSES = frozenset({Answer.SILENT, Answer.BROKE_OFF})
ASKED = frozenset({Answer.ANSWERED, Answer.NOT_YET})
GOING_DOWN = frozenset({ServerState.UNLOADED, ServerState.UNLOADING, ServerState.DOWN})


class Limits(NamedTuple):
    """The budgets of the same names, so that a group or a test may have its own. Seconds, counts aside. `drain` is for one
    that refuses connections and may still be letting its last answers out."""

    observations: int = budgets.OBSERVATIONS
    misses: int = budgets.HANG_MISSES
    stall_shown: float = budgets.STALL_SHOWN
    wedge: float = budgets.WEDGE_LIMIT
    loop: float = budgets.LOOP_LIMIT
    stall: float = budgets.STALL_LIMIT
    drain: float = budgets.WEDGE_LIMIT
    most_step: float = budgets.PROBE_INTERVAL + budgets.PROBE_ANSWER
    """What one observation may add to a duration: time in which nobody looked (the keeper was stopped, the machine
    slept) proves nothing."""

    @classmethod
    def with_wedge(cls, wedge: float, stall: float = budgets.STALL_LIMIT) -> Limits:
        """The default ones, but for a group's own."""
        return cls(
            wedge=wedge,
            stall_shown=min(budgets.STALL_SHOWN, wedge / 3),
            loop=max(budgets.LOOP_LIMIT, wedge),
            stall=max(stall, wedge),
        )

    def of_a_proxy(self) -> Limits:
        """For who only passes on: requests that do not move on are its servers' matter."""
        never = float("inf")
        return self._replace(stall_shown=never, wedge=never, loop=never)


class Evidence(NamedTuple):
    """What one look at one process found. None is what could not be found out."""

    at: float
    """Seconds on the monotonic clock."""
    stopped: bool | None = None
    """Whether its state is T or t (proc_pid_stat(5))."""
    computing: bool | None = None
    """Whether it took CPU time since the look before, or waits for a CPU or a disk (states R and D)."""
    answer: Answer = Answer.UNKNOWN
    in_flight: int | None = None
    """Requests it owes an answer."""
    progress: int | None = None
    """Changes when an answer moves on; see kinds.Activity."""
    closer: str | None = None
    """What a closer look said."""
    closer_answer: Answer = Answer.UNKNOWN
    """What came of the last closer look; it stands until the next."""
    canary: Answer = Answer.UNKNOWN
    """What came of a canary that ended since the look before."""
    state: ServerState = ServerState.READY
    starting: bool = False
    """Within the start period: a server that was started anew may be silent, whatever it does meanwhile."""


class Record(NamedTuple):
    """What is known of one process after the looks so far. Durations are seconds of observed time."""

    at: float | None = None
    state: ServerState | None = None
    stopped: int = 0
    refused: int = 0
    missed: int = 0
    """Probes without an answer, in a row."""
    lifeless: int = 0
    """Those of them in a row at which it did not compute either."""
    silent_for: float = 0.0
    """Since its last answer."""
    idle_for: float = 0.0
    """While it owed answers: without a sign of progress, and not computing."""
    quiet_for: float = 0.0
    """While it owed answers: without a sign of progress, computing or not."""
    loop_silent_for: float = 0.0
    """Since a closer look last said something."""
    loading_for: float = 0.0
    answer: Answer = Answer.UNKNOWN
    computing: bool | None = None
    in_flight: int | None = None
    progress: int | None = None
    closer: str | None = None
    canary: Answer = Answer.UNKNOWN
    """Of the last one since the last progress."""
    starting: bool = False


class Judgement(NamedTuple):
    """`reason` is the verdict in words, for status and journal. The rest is what to ask next."""

    verdict: Verdict
    reason: str = ""
    wants_closer: bool = False
    wants_canary: bool = False


def observe(record: Record, seen: Evidence, limits: Limits) -> Record:
    """The record after one more look. A change of the server's state begins a new one, and so does the end of its start
    period: what it missed in that never counts."""
    if (record.state is not None and record.state is not seen.state) or (record.starting and not seen.starting):
        record = Record(at=record.at, progress=record.progress, in_flight=record.in_flight)
    step = min(max(0.0, seen.at - record.at), limits.most_step) if record.at is not None else 0.0
    moved = _has_moved(record, seen)
    in_flight = record.in_flight if seen.in_flight is None else seen.in_flight
    # What is not loaded has no process that could compute.
    computing = seen.computing if seen.state is ServerState.READY else False
    answered, miss = seen.answer in ASKED, seen.answer in MISSES
    missed = 0 if answered or moved else record.missed + miss
    lifeless = 0 if not missed or computing else record.lifeless + (miss and computing is False)
    return Record(
        at=seen.at,
        state=seen.state,
        stopped=0 if seen.stopped is False else record.stopped + bool(seen.stopped),
        refused=0 if answered else record.refused + (seen.answer is Answer.REFUSED),
        missed=missed,
        lifeless=lifeless,
        silent_for=0.0 if answered else record.silent_for + step * (miss or record.missed > 0),
        idle_for=0.0 if moved or computing else record.idle_for + step * (bool(in_flight) and computing is False),
        quiet_for=0.0 if moved else record.quiet_for + step * bool(in_flight),
        loop_silent_for=(
            0.0
            if moved or seen.closer_answer in ASKED
            else record.loop_silent_for + step * (bool(in_flight) and seen.closer_answer is Answer.SILENT)
        ),
        loading_for=record.loading_for + step if seen.state is ServerState.LOADING else 0.0,
        answer=record.answer if seen.answer is Answer.UNKNOWN else seen.answer,
        computing=seen.computing,
        in_flight=in_flight,
        progress=record.progress if seen.progress is None else seen.progress,
        closer=record.closer if seen.closer is None else seen.closer,
        canary=Answer.UNKNOWN if moved else record.canary if seen.canary is Answer.UNKNOWN else seen.canary,
        starting=seen.starting,
    )


def _has_moved(record: Record, seen: Evidence) -> bool:
    """Whether there is a sign of progress."""
    return (
        (None not in (record.progress, seen.progress) and seen.progress != record.progress)
        or (None not in (record.closer, seen.closer) and seen.closer != record.closer)
        or seen.canary in ASKED
    )


def judge(record: Record, limits: Limits, start_limit: float = budgets.START_LIMIT) -> Judgement:
    """What is to be thought of the process. `start_limit`: seconds that a load may take."""
    if record.stopped >= limits.observations:
        return Judgement(Verdict.HUNG, "it is stopped (by SIGSTOP or a debugger)")
    if record.state is not ServerState.READY and record.state is not None:
        return _of_the_unloaded(record, limits, start_limit)
    fatal = _fatal(record, limits)
    if fatal is not None and not record.starting:
        return fatal
    if fatal is not None:
        return Judgement(Verdict.BUSY, f"{fatal.reason}; it is within its start period (`start_period_s`)")
    return _of_the_living(record, limits)


def _of_the_unloaded(record: Record, limits: Limits, start_limit: float) -> Judgement:
    """Nobody listens on its port, and that is no fault; but who waits for it must not wait for ever."""
    if record.loading_for > start_limit + limits.most_step:
        return Judgement(Verdict.WEDGED, f"it has been loading for {record.loading_for:.0f} s")
    if record.state in GOING_DOWN and record.in_flight and record.idle_for >= limits.wedge:
        return Judgement(
            Verdict.WEDGED, f"{_requests(record)} waited for {record.idle_for:.0f} s, and nothing loads its server"
        )
    return Judgement(Verdict.HEALTHY)


def _fatal(record: Record, limits: Limits) -> Judgement | None:
    # A proxy that somebody told to end refuses while it lets its last answers out; llama-swap takes up to 35 s.
    drained = not record.in_flight or record.quiet_for >= limits.drain
    if record.refused >= limits.observations and drained:
        return Judgement(Verdict.HUNG, "it lives and refuses connections")
    if record.lifeless >= limits.misses:
        return Judgement(
            Verdict.HUNG, f"no answer to {record.missed} probes in {record.silent_for:.1f} s, no progress, no CPU time"
        )
    if not record.in_flight:
        return None
    nobody = f"{_requests(record)}, no progress"
    if record.missed >= limits.misses and record.quiet_for >= limits.stall:
        return Judgement(Verdict.HUNG, f"{nobody} and no answer to probes for {record.quiet_for:.0f} s")
    if record.canary in MISSES | {Answer.REFUSED}:
        if record.idle_for >= limits.wedge:
            return Judgement(
                Verdict.WEDGED, f"{nobody} and no CPU time for {record.idle_for:.0f} s, nor an answer to a canary"
            )
        if record.loop_silent_for >= limits.loop or record.quiet_for >= limits.stall:
            return Judgement(Verdict.WEDGED, f"{nobody} for {record.quiet_for:.0f} s, nor an answer to a canary")
    return None


def _of_the_living(record: Record, limits: Limits) -> Judgement:
    quiet = bool(record.in_flight) and record.quiet_for >= limits.stall_shown
    talks = record.missed == 0 and record.answer in ASKED
    suspicious = quiet and (
        record.idle_for >= limits.wedge / 2
        or record.loop_silent_for >= limits.loop / 2
        or record.quiet_for >= limits.stall / 2
    )
    ask = {"wants_closer": quiet and talks, "wants_canary": suspicious and talks}
    if suspicious or (quiet and record.idle_for >= limits.stall_shown):
        how = "no CPU time" if record.idle_for >= limits.stall_shown else "only CPU time"
        return Judgement(
            Verdict.STALLED, f"{_requests(record)}, no progress for {record.quiet_for:.0f} s, {how}", **ask
        )
    if quiet or record.missed >= limits.misses:
        words = [f"{_requests(record)}, no answer yet"] if record.in_flight else []
        words += [f"no answer to probes for {record.silent_for:.0f} s"] if record.missed else []
        words.append("it computes" if record.computing else "whether it computes is unknown")
        return Judgement(Verdict.BUSY, ", ".join(words), **ask)
    if record.answer is Answer.UNKNOWN and not record.silent_for and record.computing is None:
        return Judgement(Verdict.UNKNOWN)
    return Judgement(Verdict.HEALTHY)


def _requests(record: Record) -> str:
    count = record.in_flight or 0
    return f"{count} request{'' if count == 1 else 's'} in flight"


def evidence_words(record: Record) -> str:
    """The last look in a phrase, for status."""
    if record.stopped:
        return "stopped"
    if record.state is not ServerState.READY:
        return ""
    words = [f"silent for {record.silent_for:.1f} s" if record.answer is Answer.SILENT else record.answer.value]
    if record.in_flight:
        words.append(_requests(record))
    if record.computing is not None and (record.in_flight or record.missed):
        words.append("CPU time advancing" if record.computing else "no CPU time")
    return ", ".join(words)
