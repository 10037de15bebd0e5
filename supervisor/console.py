"""What `queenright run` says on its terminal. The keeper speaks; the descriptor is the warden's standard error.

A terminal that is stopped (Ctrl-S, a pager nobody scrolls) must not stop the keeper: lines go through a bounded queue
to a daemon thread, and what does not fit is dropped.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from contextlib import suppress

from supervisor import budgets
from supervisor.wording import printable

CONSOLE_FD = 6
BACKLOG = 200


class Console:
    """Says lines, or nothing when there is no terminal to say them on."""

    def __init__(self, enabled: bool) -> None:
        self._lines: queue.Queue[str] = queue.Queue(BACKLOG)
        self._enabled = enabled
        if enabled:
            os.set_inheritable(CONSOLE_FD, False)
            threading.Thread(target=self._write, daemon=True, name="console").start()

    def say(self, text: str) -> None:
        """One line, with the time. Never blocks."""
        if self._enabled:
            with suppress(queue.Full):
                self._lines.put_nowait(f"{time.strftime('%H:%M:%S')} {printable(text)}\n")

    def drain(self) -> None:
        """Give the last words CONSOLE_DRAIN seconds to be written."""
        deadline = time.monotonic() + budgets.CONSOLE_DRAIN
        while self._lines.unfinished_tasks and time.monotonic() < deadline:
            time.sleep(budgets.READY_POLL)  # noqa: TID251 - at the very end of the process; a queue's join has no limit

    def _write(self) -> None:
        while True:
            line = self._lines.get()
            with suppress(OSError):
                os.write(CONSOLE_FD, line.encode())
            self._lines.task_done()
