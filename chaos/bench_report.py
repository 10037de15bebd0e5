"""What the bench says: the machine it ran on, how far it is, and the table."""

from __future__ import annotations

import os
import platform
import sys
import time
from typing import IO, TYPE_CHECKING, Any, Final

from attrs import asdict, frozen

from chaos.measuring import PERCENT, RATIO
from supervisor import wording

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.progress import Progress, TaskID

    from chaos.measuring import Figure
    from supervisor.contract import GroupSpec

LINE_EVERY: Final = 2.0  # budget: nobody waits longer without a sign of life
HEAD: Final = ("cell", "what", "takes", "against", "takes", "ratio", "95 % interval", "goal", "n")


@frozen
class Machine:
    """Where it ran. `load` is the load average of the last minute when the bench began (proc_loadavg(5))."""

    cores: int
    python: str
    kernel: str
    load: float

    @property
    def line(self) -> str:
        """For people."""
        return f"{self.cores} cores, {self.python}, {self.kernel}, load average {self.load:.2f}"

    @property
    def warning(self) -> str:
        """What makes the figures doubtful; "" for nothing."""
        if self.load <= self.cores / 2:
            return ""
        return "this machine was busy: ratios hold better than times, but the intervals are wide"


def machine() -> Machine:
    """This one, now. Cores are those this process may use (sched_setaffinity(2))."""
    uname = os.uname()
    python = f"{platform.python_implementation()} {platform.python_version()}"
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return Machine(cores, python, f"{uname.sysname} {uname.release} {uname.machine}", os.getloadavg()[0])


def pair_line(group: GroupSpec) -> str:
    """Which pair was run, for people."""
    return f"{group.launches[0].model}, pin {group.pin}"


def rows(figures: Sequence[Figure]) -> list[tuple[str, ...]]:
    """The table's cells as text."""
    found: list[tuple[str, ...]] = []
    for figure in figures:
        is_ratio = figure.unit == RATIO
        many = len(figure.ours) > 1
        found.append(
            (
                figure.cell,
                figure.name,
                _seconds(figure.ours) if is_ratio else _amount(figure),
                figure.against or "-",
                _seconds(figure.base) if is_ratio else "-",
                f"{figure.value:.2f}" if is_ratio else "-",
                f"{figure.low:.2f} to {figure.high:.2f}" if many else "-",
                "-" if figure.goal is None else f"<= {figure.goal:g}: {figure.verdict}",
                str(len(figure.ours)),
            )
        )
    return found


def plain(figures: Sequence[Figure]) -> str:
    """The table for what is no terminal."""
    return wording.table([HEAD, *rows(figures)])


def on_terminal(figures: Sequence[Figure], stream: IO[str]) -> None:
    """The table for people, in colour where the terminal has it."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    colours = {"met": "green", "missed": "red"}
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in HEAD:
        table.add_column(title, justify="right" if title in ("takes", "ratio", "n") else "left", overflow="fold")
    for figure, line in zip(figures, rows(figures), strict=True):
        style = colours.get(figure.verdict, "yellow" if figure.verdict else "")
        table.add_row(
            *(Text(text, style=style if title == "goal" else "") for title, text in zip(HEAD, line, strict=True))
        )
    Console(file=stream).print(table)


def as_data(
    where: Machine, group: GroupSpec | None, figures: Sequence[Figure], skipped: dict[str, str]
) -> dict[str, Any]:
    """The same for programs. Times are seconds, in the order they were taken."""
    return {
        "machine": asdict(where) | {"warning": where.warning},
        "pair": None if group is None else {"model": group.launches[0].model, "pin": group.pin},
        "figures": [asdict(figure) | {"verdict": figure.verdict or None} for figure in figures],
        "skipped": skipped,
    }


def _amount(figure: Figure) -> str:
    return f"{figure.value:.{2 if figure.unit == PERCENT else 1}f} {figure.unit}"


def _seconds(times: Sequence[float]) -> str:
    from statistics import median

    middle = median(times)
    return f"{middle * 1000:.1f} ms" if middle < 1 else f"{middle:.2f} s"


class Teller:
    """How far it is, on stderr: a bar on a terminal, else a line per cell and one every LINE_EVERY seconds."""

    def __init__(self, stream: IO[str] | None = None) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._said = 0.0
        self._bar: Progress | None = None
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> Teller:
        if self._stream.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

            columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn())
            self._bar = Progress(*columns, TimeElapsedColumn(), console=Console(file=self._stream), transient=True)
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def __call__(self, what: str, done: int, total: int) -> None:
        """`done` of `total` pairs of a cell."""
        if self._bar is not None:
            if what not in self._tasks:
                self._tasks[what] = self._bar.add_task(what, total=total)
            self._bar.update(self._tasks[what], completed=done)
            return
        now = time.monotonic()
        if done in (0, total) or now - self._said >= LINE_EVERY:
            self._said = now
            self._stream.write(f"bench: {what}, {done} of {total}\n")
            self._stream.flush()
