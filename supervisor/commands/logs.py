"""`queenright logs`: what groups, keeper and warden wrote. Works with the engine dead."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Final

from supervisor import budgets
from supervisor.commands._common import add_place, count, slot_of

if TYPE_CHECKING:
    import argparse
    from pathlib import Path

    from supervisor.following import Follower
    from supervisor.slot import Slot


class Logs:
    """The command."""

    help = "the logs of a group, also of a dead one"

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add this command's arguments."""
        add_place(parser)
        parser.add_argument("name", nargs="?", metavar="GROUP", help="a group, or `keeper` or `warden` (default: all)")
        parser.add_argument(
            "--lines", type=count, default=50, metavar="N", help="how many of the last lines (default: 50)"
        )
        parser.add_argument("--follow", action="store_true", help="go on with what is written, until Ctrl-C")
        parser.add_argument(
            "--start", action="store_true", help="what the group's last generation wrote while it started"
        )
        parser.epilog = "example:\n  queenright logs chat --follow\n  queenright logs chat --start"

    def run(self, args: argparse.Namespace) -> int:
        """Print them. Raises UsageError for a log that is not there."""
        from supervisor import logfiles
        from supervisor.errors import NoEngineError, UsageError
        from supervisor.following import Follower

        slot = slot_of(args)
        if args.start:
            return show_starts(slot, args.name)
        found = chosen_logs(slot)
        if not found:
            slot.examine()  # what may not be looked into is not empty
        if args.name is not None and args.name not in found:
            known = ", ".join(found) or f"none in {slot.logs}"
            raise UsageError(f"there is no log of {args.name!r}", f"logs: {known}")
        if not found:
            raise NoEngineError(f"there are no logs in {slot.logs}", "no engine has run in this slot yet")
        chosen = [found[args.name]] if args.name else list(found.values())
        followers = {path: Follower(path, logfiles.size(path)) for path in chosen}
        for path in chosen:
            if len(chosen) > 1:
                print(f"==> {path.stem} <==")
            for line in logfiles.last_lines(path, args.lines):
                print(line)
        if args.follow:
            follow(slot, args.name, followers)
        return 0


COMMAND: Final = Logs()


def show_starts(slot: Slot, group: str | None) -> int:
    """The start-up log of the last generation of a group, or of each; the older ones are named.

    Raises NoEngineError where none is kept.
    """
    from supervisor import logfiles
    from supervisor.errors import NoEngineError

    groups = sorted({path.name.partition(".")[0] for path in logfiles.start_logs(slot.logs)})
    chosen = [name for name in groups if group in (None, name)]
    if not chosen:
        slot.examine()
        what = f"of group {group!r}" if group else "of any group"
        raise NoEngineError(
            f"no start-up log is kept {what} in {slot.logs}", f"there are: {', '.join(groups) or 'none'}"
        )
    for name in chosen:
        *older, last = logfiles.start_logs(slot.logs, name)
        print(f"==> {last.name} <==")
        try:
            print(last.read_text(encoding="utf-8", errors="replace"), end="")
        except OSError as error:
            print(f"(cannot be read: {error.strerror})")
        if older:
            print(f"older: {', '.join(str(path) for path in reversed(older))}")
    return 0


def follow(slot: Slot, name: str | None, followers: dict[Path, Follower]) -> None:
    """Print what comes after that, until interrupted; without a name also of logs that come into being. With several, a
    head says whose the lines are."""
    from supervisor.following import Follower

    last = None if len(followers) > 1 or name is None else next(iter(followers))
    while True:
        if name is None:
            for path in chosen_logs(slot).values():
                followers.setdefault(path, Follower(path, 0))
        for path, follower in followers.items():
            lines = follower.take()
            if lines and path != last:
                print(f"==> {path.stem} <==")
                last = path
            for line in lines:
                print(line)
        sys.stdout.flush()
        time.sleep(budgets.FOLLOW_POLL)  # noqa: TID251 - a file has no event to wait for


def chosen_logs(slot: Slot) -> dict[str, Path]:
    """The logs of the slot by name, without those of single starts."""
    return {path.stem: path for path in sorted(slot.logs.glob("*.log")) if "." not in path.stem}
