"""`queenright retry`: close the breaker of a group that was given up."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from supervisor.commands._common import add_place, need_engine, said_of, slot_of, watch

if TYPE_CHECKING:
    import argparse


class Retry:
    """The command."""

    help = "try a group again that was given up"

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add this command's arguments."""
        parser.add_argument("group", nargs="*", help="which (default: all that were given up)")
        add_place(parser)
        parser.add_argument("--json", action="store_true", help="how they came up, as data")
        parser.epilog = (
            "example:\n  queenright retry chat\n\nReturns when they are up, or were given up again (exit status 5)."
        )

    def run(self, args: argparse.Namespace) -> int:
        """Ask for it, and wait. Raises ControlError (a usage error where no such group was given up), or
        NoEngineError."""
        from supervisor import budgets, control

        slot = slot_of(args)
        need_engine(slot, "there is nothing to try again")
        who = f"queenright retry (pid {os.getpid()})"
        snapshot = control.ask(slot, "retry", limit=budgets.STOP_ANSWER, who=who, groups=args.group)
        names = args.group or [group["name"] for group in snapshot["groups"] if not group["settled"]]
        snapshot = watch(slot, names)
        after = {group["name"]: group for group in snapshot["groups"] if group["name"] in names}
        if args.json:
            import json

            print(
                json.dumps(
                    {name: {"state": group["state"], "reason": group["reason"]} for name, group in after.items()}
                )
            )
        else:
            for group in after.values():
                print(said_of(group))
        return 5 if any(group["state"] == "failed" for group in after.values()) else 0


COMMAND: Final = Retry()
