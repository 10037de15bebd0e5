"""`queenright hold` and `queenright release`: keep a slot empty of engines, for as long as it takes."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final

from supervisor.commands._common import add_place, length, patience, slot_of

if TYPE_CHECKING:
    import argparse

    from supervisor.slot import Slot


class Hold:
    """The command."""

    help = "stop the engine, or a group of it, and keep it down until `queenright release`"

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add this command's arguments."""
        parser.add_argument("reason", nargs="?", default="", help="shown to whoever waits for the engine")
        parser.add_argument("--group", metavar="NAME", help="hold this group alone; the others serve on")
        parser.add_argument(
            "--for", dest="for_s", type=_length, metavar="TIME", help="not longer than so long (`10min`, `2h`, `1d`)"
        )
        add_place(parser)
        parser.add_argument("--json", action="store_true", help="the hold as data")
        parser.epilog = (
            'examples:\n  queenright hold "driver update"\n  queenright hold "benchmark" --group chat --for 2h\n\n'
            "Requests wait for the release, up to their deadlines, and are told who holds it and why. A hold outlives a\n"
            "reboot. Returns when nothing of what is held runs any more."
        )

    def run(self, args: argparse.Namespace) -> int:
        """Write the hold, then have a running engine obey it. Raises UnkillableError when something cannot be ended."""
        from supervisor import budgets, control, holding, locks

        slot, group = slot_of(args), _group(args)
        slot.prepare()
        running = locks.is_held(slot.warden_lock) is not False
        if group and running:
            _refuse_unknown(slot, group)
        with locks.acquire(slot.build_lock, timeout=budgets.BUILD_LOCK_WAIT):  # nobody builds while it is written
            who = f"user id {os.getuid()} (pid {os.getpid()})"
            hold = holding.place(slot, who, args.reason, group, args.for_s)
        what = f"group {group}" if group else "the slot"
        running = locks.is_held(slot.warden_lock) is not False
        if running:
            try:
                names = [group] if group else []
                control.ask(slot, "hold", limit=budgets.STOP_ANSWER, who=hold.who, why=hold.describe(), groups=names)
                limit = budgets.TEARDOWN + budgets.CONTROL_ANSWER
                with patience(f"{what} to come down"):
                    snapshot = control.ask(slot, "wait" if group else "rest", limit=limit, groups=names)
            except control.ControlError as error:
                if holding.find(slot, group) is None:
                    raise  # it was released meanwhile, or its time is over
                raise control.ControlError(
                    f"{what} is held, but the engine in it still runs: {error.what}",
                    "`queenright stop` ends it, and none is started until `queenright release`",
                    listening=error.listening,
                ) from error
            _refuse_survivors(snapshot, what, group)
        if args.json:
            import json

            print(json.dumps({"held": True, **hold.plain(), "engine": running}))
        else:
            down = f"{what} is down" if group else "its groups are down"
            print(f"{hold.describe()}; " + (down if running else "no engine runs"))
            print(f"`queenright release{f' --group {group}' if group else ''}` ends it")
        return 0


class Release:
    """The command."""

    help = "end a hold: the engine may run again"

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add this command's arguments."""
        parser.add_argument("--group", metavar="NAME", help="the hold on this group")
        add_place(parser)
        parser.add_argument("--json", action="store_true", help="what was released, as data")
        parser.epilog = (
            "examples:\n  queenright release\n  queenright release --group chat\n\n"
            "Starts no engine where none runs. A group that is held by itself stays held, until that is released.\n"
            "Exit status 0 also where nothing was held."
        )

    def run(self, args: argparse.Namespace) -> int:
        """Lift it, and tell a running engine. Raises ControlError where its keeper does not answer."""
        from supervisor import budgets, control, holding, locks

        slot, group = slot_of(args), _group(args)
        there = holding.lift(slot, group) if slot.examine() else None
        others = sorted(holding.on_groups(slot)) if slot.examine() and not group else []
        running = locks.is_held(slot.warden_lock) is not False
        told = False
        if running:
            try:
                # Also where the file is gone: an earlier release may have met a keeper that did not answer.
                told = there is not None or _is_held(control.ask(slot, "status"), group)
                if told:
                    who = f"queenright release (pid {os.getpid()})"
                    names = [group] if group else []
                    control.ask(slot, "release", limit=budgets.STOP_ANSWER, who=who, groups=names)
            except control.ControlError as error:
                raise control.ControlError(
                    f"no file holds the slot any more, but the engine in it could not be told: {error.what}",
                    "`queenright release` tells it again; `queenright status` shows whether it is held",
                    listening=error.listening,
                ) from error
        if args.json:
            import json

            print(json.dumps({"released": there is not None or told, "engine": running, "still_held": others}))
            return 0
        if there is None and not told:
            print("nothing is held" if not others else "the slot is not held")
        else:
            was = f" ({there.describe()})" if there is not None else ""
            starts = f"group {group} starts" if group else "its groups start"
            print(f"released{was}; " + (starts if running else "the next who needs it starts it"))
        for name in others:
            print(f"group {name} is held by itself: `queenright release --group {name}`")
        return 0


COMMAND: Final = Hold()
RELEASE: Final = Release()


def _group(args: argparse.Namespace) -> str:
    """Raises UsageError for what cannot be the name of one."""
    from supervisor.errors import UsageError
    from supervisor.slot import GROUP_NAME

    if args.group is not None and not GROUP_NAME.fullmatch(args.group):
        raise UsageError(f"{args.group!r} is no group's name", "`queenright status` shows those there are")
    return args.group or ""


def _length(text: str) -> float:
    """Seconds of `10min`, `2h`, `1d`."""
    import argparse

    from supervisor import budgets

    seconds = length(text) or 0.0
    if not 0 < seconds <= budgets.HOLD_MOST:
        raise argparse.ArgumentTypeError(f"{text!r} is no length of time such as 10min, 2h or 1d, of a year at most")
    return seconds


def _refuse_unknown(slot: Slot, group: str) -> None:
    """Raise UsageError for a group that a running engine does not have. One whose keeper is silent is not asked."""
    from contextlib import suppress

    from supervisor import control
    from supervisor.errors import UsageError

    with suppress(control.ControlError):
        names = [one["name"] for one in control.ask(slot, "status")["groups"]]
        if names and group not in names:
            raise UsageError(f"there is no group {group}", f"there are: {', '.join(names)}")


def _is_held(snapshot: dict[str, Any], group: str) -> bool:
    if not group:
        return bool(snapshot["held"])
    return any(one["name"] == group and one["state"] == "held" for one in snapshot["groups"]) and not snapshot["held"]


def _refuse_survivors(snapshot: dict[str, Any], what: str, only: str) -> None:
    """Raise UnkillableError for what outlived its stop."""
    from supervisor.errors import UnkillableError

    left = [group for group in snapshot["groups"] if group["proxy"] and only in ("", group["name"])]
    if left:
        names = ", ".join(f"{group['name']} (pid {group['proxy']['pid']}): {group['reason']}" for group in left)
        pids = tuple(group["proxy"]["pid"] for group in left)
        raise UnkillableError(f"{what} is held, but something cannot be ended: {names}", "`ps` shows its state", pids)
