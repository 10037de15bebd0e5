"""Whether, and after what delay, a group that died is started again. Pure: time and chance are passed in.

The policy is in `budgets`; the history is data, a frozen value of plain numbers: it is left in the warden's note, and a
keeper that takes over decides as its predecessor would have.

Three things bound what a group that keeps dying may cost. A *row* of deaths waits longer each time; a life in health
ends it. A *window* counts restarts whatever the lives between them were, for a crash-looper that learned to live a
little longer than what ends a row (pm2 forgets to count once a process has served for 16 s, and then started one 2,364
times in 10 s: measured). And what never became healthy at all, *doomed*, has a few tries only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from attrs import evolve, frozen

from supervisor import budgets

if TYPE_CHECKING:
    from supervisor.contract import Exit

SIGTERM = 15
EXITED, KILLED = 1, 2  # CLD_EXITED and CLD_KILLED of waitid(2)
TERMINATED = frozenset({(KILLED, SIGTERM), (EXITED, 0), (EXITED, 128 + SIGTERM)})
"""Ends that a SIGTERM may have brought about. llama-swap and the built-in proxy catch it and exit 0 (measured)."""


class Verdict(NamedTuple):
    """`restart` after `delay` seconds, or not at all; `reason` reaches status and log as it stands."""

    restart: bool
    delay: float
    reason: str


@frozen
class History:
    """What a group has been through. Times are CLOCK_MONOTONIC seconds, which keepers of one boot share.

    `failures` counts deaths in a row (a life of `reset` seconds in health ends the row); `doomed` counts the starts of a
    group that never was healthy at all, and `port_conflicts` those that ended because another program had a port, which
    are not the engine's fault. `chance` (0 to 1) is drawn once for a row: what one cause felled together does not come
    back in step, and yet no delay of a row is shorter than the one before. `starts` are the restarts of the window.
    """

    failures: int = 0
    doomed: int = 0
    ever_ready: bool = False
    ready_at: float | None = None
    restarts: int = 0
    port_conflicts: int = 0
    chance: float = 0.0
    starts: tuple[float, ...] = ()

    def became_ready(self, now: float) -> History:
        """The group answers."""
        return evolve(self, doomed=0, port_conflicts=0, ever_ready=True, ready_at=now)

    def died(self, now: float, chance: float = 0.0, *, port_conflict: bool = False) -> History:
        """A generation of the group ended without being asked to. `chance` is a new random number from 0 to 1."""
        healthy_for = now - self.ready_at if self.ready_at is not None else 0.0
        begins = self.failures == 0 or healthy_for >= budgets.RESTART_RESET
        return evolve(
            self,
            failures=1 if begins else self.failures + 1,
            doomed=self.doomed if self.ever_ready or port_conflict else self.doomed + 1,
            port_conflicts=self.port_conflicts + 1 if port_conflict else 0,
            ready_at=None,
            chance=chance if begins else self.chance,
        )

    def started_again(self, now: float) -> History:
        """A restart was carried out."""
        return evolve(self, restarts=self.restarts + 1, starts=(*self.recent(now), now))

    def forgiven(self) -> History:
        """Somebody wants it up again: everything is forgotten but how often it was started."""
        return History(restarts=self.restarts)

    def recent(self, at: float) -> tuple[float, ...]:
        """The restarts of the window that ends with `at`."""
        return tuple(start for start in self.starts if start > at - budgets.RESTART_PERIOD)


def decide(history: History, *, ended: Exit, why: str, now: float) -> Verdict:
    """The verdict on a death that `history.died` has already counted. `why` is the death in plain words."""
    if history.doomed >= budgets.DOOMED_TRIES:
        return _no(f"given up after {history.doomed} starts that never became ready; the last: {why}")
    if history.port_conflicts >= budgets.PORT_TRIES and not history.ever_ready:
        return _no(f"given up after {history.port_conflicts} starts whose ports other programs took; the last: {why}")
    delay = pause(history.failures, history.chance)
    if (ended.code, ended.status) in TERMINATED:
        delay = max(delay, budgets.TERM_STORM_PAUSE)
    if len(history.recent(now + delay)) >= budgets.RESTART_INTENSITY:
        restarts = f"{budgets.RESTART_INTENSITY} restarts within {budgets.RESTART_PERIOD / 60:g} minutes"
        return _no(f"given up after {restarts}; the last end: {why}")
    return Verdict(True, delay, f"{why}; restart {history.failures} in a row {when(delay)}")


def pause(failures: int, chance: float) -> float:
    """Seconds before the next try after so many `failures` in a row, 1 or more."""
    delays = budgets.RESTART_DELAYS
    return delays[min(failures, len(delays)) - 1] * (1 + budgets.RESTART_JITTER * chance)


def when(delay: float) -> str:
    """In words: the seconds until a restart."""
    return "at once" if delay == 0 else f"in {delay:.3g} s"


def _no(reason: str) -> Verdict:
    return Verdict(False, 0.0, reason)
