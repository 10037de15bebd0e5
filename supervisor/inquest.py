"""What follows from a death, of a group or of a server under a proxy that lives: its cause, and the verdict on what comes
after it. Pure: evidence, time and chance are passed in.
"""

from __future__ import annotations

from typing import NamedTuple

from attrs import evolve, field, frozen

from supervisor import causes, restart
from supervisor.causes import Cause, Evidence, Word


def _no_losses() -> restart.History:
    return restart.History(ever_ready=True)


@frozen
class Past:
    """What a group has been through, as far as it decides or is shown.

    `losses` is the history of the servers under a proxy that lives: a row of its own, so that a lost server does not
    slow the group's restart. `cause` is that of the last end, of the group or of one of its servers; it stays when the
    group is back. `breaker` is the verdict that the group is under already when it ends.
    """

    history: restart.History = field(factory=restart.History)
    losses: restart.History = field(factory=_no_losses)
    cause: Cause | None = None
    breaker: restart.Verdict | None = None

    def became_ready(self, now: float) -> Past:
        """Every server answers."""
        return evolve(self, history=self.history.became_ready(now), losses=self.losses.became_ready(now))

    def started_again(self, now: float) -> Past:
        """The group was started again after a death."""
        return evolve(self, history=self.history.started_again(now))

    def without_breaker(self) -> Past:
        """A new generation begins: the verdict on the one before is not its own."""
        return evolve(self, breaker=None)

    def refused(self, why: str) -> Past:
        """There is no room for it. One that never served is given up at once, for nothing will be other at the next try;
        one that did is tried again, since somebody else may have its memory for a while only."""
        return self if self.history.ever_ready else evolve(self, breaker=restart.Verdict(False, 0.0, why))

    def loaded_again(self, now: float) -> Past:
        """A server was loaded again after it was lost."""
        return evolve(self, losses=self.losses.started_again(now))

    def forgiven(self) -> Past:
        """Somebody wants it up again, or it is another one from now on."""
        losses = evolve(self.losses.forgiven(), ever_ready=True)
        return evolve(self, history=self.history.forgiven(), losses=losses, breaker=None)


class Finding(NamedTuple):
    """What is so from now on, and the verdict."""

    past: Past
    cause: Cause
    verdict: restart.Verdict

    @property
    def is_conflict(self) -> bool:
        """Whether another program had one of its ports."""
        return self.cause.word is Word.PORT_CONFLICT

    @property
    def is_for_want_of_memory(self) -> bool:
        """Whether what it took was not there."""
        return self.cause.word in (Word.OOM_KILL, Word.DEVICE_MEMORY, Word.HOST_MEMORY)


def on_group(past: Past, evidence: Evidence, words: str, *, now: float, chance: float) -> Finding:
    """On a generation that is gone, or that never came to be. `words`: the last of its log, "" for none."""
    cause = causes.name(evidence)
    why = evidence.blame or evidence.ended.describe()
    why = f"{why}: {words}" if words else why
    why = f"{cause.describe()}; {why}" if cause.says_more else why
    history = past.history.died(now, chance, port_conflict=cause.word is Word.PORT_CONFLICT)
    verdict = past.breaker or restart.decide(history, ended=evidence.ended, why=why, now=now)
    return Finding(evolve(past, history=history, cause=cause, breaker=None), cause, verdict)


def on_server(past: Past, evidence: Evidence, *, now: float, chance: float) -> Finding:
    """On a server that died under its proxy. One that is to stay down takes the group along: its proxy would load it at
    the next request."""
    cause = causes.name(evidence)
    losses = past.losses.died(now, chance)
    verdict = restart.decide(losses, ended=evidence.ended, why=evidence.blame, now=now)
    breaker = past.breaker if verdict.restart else verdict
    if verdict.restart:
        verdict = verdict._replace(reason=_loaded_again(evidence.blame, cause, losses.failures, verdict.delay))
    return Finding(evolve(past, losses=losses, cause=cause, breaker=breaker), cause, verdict)


def _loaded_again(why: str, cause: Cause, failures: int, delay: float) -> str:
    times = f", the {ordinal(failures)} time in a row, {restart.when(delay)}" if failures > 1 else ""
    named = f" ({cause.describe()})" if cause.word is not Word.UNKNOWN else ""
    return f"{why}; it is loaded again{times}{named}"


def ordinal(number: int) -> str:
    """In English: 1st, 2nd, 3rd, 4th, 11th, 21st."""
    teens = 10 <= number % 100 < 20
    return f"{number}{'th' if teens else {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10, 'th')}"
