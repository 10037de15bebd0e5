"""What is known of a life that ended, gathered for the inquest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from supervisor import evidence, logfiles
from supervisor.causes import Evidence
from supervisor.contract import Exit

if TYPE_CHECKING:
    from supervisor.inquest import Finding
    from supervisor.life import Life

TAIL_LINES = 20
"""Of a generation's log, for status, and for naming the end of one that served."""

NO_EXIT = Exit(0, 0)
"""Of a server under a proxy that lives: how it ended, only its proxy knows."""

STILLBORN = Exit(1, 127)
"""Of a generation that could not be started: as a shell says it of a program."""


def last_words(life: Life) -> list[str]:
    """The end of its log. What is kept of a start that failed is complete with it."""
    if not life.was_ready:
        life.start_log.take()
    return logfiles.tail(life.log, lines=TAIL_LINES, since=life.log_start)


def of_group(life: Life | None, tail: list[str], blame: str) -> Evidence:
    """On a generation that ended, or that could not be started. Of a start that failed all of the log counts: its first
    lines are the cause, and what follows from it comes after them."""
    if life is None:
        return Evidence(STILLBORN, blame)
    lines = tail if life.was_ready else logfiles.tail(life.log, lines=logfiles.START_LINES, since=life.log_start)
    generation = life.birth.generation
    return Evidence(life.ended, blame, tuple(lines), life.was_ready, evidence.rise(life.oom), _kernel(life), generation)


def of_server(life: Life, blame: str) -> Evidence:
    """On a server that died under its proxy. The count of OOM kills begins anew with it."""
    lines = tuple(logfiles.tail(life.log, lines=TAIL_LINES, since=life.log_start))
    oom, generation = evidence.rise(life.oom), life.birth.generation
    found = Evidence(NO_EXIT, blame, lines, was_ready=True, oom=oom, kernel=_kernel(life), generation=generation)
    life.oom = evidence.oom_kills(life.pid)
    return found


def _kernel(life: Life) -> tuple[str, ...]:
    return evidence.kernel_log().of(life.kin)


def facts(group: str, found: Evidence, finding: Finding) -> dict[str, Any]:
    """For the slot's journal, for those who ask later."""
    cause, verdict = finding.cause, finding.verdict
    return {
        "group": group,
        "generation": found.generation or None,
        "cause": cause.word.value,
        "detail": cause.detail,
        "restart": verdict.restart,
        "delay": round(verdict.delay, 3),
    }
