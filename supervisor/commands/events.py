"""`queenright events`: what happened in the slot, with reasons. Works with the engine dead, and only looks."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any, Final

from supervisor.commands._common import add_place, count, length, slot_of

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable


class Events:
    """The command."""

    help = "what happened, with reasons: starts, deaths and their causes, stops, who came"

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add this command's arguments."""
        add_place(parser)
        parser.add_argument("--json", action="store_true", help="one object a line, as they stand in events.jsonl")
        parser.add_argument("--follow", action="store_true", help="go on with what happens, until Ctrl-C")
        parser.add_argument(
            "--since", type=_since, metavar="TIME", help="not older than so long (`10min`, `2h`, `3d`), or than a date"
        )
        parser.add_argument(
            "--lines", type=count, metavar="N", help="how many of the last (default: 50; all with --since)"
        )
        parser.epilog = (
            "example:\n  queenright events --since 2h\n  queenright events --follow --json\n\n"
            "Exit status 4 when nothing ever happened in the slot."
        )

    def run(self, args: argparse.Namespace) -> int:
        """Print them. Raises NoEngineError where there are none."""
        from supervisor import budgets, logfiles
        from supervisor.errors import NoEngineError
        from supervisor.following import Follower

        slot = slot_of(args)
        follower = Follower(slot.events, logfiles.size(slot.events))
        older = slot.events.with_name(f"{slot.events.name}.1")
        before = [line for path in (older, slot.events) for line in Follower(path, 0).take()]
        if not before:
            slot.examine()  # what may not be looked into is not empty
        if not before and not args.follow:
            raise NoEngineError(f"there are no events in {slot.events}", "no engine has run in this slot yet")
        wanted = [event for event in parsed(before) if args.since is None or event["at"] >= args.since]
        lines = args.lines if args.lines is not None else 50 if args.since is None else len(wanted)
        tell(wanted[max(0, len(wanted) - lines) :], as_json=args.json)
        while args.follow:
            tell(parsed(follower.take()), as_json=args.json)
            time.sleep(budgets.FOLLOW_POLL)  # noqa: TID251 - a file has no event to wait for
        return 0


COMMAND: Final = Events()


def _since(text: str) -> float:
    """Seconds of the epoch."""
    import argparse
    from datetime import datetime

    if (ago := length(text)) is not None:
        return time.time() - ago
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no time such as 10min, 2h or 2026-01-31T08:00") from None


def parsed(lines: Iterable[str]) -> list[dict[str, Any]]:
    """The events in these lines. What was cut by the cap, or is damaged, is left out."""
    found = []
    for line in lines:
        try:
            event = json.loads(line)
            found.append({**event, "at": float(event["at"])})
        except (ValueError, LookupError, TypeError):
            continue
    return found


def tell(events: Iterable[dict[str, Any]], *, as_json: bool) -> None:
    """Print them."""
    from supervisor.telling import sentence

    for event in events:
        if as_json:
            print(json.dumps(event, separators=(",", ":")), flush=True)
        else:
            at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(event["at"]))
            print(f"{at}  {sentence(event)}", flush=True)
