"""What is measured: one cell, one question. Each is told its number of pairs and gives its figures."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from attrs import frozen

from chaos import bench_rig as rig
from chaos import measuring
from chaos.measuring import Figure
from supervisor import kinds
from supervisor.contract import EngineSpec, GroupSpec
from supervisor.slot import Slot

Pair = tuple[float, float]
"""Seconds of ours, and of what it is compared with."""

MODEL: Final = "smollm2-135m"

CONFIGURATION: Final = f"""\
[groups.chat]
[[groups.chat.launches]]
role = "chat"
model = "{MODEL}"
context = 512
"""
"""What is run unless a configuration is named: the smallest model that can be fetched, in the smallest room."""


@frozen
class Bench:
    """What every cell has: a directory that is cleared away, how many pairs, and the group to run (None: there is
    nothing here that could be run), which is the first one of the configuration."""

    folder: Path
    configuration: Path
    pairs: int | None
    group: GroupSpec | None
    tell: Callable[[str, int, int], None]
    """(what, done, of how many)."""

    @property
    def slot(self) -> Slot:
        """Where engines of the bench run, one after the other."""
        return Slot(self.folder / "slot")

    @property
    def spec(self) -> EngineSpec:
        """The engine to run."""
        assert self.group is not None  # noqa: S101 - such cells are not run without
        return EngineSpec((self.group,))

    def measure(self, what: str, ours: Callable[[], float], base: Callable[[], float], pairs: int) -> list[Pair]:
        """In turn, `pairs` times unless the user said how often."""
        total = self.pairs or pairs
        self.tell(what, 0, total)
        return measuring.in_turn(ours, base, total, lambda done: self.tell(what, done, total))


@frozen
class Cell:
    """`needs_engine`: there is no figure without one; `uses_engine`: there are fewer."""

    name: str
    help: str
    uses_engine: bool
    needs_engine: bool
    run: Callable[[Bench], list[Figure]]


def _command_pairs(bench: Bench, what: str, words: list[str], slot: Path, status: int) -> list[Pair]:
    environment = rig.child_environment(slot)
    ours, base = [*rig.console_script(), *words], [sys.executable, "-c", "pass"]
    # Once each for nothing: the first run may have to write bytecode, and reads everything from disk.
    rig.child_seconds(ours, environment, bench.folder, status=status)
    rig.child_seconds(base, environment, bench.folder)
    return bench.measure(
        what,
        lambda: rig.child_seconds(ours, environment, bench.folder, status=status),
        lambda: rig.child_seconds(base, environment, bench.folder),
        30,
    )


def _version(bench: Bench) -> list[Figure]:
    pairs = _command_pairs(bench, "version", ["version"], bench.folder / "none", 0)
    return [measuring.ratio_figure("version", "queenright version", "python -c pass", pairs, goal=5)]


def _status(bench: Bench) -> list[Figure]:
    pairs = _command_pairs(bench, "status, no engine", ["status"], bench.folder / "none", 4)
    found = [measuring.ratio_figure("status", "queenright status, no engine", "python -c pass", pairs, goal=8)]
    if bench.group is not None:
        with rig.engine(bench.slot, bench.spec):
            pairs = _command_pairs(bench, "status, engine runs", ["status"], bench.slot.path, 0)
        found.append(
            measuring.ratio_figure("status", "queenright status, engine runs", "python -c pass", pairs, goal=8)
        )
    return found


def _recovery(bench: Bench) -> list[Figure]:
    group = bench.spec.groups[0]

    def ours() -> float:
        # A fresh engine each time: a second death within a minute is answered after a pause (restart policy).
        with rig.engine(bench.slot, bench.spec) as snapshot:
            return rig.recovery_seconds(bench.slot, snapshot, group)

    def base() -> float:
        return rig.bare_seconds(group, bench.folder)

    base()  # for nothing: the first start reads binary and model from disk
    pairs = bench.measure("recovery", ours, base, 5)
    return [measuring.ratio_figure("recovery", "killed pair healthy again", "same pair started bare", pairs, goal=1.25)]


def _keeper(bench: Bench) -> list[Figure]:
    environment = rig.child_environment(bench.slot.path)

    def ours() -> float:
        # Fresh here too: the warden makes a keeper wait that dies again within half a minute.
        with rig.engine(bench.slot, bench.spec) as snapshot:
            return rig.keeper_seconds(bench.slot, snapshot)

    def base() -> float:
        return rig.child_seconds([sys.executable, "-c", "import trio"], environment, bench.folder)

    base()
    pairs = bench.measure("keeper", ours, base, 5)
    return [measuring.ratio_figure("keeper", "killed keeper answers again", "python -c 'import trio'", pairs)]


def _memory(bench: Bench) -> list[Figure]:
    bench.tell("memory", 0, 1)
    with rig.engine(bench.slot, bench.spec) as snapshot:
        warden, keeper = snapshot["warden"]["pid"], snapshot["keeper"]["pid"]
        found = [
            ("warden, PSS", rig.memory_mebibytes(warden, "Pss"), None),
            ("warden, USS", rig.memory_mebibytes(warden, "Private_Clean", "Private_Dirty"), 7),
            ("keeper, PSS", rig.memory_mebibytes(keeper, "Pss"), 45),
        ]
    bench.tell("memory", 1, 1)
    return [measuring.amount("memory", name, measuring.MEBIBYTES, [size], goal=goal) for name, size, goal in found]


def _direct(bench: Bench) -> list[Figure]:
    from chaos import bench_direct

    found = []
    with bench_direct.clients(bench.folder) as (ours, plain):
        for what, body in (("short", bench_direct.SHORT), ("64 events", bench_direct.STREAM)):
            for threads in (1, 16):
                for client in (ours, plain):
                    bench_direct.seconds(client, body, threads)  # for nothing: connections are made
                pairs = bench.measure(
                    f"direct, {what}, {threads} at once",
                    lambda body=body, threads=threads: bench_direct.seconds(ours, body, threads),  # type: ignore[misc]
                    lambda body=body, threads=threads: bench_direct.seconds(plain, body, threads),  # type: ignore[misc]
                    20,
                )
                name = f"engine.http, {what}, {threads} at once"
                found.append(measuring.ratio_figure("direct", name, "plain httpx", pairs, goal=1.05))
    return found


def _sharing(name: str) -> Callable[[Bench], list[Figure]]:
    """A cell of chaos.bench_sharing, imported when it is run: its helpers import this module."""

    def run(bench: Bench) -> list[Figure]:
        from chaos import bench_sharing

        measured: list[Figure] = getattr(bench_sharing, name)(bench)
        return measured

    return run


CELLS: Final = {
    cell.name: cell
    for cell in (
        Cell("version", "`queenright version`, against `python -c pass`", False, False, _version),
        Cell("status", "`queenright status` without and with an engine, against the same", True, False, _status),
        Cell("direct", "a request through engine.http, against plain httpx to the same port", False, False, _direct),
        Cell(
            "bind",
            "a process comes to an engine that runs, against a round trip and an fsync",
            True,
            True,
            _sharing("bind"),
        ),
        Cell("exec", "`queenright exec -- true`, against `import supervisor.client`", True, True, _sharing("run")),
        Cell("members", "a count of 1000 members, against a bare look at 1000 locks", False, False, _sharing("probe")),
        Cell("recovery", "proxy and server killed until healthy, against starting them bare", True, True, _recovery),
        Cell("keeper", "keeper killed until the next one answers, against `import trio`", True, True, _keeper),
        Cell("memory", "what warden and keeper take, in MiB", True, True, _memory),
        Cell("idle", "CPU time of the keeper with 100 members, in % of a core", True, True, _sharing("idle")),
    )
}


def group_to_run(configuration: Path) -> GroupSpec:
    """The first group of a configuration. Raises what resolving a configuration raises."""
    from supervisor import config as configurations

    config = configurations.load(configuration)
    group = next(iter(config.groups.values()))
    return kinds.find(group.kind).resolve(group, config.engine)
