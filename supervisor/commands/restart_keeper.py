"""`queenright restart-keeper`: a new keeper over the same engine, for an upgrade."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from supervisor.commands._common import add_place, need_engine, patience, slot_of

if TYPE_CHECKING:
    import argparse


class RestartKeeper:
    """The command."""

    help = "replace the keeper, as after an upgrade; the engine goes on serving"

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add this command's arguments."""
        add_place(parser)
        parser.add_argument("--json", action="store_true", help="the old keeper and the new one, as data")
        from supervisor import budgets

        parser.epilog = (
            "example:\n  pip install --upgrade queenright && queenright restart-keeper\n\n"
            "No model is loaded again, and no stream of our own library is cut. The gateway is the keeper's: what streams through\n"
            f"it has {budgets.GATEWAY_DRAIN:g} s to come to its end, and is then broken off and told so. Who connects meanwhile\n"
            "waits for the next keeper."
        )

    def run(self, args: argparse.Namespace) -> int:
        """Ask for it, and wait for the next one. Raises NoEngineError, ControlError or EngineStartError."""
        from supervisor import budgets, control
        from supervisor.control import ControlError
        from supervisor.errors import EngineStartError

        slot = slot_of(args)
        need_engine(slot, "there is no keeper to replace")
        began = time.monotonic()
        old = control.ask(slot, "status", limit=budgets.STOP_ANSWER)["keeper"]
        with suppress(ControlError):  # it may be gone before its answer is
            control.ask(slot, "restart-keeper", who=f"queenright restart-keeper (pid {os.getpid()})")
        with patience("the next keeper; the engine goes on serving"):
            while (left := began + budgets.CONTROL_WAIT - time.monotonic()) > 0:
                try:
                    new = control.ask(slot, "status", limit=left)["keeper"]
                    if new["pid"] != old["pid"]:
                        break
                except ControlError:
                    pass  # between the two
                time.sleep(budgets.READY_POLL)  # noqa: TID251 - the old one's end is seen by asking
            else:
                raise EngineStartError(
                    f"no new keeper answered within {budgets.CONTROL_WAIT:g} s; the engine goes on",
                    f"see {slot.keeper_log}",
                )
        took = time.monotonic() - began
        if args.json:
            import json

            print(json.dumps({"old": old, "new": new, "seconds": took}))
        else:
            print(
                f"keeper {new['pid']} (version {new['version']}) took over from {old['pid']} (version {old['version']}) in {took:.1f} s"
            )
        return 0


COMMAND: Final = RestartKeeper()
