"""`queenright stop`: the unconditional off switch."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final

from supervisor.commands._common import add_drain, add_place, patience, slot_of

if TYPE_CHECKING:
    import argparse


class Stop:
    """The command."""

    help = "stop the engine, whoever uses it"

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add this command's arguments."""
        add_place(parser)
        add_drain(parser)
        parser.add_argument("--json", action="store_true", help="what was stopped, as data")
        parser.epilog = (
            "example:\n  queenright stop\n  queenright stop --drain 30\n\n"
            "Exit status 4 when no engine runs. Never starts one. While it drains, Ctrl-C calls the stop off, and a second\n"
            "`queenright stop` stops at once."
        )

    def run(self, args: argparse.Namespace) -> int:
        """Stop it. Raises NoEngineError, or QueenrightError when something cannot be ended."""
        from supervisor import locks, stopping

        slot = slot_of(args)
        if locks.is_held(slot.warden_lock) is not True:  # what lives is stopped, whatever became of its directory
            slot.examine()
        who = f"queenright stop (pid {os.getpid()}, user id {os.getuid()})"
        with patience("the engine to stop"):
            done = stopping.stop(slot, who=who, drain_s=args.drain, heard=_tell_of_draining)
        private = [str(one.path) for one in slot.private_slots() if locks.is_held(one.warden_lock) is True]
        if args.json:
            import json

            print(
                json.dumps(
                    {
                        "stopped": True,
                        "how": done.how,
                        "seconds": done.seconds,
                        "members": done.members,
                        "private": private,
                    }
                )
            )
            return 0
        from supervisor.wording import printable

        how = {
            "keeper": "",
            "warden": " (by the warden: its keeper did not answer)",
            "killed": " (killed)",
            "leftovers": " (what an engine without a warden had left)",
        }[done.how]
        print(f"stopped in {done.seconds:.1f} s{how}")
        if done.members:
            print(printable(f"  in use by: {', '.join(done.members)}"))
        for path in private:
            print(f"  a private engine goes on beside it: `queenright stop --slot {path}` ends that")
        return 0


COMMAND: Final = Stop()


def _tell_of_draining(snapshot: dict[str, Any]) -> None:
    import sys

    if snapshot.get("draining"):
        print(f"queenright: {snapshot['draining']}", file=sys.stderr, flush=True)
