"""A slot whose control socket is silent: whether its warden hangs, and how one that does is ended.

Silence alone proves nothing: a keeper is being replaced, a disk is slow, a machine is busy. What proves a hang is a
warden that is *stopped* (state T of proc_pid_stat(5)) at two looks, with nobody answering for WARDEN_SILENCE between
them. A stopped warden whose keeper answers is somebody's Ctrl-Z. One in uninterruptible sleep, under a debugger, or of
another pid namespace is never touched.
"""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING

from supervisor import budgets, identity, stopping

if TYPE_CHECKING:
    from supervisor.identity import Identity
    from supervisor.slot import Slot

STOPPED = "T"


class Silence:
    """What was seen, from one look to the next, by one process that waits."""

    def __init__(self) -> None:
        self.is_kept = False
        """Whether nobody answered at the last look."""
        self.warden: Identity | None = None
        self.state = ""
        """Letter of proc_pid_stat(5) at the last look; empty when it could not be told."""
        self._stopped: tuple[float, float] | None = None
        """It was stopped at every look in this time: from the question before the first of them to the last look."""

    def broken(self) -> None:
        """The keeper answered, or there is no warden: what was seen before means nothing any more."""
        self.is_kept, self.warden, self.state, self._stopped = False, None, "", None

    def look(self, slot: Slot, began: float) -> None:
        """The socket was asked at `began` (time.monotonic) and gave no answer: look at the warden."""
        self.saw(*_state_of(stopping.find_warden(slot)), began=began, now=time.monotonic())

    def saw(self, warden: Identity | None, state: str, *, began: float, now: float) -> None:
        """Take in one look: nobody answered from `began` to `now`, when the warden was in `state`."""
        if warden != self.warden or state != STOPPED:
            self._stopped = None
        self.is_kept, self.warden, self.state = True, warden, state
        if warden is not None and state == STOPPED:
            self._stopped = (self._stopped[0] if self._stopped else began, now)

    @property
    def is_suspect(self) -> bool:
        """Whether waiting on may prove a hang."""
        return self.warden is not None and self.state == STOPPED

    @property
    def proof(self) -> str:
        """That the warden hangs, in words; empty while it is not proven."""
        if self.warden is None or self._stopped is None:
            return ""
        if self._stopped[1] - self._stopped[0] < budgets.WARDEN_SILENCE:
            return ""
        return (
            f"the engine's warden hangs: pid {self.warden.pid} is stopped (state {STOPPED}), and nobody has answered "
            f"on its control socket for {budgets.WARDEN_SILENCE:g} s"
        )

    def describe(self) -> str:
        """What is known of the warden, for a message."""
        if self.warden is None:
            return "its warden cannot be found from here"
        return f"its warden, pid {self.warden.pid}, is in state {self.state or 'unknown'}"


def end(slot: Slot, warden: Identity) -> None:
    """Kill a warden that hangs; the kernel takes most of its engine with it. Does not wait for that: its lock tells."""
    # Its socket's maker once more: a warden that came since is another one.
    if stopping.find_warden(slot) == warden and identity.state_of(warden.pid) == STOPPED:
        identity.signal_exact(warden, signal.SIGKILL)


def _state_of(warden: Identity | None) -> tuple[Identity | None, str]:
    if warden is None:
        return None, ""
    state = identity.state_of(warden.pid) or ""
    return (warden, state) if identity.start_ticks(warden.pid) == warden.ticks else (None, "")
