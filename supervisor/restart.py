"""Whether, and after what delay, a group that died is started again. Pure: time is passed in.

The history is data (a tuple of frozen deaths), so that it can be left in the warden's note and a keeper that takes
over decides as its predecessor would have.
"""

from __future__ import annotations

from attrs import frozen

from supervisor import budgets

SIGTERM = 15
EXITED, KILLED = 1, 2  # CLD_EXITED and CLD_KILLED of waitid(2)
TERMINATED = frozenset({(KILLED, SIGTERM), (EXITED, 0), (EXITED, 128 + SIGTERM)})
"""Ends that a SIGTERM may have brought about. llama-swap and the built-in proxy catch it and exit 0 (measured)."""


@frozen
class Verdict:
    """`restart` after `delay` seconds, or not at all; `reason` reaches status and log as it stands."""

    restart: bool
    delay: float
    reason: str


@frozen
class History:
    """What a group has been through. Times are CLOCK_MONOTONIC seconds, which keepers of one boot share.

    `failures` counts deaths in a row (a life of RESTART_RESET seconds in health ends the row); `doomed` counts
    the starts of a group that never was healthy at all.
    """

    failures: int = 0
    doomed: int = 0
    ever_ready: bool = False
    ready_at: float | None = None
    restarts: int = 0

    def became_ready(self, now: float) -> History:
        """The group answers."""
        return History(self.failures, 0, True, now, self.restarts)

    def died(self, now: float) -> History:
        """A generation of the group ended without being asked to."""
        healthy_for = now - self.ready_at if self.ready_at is not None else 0.0
        failures = 1 if healthy_for >= budgets.RESTART_RESET else self.failures + 1
        doomed = 0 if self.ever_ready else self.doomed + 1
        return History(failures, doomed, self.ever_ready, None, self.restarts)

    def started_again(self) -> History:
        """A restart was carried out."""
        return History(self.failures, self.doomed, self.ever_ready, self.ready_at, self.restarts + 1)


def decide(history: History, *, code: int, status: int, why: str) -> Verdict:
    """The verdict on a death that `history.died` has already counted. `why` is the death in plain words."""
    if history.doomed >= budgets.DOOMED_TRIES:
        return Verdict(False, 0.0, f"given up after {history.doomed} starts that never became ready; the last: {why}")
    delay = budgets.RESTART_DELAYS[min(history.failures, len(budgets.RESTART_DELAYS)) - 1]
    if (code, status) in TERMINATED:
        delay = max(delay, budgets.TERM_STORM_PAUSE)
    when = "at once" if delay == 0 else f"in {delay:g} s"
    return Verdict(True, delay, f"{why}; restart {history.failures} in a row {when}")
