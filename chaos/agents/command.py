"""`queenright agents`: four agents on one engine, after one alone, judged from outside.

It runs in a slot of its own under a temporary directory, so an engine of yours is not touched.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from chaos.agents.run import Agents
    from chaos.agents.seen import Crew, Run
    from chaos.soak.verdicts import Judgement

MOST: Final = 16

NOT_COVERED: Final = (
    "models, prompts and contexts other than these; agents that work for hours; agents that share a project; faults (the"
    " soak has those); other machines and kernels"
)
SCRIPTED: Final = (
    "real coding agents: these were scripted, and their tools are called by a plan where the model calls none"
)


class AgentsCommand:
    """The command."""

    help = "four agents with work of their own on one engine, after one alone, judged from outside"

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add this command's arguments."""
        from chaos.agents import claims
        from chaos.agents.opencode import PACKAGE, VARIABLE, VERSION

        add = parser.add_argument
        add("--count", type=_count, default=4, metavar="N", help="agents at once (default: 4)")
        add(
            "--opencode",
            nargs="?",
            const="",
            metavar="PROGRAM",
            help=f"real coding agents: this program, else ${VARIABLE}, else `opencode` on PATH (npm package {PACKAGE}, tried "
            f"with {VERSION}); without it the agents are scripted",
        )
        add(
            "--config",
            type=Path,
            metavar="FILE",
            help="the engine of this configuration, in a slot of ours: roles chat, embed",
        )
        add("--seed", type=int, default=0, metavar="N", help="the projects are drawn with it (default: 0)")
        add("--out", type=Path, metavar="DIR", help="write agents.json there")
        add("--json", action="store_true", help="the result as data on stdout; what is told while it runs on stderr")
        names = "\n".join(f"  {name}" for name in claims.CLAIMS)
        parser.epilog = (
            f"what is judged:\n{names}\n\n"
            "example:\n  queenright agents\n  queenright agents --opencode --config queenright.toml --out agents\n\n"
            "Exit status 0 only if everything that is judged held; what could not be looked at is not green.\n"
            "Needs the extra `engine` (a llama-server for the CPU) or a llama-server of yours; fetches two small models."
        )

    def run(self, args: argparse.Namespace) -> int:
        """Do it. Raises UsageError, or what an engine's start can raise."""
        from chaos import bench_report, outputs
        from chaos.agents import claims
        from chaos.interrupting import interruptible, undisturbed
        from chaos.observer import NotObservedError
        from chaos.soak.verdicts import Judgement, Verdict

        stream = sys.stderr if args.json else sys.stdout
        program, brain = _opencode(args)
        out = None if args.out is None else outputs.folder(args.out)
        where = bench_report.machine().line
        print(f"{where}; agents: {brain}", file=stream, flush=True)
        place = Path(tempfile.mkdtemp(prefix="queenright-agents-"))
        run, judgements = None, []
        began = time.monotonic()

        def tell(words: str) -> None:
            print(f"{time.monotonic() - began:7.1f} s  {words}", file=stream, flush=True)

        with interruptible():
            try:
                run = _prepare(args, place, program, tell).run()
                judgements = claims.judge(run)
            except NotObservedError as error:
                judgements = [Judgement("came to an end", Verdict.BROKEN, str(error))]
            finally:
                with undisturbed():
                    shutil.rmtree(place, ignore_errors=True)
        data = as_data(run, judgements, machine=where, agents=brain, seed=args.seed)
        if out is not None:
            (out / "agents.json").write_text(json.dumps(data, indent=1), encoding="utf-8")
        print(text(data), file=stream)
        if args.json:
            print(json.dumps(data))
        return 0 if data["verdict"] == "holds" else 1


COMMAND: Final = AgentsCommand()


def _opencode(args: argparse.Namespace) -> tuple[str, str]:
    """The program, and how the report calls it. Raises UsageError where it was asked for and is not there."""
    from chaos.agents import opencode
    from supervisor.errors import UsageError

    if args.opencode is None:
        return "", "scripted"
    program = args.opencode or opencode.find()
    said = opencode.version(program) if program else ""
    if not said:
        what = f"{program} does not run" if program else "no opencode was found"
        raise UsageError(what, f"npm install --global {opencode.PACKAGE}@{opencode.VERSION}, or run without --opencode")
    return str(Path(shutil.which(program) or program).resolve()), f"opencode {said}"


def _prepare(args: argparse.Namespace, place: Path, program: str, tell: Callable[[str], None]) -> Agents:
    from chaos.agents.run import Agents
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
        config.write_text(configuration(slot), encoding="utf-8")
    else:
        config = args.config.resolve()
    groups = resolving.resolve(resolving.load(config)).groups
    missing = {"chat", "embed"} - {launch.role for group in groups for launch in group.launches}
    if missing:
        raise UsageError(f"{config} has no role {' and no role '.join(sorted(missing))}", "the agents ask for both")
    return Agents(
        slot, place / "agents", groups, lambda crew, number: config,
        count=args.count, opencode=program, seed=args.seed, tell=tell,
    )  # fmt: skip


def as_data(run: Run | None, judgements: list[Judgement], **about: Any) -> dict[str, Any]:
    """The whole run, for programs. `verdict` is that of everything that was judged."""
    from chaos.soak.verdicts import worst

    return {
        **about,
        "verdict": worst(judgements).value,
        "judged": [{"claim": one.invariant, "verdict": one.verdict.value, "seen": one.seen} for one in judgements],
        "baseline": _crew(run.baseline) if run else None,
        "together": _crew(run.four) if run else None,
        "not_covered": _not_covered(run, about),
    }


def _not_covered(run: Run | None, about: dict[str, Any]) -> list[str]:
    found = [NOT_COVERED]
    if about.get("agents") == "scripted":
        found.append(SCRIPTED)
    if run is not None and run.device_before.is_absent:
        found.append(f"GPU memory: {run.device_before.why}")
    return found


def _crew(crew: Crew) -> dict[str, Any]:
    """What it did and what was seen; not each look."""
    requests = [one for report in crew.reports for one in report.requests]
    memory = [one.memory for one in crew.working if one.memory is not None]
    device = [one.device for one in crew.working if one.device is not None]
    return {
        "agents": [
            {
                "name": one.name,
                "how": one.how,
                "requests": len(one.requests),
                "exit": one.status,
                "wrong": list(one.wrong),
            }
            for one in crew.reports
        ],
        "seconds": crew.seconds,
        "requests": {
            role: {"n": len(took), "median_s": median(took), "most_s": max(took)}
            for role in ("chat", "embed")
            if (took := [one.ended - one.began for one in requests if one.role == role])
        },
        "looks": len(crew.samples),
        "looks_while_all_worked": len(crew.working),
        "memory": median(memory) if memory else None,
        "device": median(device) if device else None,
    }


def text(data: dict[str, Any]) -> str:
    """For people."""
    lines = [""]
    for title, key in (("one agent", "baseline"), ("together", "together")):
        if crew := data[key]:
            took = ", ".join(
                f"{one['n']} {role} ({one['median_s']:.2f} s, most {one['most_s']:.2f} s)"
                for role, one in crew["requests"].items()
            )
            memory = f"{crew['memory'] / 2**20:.0f} MiB" if crew["memory"] else "unknown"
            lines.append(f"{title}: {crew['seconds']:.1f} s; {took}; engine's memory {memory}")
    lines.append("")
    for one in data["judged"]:
        told = f": {one['seen']}" if one["seen"] and (one["verdict"] != "holds" or "MiB" in one["seen"]) else ""
        lines.append(f"  {one['verdict']:8} {one['claim']}{told}")
    lines.append("")
    lines += [f"not covered: {one}" for one in data["not_covered"]]
    return "\n".join([*lines, "", data["verdict"]])


def _count(text: str) -> int:
    import argparse

    if not text.isdecimal() or not 2 <= int(text) <= MOST:
        raise argparse.ArgumentTypeError(f"{text!r} is not from 2 to {MOST}")
    return int(text)
