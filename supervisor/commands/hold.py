"""`queenright hold` and `queenright release`: keep a slot empty of engines, for as long as it takes."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final

from supervisor.commands._common import add_place, slot_of

if TYPE_CHECKING:
    import argparse


class Hold:
    """The command."""

    help = "stop the engine and keep it down, until `queenright release`"

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add this command's arguments."""
        parser.add_argument("reason", nargs="?", default="", help="shown to whoever waits for the engine")
        add_place(parser)
        parser.add_argument("--json", action="store_true", help="the hold as data")
        parser.epilog = (
            'example:\n  queenright hold "driver update"\n\n'
            "Requests wait for the release, up to their deadlines. A hold outlives a reboot. Returns when nothing of the\n"
            "engine runs any more."
        )

    def run(self, args: argparse.Namespace) -> int:
        """Write the hold, then have a running engine obey it. Raises UnkillableError when something cannot be ended."""
        from supervisor import budgets, control, holding, locks

        slot = slot_of(args)
        slot.prepare()
        with locks.acquire(slot.build_lock, timeout=budgets.BUILD_LOCK_WAIT):  # nobody builds while it is written
            hold = holding.place(slot, f"user id {os.getuid()} (pid {os.getpid()})", args.reason)
        running = locks.is_held(slot.warden_lock) is not False
        if running:
            try:
                control.ask(slot, "hold", limit=budgets.STOP_ANSWER, who=hold.who, why=hold.describe())
                snapshot = control.ask(slot, "rest", limit=budgets.TEARDOWN + budgets.CONTROL_ANSWER)
            except control.ControlError as error:
                raise control.ControlError(
                    f"the slot is held, but the engine in it still runs: {error.what}",
                    "`queenright stop` ends it, and none is started until `queenright release`",
                    listening=error.listening,
                ) from error
            _refuse_survivors(snapshot)
        if args.json:
            import json

            print(json.dumps({"held": True, **hold._asdict(), "engine": running}))
        else:
            print(f"{hold.describe()}; " + ("its groups are down" if running else "no engine runs"))
            print("`queenright release` ends it")
        return 0


class Release:
    """The command."""

    help = "end a hold: the engine may run again"

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add this command's arguments."""
        add_place(parser)
        parser.add_argument("--json", action="store_true", help="what was released, as data")
        parser.epilog = "example:\n  queenright release\n\nStarts no engine where none runs. Exit status 0 also where nothing was held."

    def run(self, args: argparse.Namespace) -> int:
        """Lift it, and tell a running engine. Raises ControlError where its keeper does not answer."""
        from supervisor import budgets, control, holding, locks

        slot = slot_of(args)
        there = holding.lift(slot) if slot.examine() else None
        running = locks.is_held(slot.warden_lock) is not False
        told = False
        if running:
            try:
                # Also where the file is gone: an earlier release may have met a keeper that did not answer.
                told = there is not None or bool(control.ask(slot, "status")["held"])
                if told:
                    who = f"queenright release (pid {os.getpid()})"
                    control.ask(slot, "release", limit=budgets.STOP_ANSWER, who=who)
            except control.ControlError as error:
                raise control.ControlError(
                    f"no file holds the slot any more, but the engine in it could not be told: {error.what}",
                    "`queenright release` tells it again; `queenright status` shows whether it is held",
                    listening=error.listening,
                ) from error
        if args.json:
            import json

            print(json.dumps({"released": there is not None or told, "engine": running}))
        elif there is None and not told:
            print("nothing is held")
        else:
            was = f" ({there.describe()})" if there is not None else ""
            print(f"released{was}; " + ("its groups start" if running else "the next who needs it starts it"))
        return 0


COMMAND: Final = Hold()
RELEASE: Final = Release()


def _refuse_survivors(snapshot: dict[str, Any]) -> None:
    """Raise UnkillableError for what outlived its stop."""
    from supervisor.errors import UnkillableError

    left = [group for group in snapshot["groups"] if group["proxy"]]
    if left:
        names = ", ".join(f"{group['name']} (pid {group['proxy']['pid']}): {group['reason']}" for group in left)
        pids = tuple(group["proxy"]["pid"] for group in left)
        raise UnkillableError(f"the slot is held, but something cannot be ended: {names}", "`ps` shows its state", pids)
