"""What a soak says while it runs: on a terminal a bar with what came so far, and a line for each round that matters; else a line
for each round."""

from __future__ import annotations

from typing import IO, TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.progress import Progress as Bar
    from rich.progress import TaskID

    from chaos.soak.soak import Told


class Progress:
    """Told of each round. To be left before anything else is written to the stream."""

    def __init__(self, stream: IO[str], rounds: int) -> None:
        self._stream, self._rounds = stream, rounds
        self._outcomes: dict[str, int] = {}
        self._faults = self._bad = 0
        self._slowest = 0.0
        self._bar: Bar | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        if self._stream.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
            from rich.progress import Progress as Bar
            from rich.table import Column

            room = Column(no_wrap=True, overflow="ellipsis")
            text = TextColumn("{task.fields[words]}", markup=False, table_column=room)
            columns = (BarColumn(10), MofNCompleteColumn(), TimeRemainingColumn(), text)
            self._bar = Bar(*columns, console=Console(file=self._stream))
            self._task = self._bar.add_task("", total=self._rounds, words="the engine is built")
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def __call__(self, told: Told) -> None:
        """A round is over."""
        self._count(told)
        lines = list(_lines(told))
        if self._bar is None:
            print(*lines, sep="\n", file=self._stream, flush=True)
            return
        if told.fault or len(lines) > 1:
            self._bar.console.print(*lines, sep="\n", markup=False, highlight=False, soft_wrap=True)
        assert self._task is not None  # noqa: S101 - the bar has it
        self._bar.update(self._task, advance=1, words=self.words)

    @property
    def words(self) -> str:
        """What came so far, in a line."""
        said = [f"NOT GREEN {self._bad}"] if self._bad else []
        said += [f"faults {self._faults} (to {self._slowest:.1f} s)"] if self._faults else []
        return ", ".join([*said, *(f"{outcome} {times:,}" for outcome, times in sorted(self._outcomes.items()))])

    def _count(self, told: Told) -> None:
        for outcome, times in told.outcomes.items():
            self._outcomes[outcome] = self._outcomes.get(outcome, 0) + times
        self._faults += bool(told.fault)
        self._slowest = max(self._slowest, told.recovery_s or 0.0)
        self._bad += told.verdict != "holds"


def _lines(told: Told) -> Iterator[str]:
    """The round, and what of it was not green."""
    count = ", ".join(f"{times} {outcome}" for outcome, times in sorted(told.outcomes.items()))
    fault = f"  {told.fault}, answering again after {told.recovery_s:.2f} s" if told.fault else ""
    fault += f", {told.paused_s:.2f} s of it the restart policy's pause" if told.paused_s else ""
    skipped = f"  not done: {told.skipped}" if told.skipped else ""
    yield f"{told.number:5} {told.at_s:7.1f} s  {told.verdict:8} {count}{fault}{skipped}"
    for one in told.judgements:
        if one.verdict != "holds":
            yield f"      {one.invariant}: {one.verdict}: {one.seen}"
