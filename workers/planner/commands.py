"""The sub-command `queenright explain`, found by the entry point `queenright.commands`. Imports nothing heavy."""

from __future__ import annotations

import argparse
import re
import shlex
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from workers.planner.shapes import Machine

EXAMPLES: Final = """\
examples:
  queenright explain smollm2-135m
  queenright explain ./model.gguf --context 32768 --sequences 4 --json
  queenright explain ./gpt-oss-120b.gguf --vram 24G --ram 96G      would it run there, and how?
  queenright explain ./model.gguf --arguments="--cache-type-k q8_0 --cache-type-v q8_0"

Nothing is loaded or started. Exit status 6 when it does not fit.
"""

_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)i?B?", re.IGNORECASE)
_UNITS: Final = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def size(text: str) -> int:
    """Bytes of `24G`, `512M` or a bare number. Raises argparse.ArgumentTypeError."""
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no size such as 24G or 512M")
    return int(float(found[1]) * _UNITS[found[2].upper()])


def number(text: str) -> int | None:
    """A number above 0, or None for "auto". Raises argparse.ArgumentTypeError."""
    if text in ("auto", "0"):
        return None
    if not text.isdecimal() or len(text) > 9:
        raise argparse.ArgumentTypeError(f"{text!r} is neither a number nor auto")
    return int(text)


class ExplainCommand:
    """`queenright explain MODEL`."""

    help = "what a model takes, line by line; whether it fits here or on another card, and how"

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add the sub-command's arguments."""
        parser.epilog = EXAMPLES
        parser.add_argument("model", metavar="MODEL", help="a .gguf file, or a name out of `queenright model list`")
        parser.add_argument(
            "--arguments", type=shlex.split, default=[], metavar='"..."', help="llama-server's own, as in a launch"
        )
        parser.add_argument("--role", default="chat", help="what it is to be used as (default: chat)")
        parser.add_argument("--context", type=number, metavar="TOKENS", help="for each sequence (default: auto)")
        parser.add_argument("--sequences", type=number, default=1, metavar="N", help="at once, or auto (default: 1)")
        parser.add_argument("--cache-ram", type=size, default=0, metavar="SIZE", help="limit of the prompt cache")
        parser.add_argument("--no-offload", action="store_true", help="experts may not stay in system memory")
        parser.add_argument(
            "--vram", type=size, action="append", metavar="SIZE", help="as if there were such a card; once for each"
        )
        parser.add_argument("--ram", type=size, metavar="SIZE", help="as if there were so much system memory")
        parser.add_argument("--unified", action="store_true", help="as if the card's memory were the system's")
        parser.add_argument("--json", action="store_true", help="the same as data")

    def run(self, args: argparse.Namespace) -> int:
        """Carry it out. Raises ModelError or ConfigError, which the command line prints."""
        from supervisor.errors import ExitCode
        from workers import models
        from workers.planner import learned, lint, render
        from workers.planner.checked import Asking, checked
        from workers.planner.decide import Plan, Request
        from workers.planner.flags import Help, Settings, settings_of, words
        from workers.planner.model import read_model
        from workers.planner.shapes import MIB
        from workers.swap_configuration import ROLE_FLAGS

        path = models.resolve(args.model) if "/" not in args.model and not args.model.endswith(".gguf") else args.model
        model = read_model(path)
        settings, rest = settings_of(args.arguments, Settings(cache_ram_mib=args.cache_ram // MIB))
        projector = read_model(settings.projector).file_bytes if settings.projector else 0
        server, build = _server()
        machine, supposed = _machine(args, server), bool(args.vram or args.ram)
        arguments = (*ROLE_FLAGS.get(args.role, ()), *rest)
        request = Request(
            context=args.context,
            sequences=args.sequences,
            settings=settings,
            offload=not args.no_offload,
            projector_bytes=projector,
            learned=learned.of("" if supposed else build, model, arguments, machine),
        )
        asking = Asking(server, {}, supposed=supposed)
        ask = asking.of(model, machine, arguments)
        found, check = checked(request, model, machine, ask)
        hints = [one.sentence for one in lint.hints(model, args.role, args.arguments)]
        argv: list[str] = []
        if isinstance(found, Plan):
            done = found.choice
            sizes = ["--ctx-size", str(done.shape.ctx_size), "--parallel", str(done.sequences)]
            argv = [*sizes, *words(done.settings, Help(), cpu_moe=done.cpu_moe, layers=len(model.layers)), *rest]
        if args.json:
            import json

            print(
                json.dumps({**render.data(args.role, model, found, check), "arguments": argv, "hints": hints}, indent=2)
            )
        else:
            for line in render.text(args.role, model, found, check):
                print(line)
            if argv:
                print(f"  as: llama-server {' '.join(argv)}")
            for hint in hints:
                print(f"  of the file: {hint}")
        return int(ExitCode.OK if isinstance(found, Plan) else ExitCode.DOES_NOT_FIT)


EXPLAIN: Final = ExplainCommand()


def _server() -> tuple[tuple[str, ...], str]:
    """The llama-server that is found without a configuration, and its build; nothing where there is none."""
    from supervisor.errors import EngineBinaryError
    from workers import engines, pins

    try:
        server = engines.find_llama_server()
        return server.argv, pins.identity(server)
    except EngineBinaryError:
        return (), ""


def _machine(args: Any, server: Sequence[str]) -> Machine:
    """This machine, or what is supposed of one. Supposed cards replace those that are here."""
    from workers.planner.probe import this_machine
    from workers.planner.shapes import Card, Host, Machine

    supposed = args.vram and (args.ram or args.unified)
    here = Machine(Host(0, 0)) if supposed else this_machine(server)
    host = Host(args.ram, args.ram, "supposed") if args.ram else here.host
    cards = here.cards
    if args.vram:
        cards = tuple(
            Card(
                f"supposed-{index}", f"a card of {free / (1 << 30):g} GiB", free, free, args.unified, source="supposed"
            )
            for index, free in enumerate(args.vram)
        )
        if args.unified and not args.ram:
            host = Host(args.vram[0], args.vram[0], "supposed")
    return Machine(host, cards, here.unknown)
