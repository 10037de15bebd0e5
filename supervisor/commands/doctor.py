"""`queenright doctor`: what is wrong with the place an engine runs in; and a bundle for a bug report. It only looks."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from supervisor.commands._common import add_place, patience, slot_of
from supervisor.wording import printable_lines

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from supervisor.checks import Check


class Doctor:
    """The command."""

    help = "check slot, binaries, models and configuration; or pack a bundle for a bug report"

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add this command's arguments."""
        add_place(parser)
        parser.add_argument("--json", action="store_true", help="the same as data")
        parser.add_argument(
            "--bundle", nargs="?", const="", metavar="FILE.tar.gz",
            help="pack configuration, records, events and logs, without secrets (default: into the working directory)",
        )  # fmt: skip
        parser.epilog = (
            "example:\n  queenright doctor\n  queenright doctor --bundle report.tar.gz\n\n"
            "Exit status 1 when something is wrong. Never starts an engine."
        )

    def run(self, args: argparse.Namespace) -> int:
        """Check, or pack. Raises UsageError for a bundle that is there already."""
        return self._check(args) if args.bundle is None else self._pack(args)

    def _check(self, args: argparse.Namespace) -> int:
        from supervisor.checks import Finding

        with patience("the devices, models and the slot to be looked at"):
            checks = list(look(args))
        bad = any(check.finding is Finding.BAD for check in checks)
        if args.json:
            facts = [
                {"name": c.name, "finding": c.finding.value, "text": c.text, "next_step": c.next_step} for c in checks
            ]
            print(json.dumps({"ok": not bad, "checks": facts}, indent=2))
        else:
            further = " " * 9
            for check in checks:
                print(printable_lines(f"{check.finding.value:8} {check.name}: {check.text}", further))
                if check.next_step and check.finding is not Finding.OK:
                    print(printable_lines(f"{further}{check.next_step}", further))
        return int(bad)

    def _pack(self, args: argparse.Namespace) -> int:
        from supervisor import config_find
        from supervisor.bundle import Bundle
        from supervisor.errors import QueenrightError

        bundle = Bundle()
        slot = configuration = None
        try:
            slot = slot_of(args)
            configuration = config_find.find(explicit=args.config)
        except QueenrightError as error:
            bundle.problems.append(str(error))
        bundle.collect(slot, configuration)
        path = Path(args.bundle or f"queenright-doctor-{time.strftime('%Y%m%d-%H%M%S')}.tar.gz").absolute()
        bundle.write(path)
        if args.json:
            print(json.dumps({"bundle": str(path), "files": list(bundle.files), "problems": bundle.problems}, indent=2))
            return 0
        print(f"{path}, readable by you alone. Secrets that we know of are taken out; look before you send it.")
        for name, data in bundle.files.items():
            print(f"  {len(data):9} {name}")
        for problem in bundle.problems:
            print(printable_lines(f"  could not be had: {problem}"))
        return 0


COMMAND: Final = Doctor()


def look(args: argparse.Namespace) -> Iterator[Check]:
    """Every check; one that cannot be made is one that found something."""
    from supervisor import checks, resolving
    from supervisor.checks import Check, Finding
    from supervisor.errors import QueenrightError

    try:
        config = resolving.load(args.config)
    except QueenrightError as error:
        yield Check("configuration", Finding.BAD, error.what, error.next_step)
    else:
        yield from checks.configuration_checks(config)
    yield from checks.memory_checks()
    try:
        slot = slot_of(args)
        usable = checks.slot_check(slot)
        yield usable
        if usable.finding is Finding.OK:
            yield checks.space_check(slot)
            yield from checks.engine_checks(slot)
    except QueenrightError as error:
        yield Check("slot", Finding.BAD, error.what, error.next_step)
