"""`queenright soak`: load and faults for as many rounds as you like, judged from outside, with a report.

It runs in a slot of its own under a temporary directory, so an engine of yours is not touched.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import argparse

    from chaos.soak.soak import Soak, Told


class SoakCommand:
    """The command."""

    help = "rounds of load and faults on an engine of its own, judged from outside after each, with a report"

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add this command's arguments."""
        from chaos.soak import faults

        add = parser.add_argument
        add("compare", nargs="*", metavar="compare A B", help="two reports (report.json) side by side; starts nothing")
        add("--rounds", type=_count, default=25, metavar="N", help="rounds (default: 25; they take 1 to 5 s each)")
        add("--every", type=_count, default=5, metavar="N", help="a fault every so many rounds (default: 5)")
        add(
            "--faults",
            default=",".join(faults.DEFAULT),
            metavar="NAME,...",
            help="which, in turn; `all` for all of them",
        )
        add("--streams", type=_count, default=4, metavar="N", help="requests of members at once (default: 4)")
        add("--seed", type=int, default=0, metavar="N", help="whom a fault hits is drawn with it (default: 0)")
        add(
            "--config",
            type=Path,
            metavar="FILE",
            help="soak what this configuration says: its slot must be empty, its roles chat and embed",
        )
        add("--out", type=Path, metavar="DIR", help="where the report goes (default: ./soak-report)")
        add("--dry-run", action="store_true", help="only print which round gets which fault")
        add("--json", action="store_true", help="the whole run as data on stdout; what is told while it runs on stderr")
        names = "\n".join(f"  {name:17} {fault.what}" for name, fault in faults.FAULTS.items())
        parser.epilog = (
            f"faults:\n{names}\n\n"
            "example:\n  queenright soak --rounds 60 --faults all --out soak\n"
            "  queenright soak compare before/report.json after/report.json\n\n"
            "Exit status 0 only if everything that is judged held in every round; what could not be looked at is not green.\n"
            "Ctrl-C heals what is broken, and still writes the report."
        )

    def run(self, args: argparse.Namespace) -> int:
        """Do it, or compare. Raises UsageError, or what an engine's start can raise."""
        from chaos import outputs
        from chaos.interrupting import interruptible, undisturbed
        from chaos.soak import faults, report, telling
        from chaos.soak.progress import Progress

        if args.compare:
            return _compare(args.compare)
        names = list(faults.FAULTS) if args.faults == "all" else [name.strip() for name in args.faults.split(",")]
        _check(names)
        if args.dry_run:
            turns = faults.schedule(names, args.every)
            for number in range(1, args.rounds + 1):
                print(f"{number:5}  {next(turns) or ''}".rstrip())
            return 0
        stream = sys.stderr if args.json else sys.stdout
        out = outputs.folder(args.out or Path("soak-report"))
        place = Path(tempfile.mkdtemp(prefix="queenright-soak-"))
        with interruptible(), (out / "rounds.jsonl").open("w", encoding="utf-8") as lines:
            progress = Progress(stream, args.rounds)

            def tell(told: Told) -> None:
                progress(told)
                print(report.line(telling.row(told)), file=lines, flush=True)

            try:
                soak = _prepare(args, place, names, tell)
            except BaseException:
                shutil.rmtree(place, ignore_errors=True)
                raise
            print(
                f"{args.rounds} round{'s' if args.rounds > 1 else ''}, a fault every {_so_often(args.every)}: {', '.join(names)}",
                file=stream,
                flush=True,
            )
            try:
                with progress:
                    soak.run(args.rounds)
            except KeyboardInterrupt:
                print("interrupted: the faults are healed, and the report tells of what was judged", file=stream)
            finally:
                with undisturbed():
                    data = _write(soak, out, args, names)
                    shutil.rmtree(place, ignore_errors=True)
        print(f"{data['verdict']}; see {out / 'report.html'}", file=stream)
        for one in data["end"]:
            if one["verdict"] != "holds":
                print(f"  {one['invariant']}: {one['verdict']}: {one['seen']}", file=stream)
        if args.json:
            print(json.dumps(data))
        return 0 if data["verdict"] == "holds" and len(data["rounds"]) == args.rounds else 1


COMMAND: Final = SoakCommand()


def _prepare(args: argparse.Namespace, place: Path, names: list[str], tell: Any) -> Soak:
    from chaos.soak.load import DEADLINE
    from chaos.soak.soak import Soak
    from supervisor import resolving
    from supervisor.errors import UsageError
    from supervisor.slot import Slot

    slot = Slot(place / "slot")
    config = place / "queenright.toml"
    if args.config is None:
        from chaos.demo import provide
        from chaos.stage import configuration
        from chaos.story import Story

        provide(Story(sys.stderr))
        config.write_text(configuration(slot, deadline_s=DEADLINE), encoding="utf-8")
    else:
        config = args.config.resolve()
        slot = _slot_of(config, slot)
    spec = resolving.resolve(resolving.load(config))
    missing = {"chat", "embed"} - {launch.role for group in spec.groups for launch in group.launches}
    if missing:
        raise UsageError(
            f"{config} has no role {' and no role '.join(sorted(missing))}", "the load of a soak asks for both"
        )
    return Soak(
        slot,
        config,
        spec.groups,
        streams=args.streams,
        every=args.every,
        names=names,
        seed=args.seed,
        tell=tell,
        gateway_deadline_s=spec.gateway.deadline_s,
    )


def _slot_of(config: Path, ours: Any) -> Any:
    """The one that the configuration names: it must be empty, for whatever is in it is killed again and again."""
    from supervisor import locks, resolving
    from supervisor.errors import UsageError
    from supervisor.slot import Slot

    named = resolving.load(config).engine.slot
    if named is None:
        raise UsageError(
            f"{config} names no slot, so a soak of it would kill your engine",
            f"set `slot` in it, to {ours.path} for one",
        )
    slot = Slot(named)
    if locks.is_held(slot.warden_lock) is not False:
        raise UsageError(f"an engine runs in {slot.path}", "a soak kills it: stop it first, or name another slot")
    return slot


def _check(names: list[str]) -> None:
    from chaos.soak import faults
    from supervisor.errors import UsageError

    unknown = [name for name in names if name not in faults.FAULTS]
    if unknown:
        raise UsageError(f"there is no fault {', '.join(unknown)}", f"there are: {', '.join(faults.FAULTS)}")


def _write(soak: Soak, out: Path, args: argparse.Namespace, names: list[str]) -> dict[str, Any]:
    from chaos import bench_report
    from chaos.soak import faults, report, telling
    from supervisor._version import __version__

    data = telling.as_data(
        soak,
        command=" ".join(["queenright", "soak", *sys.argv[2:]]),
        machine=bench_report.machine().line,
        seed=args.seed,
        version=__version__,
        faults=", ".join(names),
        unused_faults=[name for name in faults.FAULTS if name not in names],
        streams=args.streams,
        engine=telling.engine(soak.groups),
    )
    (out / "report.json").write_text(json.dumps(data, separators=(",", ":")), encoding="utf-8")
    (out / "report.html").write_text(report.page(data), encoding="utf-8")
    return data


def _compare(words: list[str]) -> int:
    from chaos.soak.comparing import compare
    from supervisor.errors import UsageError

    if len(words) != 3 or words[0] != "compare":
        raise UsageError("`queenright soak compare A B` takes two files", "each is the report.json of a run")
    runs = []
    for name in words[1:]:
        try:
            runs.append(json.loads(Path(name).read_text(encoding="utf-8")))
        except (OSError, ValueError) as error:
            why = (error.strerror if isinstance(error, OSError) else None) or str(error)
            raise UsageError(f"{name} is no report of a soak: {why}", "give the report.json of a run") from error
    try:
        print(compare(runs[0], runs[1]))
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        what = f"{words[1]} or {words[2]} is no report of a soak, or one of another version"
        raise UsageError(what, "give the report.json of a run") from error
    return 0


def _so_often(number: int) -> str:
    return "round" if number == 1 else f"{number} rounds"


def _count(text: str) -> int:
    import argparse

    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number above 0")
    return int(text)
