"""`bench sweep` and `bench quants` as commands: their arguments, where they run, and what they print."""

from __future__ import annotations

import json
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from chaos.bench_report import Machine, Teller

ROLE = "chat"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of both."""
    from chaos import bench_quants, bench_sweep

    add = parser.add_argument
    levels = ",".join(map(str, bench_sweep.LEVELS))
    add("files", nargs="*", metavar="FILE", help="of `quants`: two model files")
    add("--streams", metavar="N,...", help=f"of `sweep`: how many at once, `1-4,8` too (default: {levels})")
    add("--tokens", type=_number, metavar="N", help="of `sweep`, `quants`: tokens of an answer (default: 48, 32)")
    add("--words", type=_number, metavar="N", help=f"of `sweep`: words of a prompt (default: {bench_sweep.WORDS})")
    depths = ",".join(map(str, bench_quants.DEPTHS))
    add("--depth", metavar="N,...", help=f"of `quants`: tokens that stand before (default: {depths})")
    add("--role", default=ROLE, help="of `sweep`, `quants`: whose group of the configuration (default: chat)")


def _number(text: str) -> int:
    from argparse import ArgumentTypeError

    if not text.isdecimal() or int(text) < 2:
        raise ArgumentTypeError(f"{text!r} is no number above 1")
    return int(text)


def run(args: argparse.Namespace) -> int:
    """Do it. Raises UsageError, or QueenrightError for what cannot be measured."""
    from supervisor.errors import UsageError

    if args.only is not None:
        raise UsageError(f"--only is not for {args.what}", "it has one cell")
    return _sweep(args) if args.what == "sweep" else _quants(args)


def _sweep(args: argparse.Namespace) -> int:
    from chaos import bench_report as report
    from chaos import bench_sweep as sweep
    from chaos import sweep_report as said
    from supervisor.errors import UsageError
    from supervisor.slot import Slot

    if args.files:
        raise UsageError("`bench sweep` takes no files", "--config names the engine to sweep")
    try:
        levels = sweep.levels_of(args.streams) if args.streams else sweep.LEVELS
    except ValueError as error:
        raise UsageError(f"--streams: {error}", "as in --streams 1-4,8,16") from error
    with _place(args) as (folder, where, teller):
        path = _configuration(args, folder, sweep.configuration(max(levels)))
        found = sweep.measure(
            path, Slot(folder / "slot"), args.role, levels, args.pairs or sweep.ROUNDS,
            args.tokens or sweep.TOKENS, args.words or sweep.WORDS, teller,
        )  # fmt: skip
    if args.json:
        print(json.dumps({"machine": _machine(where), **said.as_data(found)}))
        return 0
    print(f"\n{said.table(found.levels)}\n\n{said.most(found.levels)}\n\nwhat each way costs, against direct:\n")
    print(report.plain(found.costs))
    if len(found.costs[0].ours) < sweep.ROUNDS:
        print(
            f"\nwith fewer than {sweep.ROUNDS} rounds the interval does not cover 95 %: --pairs {sweep.ROUNDS} or more"
        )
    print(f"\nnot covered: {said.NOT_COVERED}")
    return 0


def _quants(args: argparse.Namespace) -> int:
    from chaos import bench_quants as quants
    from chaos import bench_sweep as sweep
    from supervisor.errors import UsageError
    from supervisor.slot import Slot

    if len(args.files) != 2:
        raise UsageError("`bench quants` compares two files", "as in: queenright bench quants a.gguf b.gguf")
    files = Path(args.files[0]), Path(args.files[1])
    if missing := [str(file) for file in files if not file.is_file()]:
        raise UsageError(f"there is no file {' and no file '.join(missing)}", "name two GGUF files")
    words = args.depth.split(",") if args.depth else [str(depth) for depth in quants.DEPTHS]
    if not all(word.strip().isdecimal() for word in words):
        raise UsageError(f"--depth: {args.depth!r} is no list of numbers", "as in --depth 0,512,4096")
    depths = sorted({int(word) for word in words})
    with _place(args) as (folder, where, teller):
        path = _configuration(args, folder, sweep.configuration(1))
        found = quants.measure(
            path, Slot(folder / "slot"), args.role, files, depths, args.pairs or quants.ROUNDS, teller,
            tokens=args.tokens or quants.TOKENS,
        )  # fmt: skip
    if args.json:
        print(json.dumps({"machine": _machine(where), **quants.as_data(found)}))
        return 0
    print(f"\n{quants.table(found)}\n\nnot covered: {quants.NOT_COVERED}")
    return 0


@contextmanager
def _place(args: argparse.Namespace) -> Iterator[tuple[Path, Machine, Teller]]:
    """A directory that is cleared away, the machine as it was before, and who tells how far it is."""
    from chaos import bench_report as report
    from chaos.interrupting import interruptible

    where = report.machine()
    if not args.json:
        print(where.line + (f"\n  {where.warning}" if where.warning else ""))
        sys.stdout.flush()
    with (
        interruptible(),
        tempfile.TemporaryDirectory(prefix="queenright-bench-") as folder,
        report.Teller() as teller,
    ):
        yield Path(folder), where, teller


def _configuration(args: argparse.Namespace, folder: Path, text: str) -> Path:
    if args.config is not None:
        return Path(args.config).resolve()
    path = folder / "queenright.toml"
    path.write_text(text, encoding="utf-8")
    return path


def _machine(where: Machine) -> dict[str, Any]:
    from attrs import asdict

    return asdict(where) | {"warning": where.warning}
