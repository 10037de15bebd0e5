"""How a long step tells of itself: a bar on a terminal, plain lines elsewhere, nothing for programs.

Everything goes to stderr, so that stdout stays the command's result.
"""

from __future__ import annotations

import sys
import time
from typing import IO, TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID

LINE_EVERY: Final = 2.0  # budget:
"""Seconds between two lines of a step where there is no terminal: nobody waits longer without a sign of life."""


class Progress(Protocol):
    """What a long step calls. One step at a time; `total` and `done` are bytes, and `total` may be exceeded."""

    def begin(self, what: str, total: int) -> None:
        """A step begins, expected to move `total` bytes."""

    def at(self, done: int) -> None:
        """The step has moved `done` bytes. Called several times a second, also when nothing has moved."""

    def end(self) -> None:
        """The step is over, well or not."""

    def note(self, text: str) -> None:
        """One line that stays."""


class Silent:
    """For callers that want none."""

    def begin(self, what: str, total: int) -> None:
        """Nothing."""

    def at(self, done: int) -> None:
        """Nothing."""

    def end(self) -> None:
        """Nothing."""

    def note(self, text: str) -> None:
        """Nothing."""


class Lines:
    """Plain lines: one at the start of a step, one every LINE_EVERY seconds with bytes and seconds, one at its end."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream
        self._what = ""
        self._total = self._done = 0
        self._began = self._said = 0.0

    def begin(self, what: str, total: int) -> None:
        """See Progress."""
        self._what, self._total, self._done = what, total, 0
        self._began = self._said = time.monotonic()
        self.note(f"{what} ({_megabytes(total)})")

    def at(self, done: int) -> None:
        """See Progress."""
        self._done = done = min(done, self._total or done)  # pip has what it fetched twice on disk for a while
        now = time.monotonic()
        if now - self._said >= LINE_EVERY:
            self._said = now
            self.note(f"{self._what}: {_megabytes(done)} of {_megabytes(self._total)}, {now - self._began:.0f} s")

    def end(self) -> None:
        """See Progress."""
        self.note(f"{self._what}: {time.monotonic() - self._began:.1f} s")

    def note(self, text: str) -> None:
        """See Progress."""
        self._stream.write(text + "\n")
        self._stream.flush()


class Bar:
    """A bar with bytes, speed and elapsed time, drawn by rich."""

    def __init__(self, stream: IO[str]) -> None:
        from rich.console import Console

        self._console = Console(file=stream)
        self._bar: RichProgress | None = None
        self._task: TaskID | None = None

    def begin(self, what: str, total: int) -> None:
        """See Progress."""
        from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeElapsedColumn, TransferSpeedColumn
        from rich.progress import Progress as RichProgress

        self._bar = RichProgress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            TimeElapsedColumn(),
            console=self._console,
        )
        self._task = self._bar.add_task(what, total=total)
        self._bar.start()

    def at(self, done: int) -> None:
        """See Progress."""
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=done)

    def end(self) -> None:
        """See Progress."""
        if self._bar is not None:
            self._bar.stop()
        self._bar = self._task = None

    def note(self, text: str) -> None:
        """See Progress."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)


def for_stream(stream: IO[str] | None = None) -> Progress:
    """A bar when `stream` (default: stderr) is a terminal, else lines."""
    stream = sys.stderr if stream is None else stream
    return Bar(stream) if stream.isatty() else Lines(stream)


def _megabytes(count: int) -> str:
    return f"{count / 1e6:.1f} MB"
