"""`queenright status`: one screen, plain words. It only looks."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING, Any, Final

from supervisor.commands._common import add_place, slot_of

if TYPE_CHECKING:
    import argparse

    from rich.text import Text

    from supervisor.slot import Slot

STYLES: Final = {"good": "green", "bad": "bold red", "changing": "yellow", "quiet": "dim", "": ""}
"""The moods of `screen.Line` in rich's words."""
DUMB: Final = ("dumb", "unknown")
"""TERM of terminals that have no screen to draw on, as rich knows them: they get lines, as a pipe does."""
FOOT: Final = 2
"""Rows at the foot of a watch."""


class Status:
    """The command."""

    help = "what runs, since when, who uses it, and what is wrong"

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add this command's arguments."""
        add_place(parser)
        parser.add_argument("--json", action="store_true", help="the same as data (docs/reference/status.md)")
        parser.add_argument(
            "--watch", action="store_true",
            help="go on showing it, until Ctrl-C, also while there is no engine; into a pipe: a line for each change",
        )  # fmt: skip
        parser.epilog = (
            "example:\n  queenright status --json\n  queenright status --watch\n\n"
            "Exit status 4 when no engine runs, 5 when a group failed; of a watch 130, by Ctrl-C."
        )

    def run(self, args: argparse.Namespace) -> int:
        """Print it."""
        from supervisor.looking import dump, look, whole

        slot = slot_of(args)
        if args.watch:
            return _watch(slot, as_json=args.json)
        snapshot = whole(slot, look(slot))
        if args.json:
            print(dump(snapshot))
        else:
            from supervisor.screen import plain

            print(plain(snapshot, time.time()))
        return {"down": 4, "failed": 5}.get(snapshot["state"], 0)


COMMAND: Final = Status()


def _watch(slot: Slot, *, as_json: bool) -> int:
    """Until Ctrl-C, which is how a watch ends: without a word."""
    try:
        if as_json or not sys.stdout.isatty() or os.environ.get("TERM", "").lower() in DUMB:
            _tell(slot, as_json=as_json)
        else:
            _show(slot)
    except KeyboardInterrupt:
        pass
    return 130


def _tell(slot: Slot, *, as_json: bool) -> None:
    """A line for each change."""
    import json

    from supervisor import looking, screen

    before: dict[str, Any] | None = None
    for snapshot in looking.follow(slot):
        if as_json:
            if snapshot != before:
                print(json.dumps({k: v for k, v in snapshot.items() if k != "contract"}), flush=True)
        else:
            for line in screen.news(before, snapshot):
                print(f"{time.strftime('%H:%M:%S')} {line}", flush=True)
        before = snapshot


def _show(slot: Slot) -> None:
    """A screen of its own, drawn anew with each change and each second, in the size that the terminal has then."""
    from rich.console import Console
    from rich.live import Live

    from supervisor import looking

    with Live(console=Console(), screen=True, auto_refresh=False) as live:
        for snapshot in looking.follow(slot):
            live.update(drawn(snapshot, time.time(), *live.console.size), refresh=True)


def drawn(snapshot: dict[str, Any], now: float, columns: int, rows: int) -> Text:
    """The screen in colours, with the time it is of at its foot."""
    from rich.text import Text

    from supervisor import screen

    shown = screen.fitted(screen.lines(snapshot, now), columns, max(rows - FOOT, 2))
    parts = [(f"{line.text}\n", STYLES[line.mood]) for line in shown]
    foot = f"\n{time.strftime('%H:%M:%S', time.localtime(now))}, Ctrl-C ends this and nothing else"
    return Text.assemble(*parts, (foot, "dim"), overflow="fold")
