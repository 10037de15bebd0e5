"""`queenright bench` and `python -m chaos.bench`: how fast it is, as ratios within one run.

Ratios, since a time says more about the machine and the moment than about us (chaos.measuring). No test asserts a
figure. It runs in a slot of its own, in a directory that it removes, and never looks at the user's engine.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable
    from pathlib import Path

    from chaos.bench_cells import Cell
    from chaos.measuring import Figure
    from supervisor.contract import GroupSpec
    from supervisor.errors import QueenrightError

MOST_PAIRS: Final = 10_000


class BenchCommand:
    """The command."""

    help = "measure how fast it is, as ratios within one run"

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add this command's arguments."""
        from pathlib import Path

        from chaos import bench_capacity
        from chaos.bench_cells import CELLS
        from chaos.bench_gateway import CELLS as GATEWAY_CELLS
        from chaos.bench_peers import CELLS as PEER_CELLS

        parser.add_argument(
            "what",
            nargs="?",
            choices=["peers", "gateway", "ledger", "sweep", "quants"],
            help="`peers`: beside other supervisors, on the same dummy children; `gateway`: what the gateway adds; "
            "`ledger`: the memory planner beside a real llama-server; `sweep`: 1 to 16 requests at once, each way; "
            "`quants`: two files of a model at depth",
        )
        parser.add_argument("--only", metavar="CELL,...", help="measure these cells alone (default: all that can be)")
        parser.add_argument(
            "--pairs", type=_count, metavar="N", help="pairs of each cell (default: 30; engine cells 5; peers 6 rounds)"
        )
        parser.add_argument(
            "--config", type=Path, metavar="FILE", help="run the first group of this configuration, in our own slot"
        )
        parser.add_argument(
            "--no-fill", action="store_true", help="of `ledger`: do not fill the contexts, which takes long"
        )
        bench_capacity.configure(parser)
        parser.add_argument("--json", action="store_true", help="the result as data, every time taken included")
        width = max(map(len, CELLS))
        cells = "\n".join(f"  {name:{width}}  {cell.help}" for name, cell in CELLS.items())
        parser.epilog = (
            f"cells:\n{cells}\n\n"
            f"cells of peers: {', '.join(PEER_CELLS)}\n\n"
            f"cells of gateway: {', '.join(GATEWAY_CELLS)}\n\n"
            "example:\n  queenright bench --only version,status\n  queenright bench peers --only recovery\n"
            "  queenright bench sweep --streams 1-4,8\n  queenright bench quants a.Q4_K_M.gguf a.Q8_0.gguf --depth 0,2048\n\n"
            "Exit status 0 when all was measured, whether the goals were met or missed. All cells take some two minutes.\n"
            "Cells that need an engine are left out where there is no llama-server or model, unless asked for by name."
        )

    def run(self, args: argparse.Namespace) -> int:
        """Measure and print. Raises UsageError, or QueenrightError for what cannot be measured."""
        from chaos import bench_report as report

        named = None if args.only is None else [name.strip() for name in args.only.split(",") if name.strip()]
        if args.what == "peers":
            return _peers(named, args)
        if args.what == "ledger":
            return _ledger(args)
        if args.what in ("sweep", "quants"):
            from chaos import bench_capacity

            return bench_capacity.run(args)
        names = None if args.what is None else _gateway_names(named)
        cells = _chosen(named) if names is None else []
        where = report.machine()
        if not args.json:
            print(where.line)
            if where.warning:
                print(f"  {where.warning}")
            sys.stdout.flush()
        group, figures, skipped = _measure(cells, names, named is not None, args.pairs, args.config)
        if args.json:
            import json

            print(json.dumps(report.as_data(where, group, figures, skipped), indent=2))
            return 0
        if group is not None:
            print(f"the pair: {report.pair_line(group)}")
        print()
        if sys.stdout.isatty():
            report.on_terminal(figures, sys.stdout)
        else:
            print(report.plain(figures))
        for name, why in skipped.items():
            print(f"{name}: not measured: {why}")
        return 0


COMMAND: Final = BenchCommand()


def _count(text: str) -> int:
    from argparse import ArgumentTypeError

    if not text.isdecimal() or not 1 <= int(text) <= MOST_PAIRS:
        raise ArgumentTypeError(f"expected a number from 1 to {MOST_PAIRS}, not {text!r}")
    return int(text)


def _chosen(named: list[str] | None) -> list[Cell]:
    """The cells that were named, in the order of the table; all where none was. Raises UsageError."""
    from chaos.bench_cells import CELLS

    return [CELLS[name] for name in _names(named, CELLS)]


def _names(named: list[str] | None, known: Iterable[str]) -> list[str]:
    """Those of the known names that were named, in their order; all where none was. Raises UsageError."""
    from supervisor.errors import UsageError

    if named is None:
        return list(known)
    unknown = [name for name in named if name not in known]
    if unknown or not named:
        what = f"there is no cell {', '.join(map(repr, unknown))}" if unknown else "--only names no cell"
        raise UsageError(what, f"cells: {', '.join(known)}")
    return [name for name in known if name in named]


def _peers(named: list[str] | None, args: argparse.Namespace) -> int:
    """`bench peers`. Raises UsageError, or NotMeasuredError where our own side cannot be measured."""
    import tempfile
    from pathlib import Path

    from chaos import bench_peers, peers_report
    from chaos import bench_report as report
    from chaos.interrupting import interruptible
    from supervisor.errors import UsageError

    if args.config is not None:
        raise UsageError("--config is not for peers", "they all keep the bench's own children")
    names = _names(named, bench_peers.CELLS)
    where = report.machine()
    if not args.json:
        print(where.line + (f"\n  {where.warning}" if where.warning else ""), flush=True)
    with (
        interruptible(),
        tempfile.TemporaryDirectory(prefix="queenright-bench-") as folder,
        report.Teller() as teller,
    ):
        samples, skipped, children = bench_peers.measure(Path(folder), args.pairs or bench_peers.ROUNDS, names, teller)
    lines = bench_peers.lines(samples)
    if args.json:
        import json

        print(json.dumps(peers_report.as_data(where, lines, samples, skipped, children), indent=2))
    else:
        peers_report.tell(lines, skipped, children)
    return 0


def _gateway_names(named: list[str] | None) -> list[str]:
    """As `_names`, of the gateway's cells."""
    from chaos.bench_gateway import CELLS

    return _names(named, CELLS)


def _ledger(args: argparse.Namespace) -> int:
    """`bench ledger`. Raises QueenrightError for what cannot be measured."""
    import json
    import tempfile
    from pathlib import Path

    from chaos import bench_ledger
    from chaos import bench_report as report
    from chaos.interrupting import interruptible
    from supervisor.errors import UsageError
    from workers import engines, models

    if args.config is not None or args.only is not None or args.pairs is not None:
        raise UsageError("`bench ledger` takes no --config, --only or --pairs", "its cells are always the same")
    server, path = engines.find_llama_server(), models.resolve(bench_ledger.MODEL)
    where = report.machine()
    if not args.json:
        print(where.line, flush=True)
    with (
        interruptible(),
        tempfile.TemporaryDirectory(prefix="queenright-bench-") as folder,
        report.Teller() as teller,
    ):
        if not args.json:  # a line as soon as it is measured: all of them take long
            what = f"{path.name}, {server.distribution or server.path} {server.version}; MiB"
            print(f"{what}\n\n{bench_ledger.HEAD}", flush=True)
        cells = []
        for cell in bench_ledger.measure(server.argv, path, Path(folder), teller, fill=not args.no_fill):
            cells.append(cell)
            if not args.json:
                print(bench_ledger.row(cell), flush=True)
    if args.json:
        print(json.dumps({"cells": bench_ledger.as_data(cells)}, indent=2))
        return 0
    missed = [
        f"{cell.kind} {cell.context} x {cell.sequences}: {', '.join(cell.misses)}" for cell in cells if cell.misses
    ]
    print("\n" + ("all within their goals" if not missed else "missed: " + "; ".join(missed)))
    return 0


def _measure(
    cells: list[Cell], gateway: list[str] | None, named: bool, pairs: int | None, config: Path | None
) -> tuple[GroupSpec | None, list[Figure], dict[str, str]]:
    """Measure in a directory of our own: the group that was run, the figures, and what was left out and why."""
    import tempfile
    from pathlib import Path

    from chaos import bench_cells
    from chaos.bench_report import Teller
    from chaos.interrupting import interruptible

    figures: list[Figure] = []
    skipped: dict[str, str] = {}
    with (
        interruptible(),
        tempfile.TemporaryDirectory(prefix="queenright-bench-") as name,
        Teller() as teller,
    ):
        folder = Path(name)
        path = config or folder / "queenright.toml"
        if config is None:
            path.write_text(bench_cells.CONFIGURATION, encoding="utf-8")
        group, why = _group(cells, gateway, path, named=config is not None)
        if why is not None and named and any(cell.needs_engine for cell in cells):
            raise why
        bench = bench_cells.Bench(folder, path, pairs, group, teller)
        if gateway is not None:
            from chaos import bench_gateway

            figures, skipped = bench_gateway.measure(bench, gateway, why)
        for cell in cells:
            if why is None or not cell.needs_engine:
                figures += cell.run(bench)
            if why is not None and cell.uses_engine:
                skipped[cell.name if cell.needs_engine else f"{cell.name}, engine runs"] = (
                    f"{why.what}; {why.next_step}"
                )
    return group, figures, skipped


def _group(
    cells: list[Cell], gateway: list[str] | None, config: Path, *, named: bool
) -> tuple[GroupSpec | None, QueenrightError | None]:
    """What can be run here, or why nothing can. A configuration that was named must be usable: raises."""
    from chaos.bench_cells import group_to_run
    from supervisor.errors import QueenrightError

    if not any(cell.uses_engine for cell in cells) and "model" not in (gateway or ()):
        return None, None
    try:
        return group_to_run(config), None
    except QueenrightError as error:
        if named:
            raise
        return None, error


def main(argv: list[str] | None = None) -> int:
    """`python -m chaos.bench`. Returns the exit status."""
    from supervisor import cli

    return cli.main(["bench", *(sys.argv[1:] if argv is None else argv)], known={"bench": COMMAND})


if __name__ == "__main__":
    sys.exit(main())
