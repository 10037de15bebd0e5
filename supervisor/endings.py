"""What is known of a life that ended, gathered for naming its cause; and how a keeper reads what an earlier one noted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisor import evidence, logfiles, records, restart
from supervisor.causes import Cause, Evidence
from supervisor.contract import Exit
from supervisor.errors import RecordError

if TYPE_CHECKING:
    from pathlib import Path

    from supervisor.birth import Life

TAIL_LINES = 20
"""Of a generation's log, for status, and for naming the end of one that served."""

NO_EXIT = Exit(0, 0)
"""Of a server under a proxy that lives: how it ended, only its proxy knows."""


def of_group(life: Life | None, log: Path, tail: list[str], ended: Exit, blame: str) -> Evidence:
    """On a generation that ended, or that could not be started. Of a start that failed all of the log counts: its first
    lines are the cause, and what follows from it comes after them."""
    if life is None:
        return Evidence(ended, blame)
    lines = tail if life.was_ready else logfiles.tail(log, lines=logfiles.START_LINES, since=life.log_start)
    return Evidence(ended, blame, tuple(lines), life.was_ready, evidence.rise(life.oom), _kernel(life))


def of_server(life: Life, log: Path, blame: str) -> Evidence:
    """On a server that died under its proxy. The count of OOM kills begins anew with it."""
    lines = tuple(logfiles.tail(log, lines=TAIL_LINES, since=life.log_start))
    found = Evidence(NO_EXIT, blame, lines, was_ready=True, oom=evidence.rise(life.oom), kernel=_kernel(life))
    life.oom = evidence.oom_kills(life.pid)
    return found


def _kernel(life: Life) -> tuple[str, ...]:
    return evidence.kernel_log().of(life.kin)


def noted_history(noted: object, otherwise: restart.History) -> restart.History:
    """A history that an earlier keeper left, of whatever version it was: what it does not say is as in a new one, what we
    do not know is let go. `otherwise` where there is none to read."""
    if not isinstance(noted, dict):
        return otherwise
    new = records.unstructure(restart.History())
    try:
        return records.structure({name: noted.get(name, new[name]) for name in new}, restart.History)
    except RecordError:
        return otherwise


def noted_cause(noted: object) -> Cause | None:
    """The cause that an earlier keeper left; None where there is none that we know."""
    try:
        return records.structure(noted, Cause) if noted is not None else None
    except RecordError:
        return None
