"""Arguments that several commands have, and the slot they mean."""

from __future__ import annotations

import math
import os
import re
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import argparse
    from collections.abc import Collection, Iterator

    from supervisor.config_shape import Config
    from supervisor.slot import Slot


UNITS: Final = {"s": 1, "min": 60, "m": 60, "h": 3600, "d": 86400}
"""Of a length of time on the command line, in seconds."""


def add_place(parser: argparse.ArgumentParser) -> None:
    """`--config` and `--slot`."""
    parser.add_argument("--config", type=Path, metavar="FILE", help="configuration (default: queenright.toml, upwards)")
    parser.add_argument("--slot", type=Path, metavar="DIR", help="slot directory (default: as configured)")


def count(text: str) -> int:
    """Of `--lines`: a number of lines, 0 or more."""
    import argparse

    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is no number of lines")
    return int(text)


def add_drain(parser: argparse.ArgumentParser) -> None:
    """`--drain`."""
    parser.add_argument(
        "--drain",
        type=_drain,
        default=0.0,
        metavar="SECONDS",
        help="first wait at most so long for a moment without requests in flight. New ones are not refused meanwhile, so "
        "on a busy engine it takes all of this time; where it is not known what is in flight, it goes on after 2 s",
    )


def _drain(text: str) -> float:
    import argparse

    from supervisor import budgets

    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds <= budgets.DRAIN_MOST:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds from 0 to {budgets.DRAIN_MOST:g}")
    return seconds


def length(text: str) -> float | None:
    """Seconds of a length of time such as `10min`, `2h` or `1d`; None for what is none."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?) ?(s|min|m|h|d)", text)
    return float(found[1]) * UNITS[found[2]] if found else None


def slot_of(args: argparse.Namespace) -> Slot:
    """The slot that is meant. Only the one key that says so is read of the configuration, so that an error elsewhere
    in it never keeps anybody from looking or stopping. Raises ConfigError."""
    from supervisor.slot import Slot

    if args.slot is not None:
        return Slot(Path(os.path.abspath(args.slot)))
    from supervisor.config_find import locate_slot

    return Slot(Path(os.path.abspath(locate_slot(explicit=args.config))))


def need_engine(slot: Slot, next_step: str) -> None:
    """Raises NoEngineError where none runs in the slot, for commands that never start one."""
    from supervisor.errors import NoEngineError
    from supervisor.looking import look

    if look(slot)["state"] == "down":
        raise NoEngineError(f"no engine runs in {slot.path}", next_step)


def slot_for(args: argparse.Namespace, config: Config) -> Slot:
    """The slot that is meant, where the configuration is at hand."""
    from supervisor import resolving
    from supervisor.slot import Slot

    return Slot(Path(os.path.abspath(args.slot))) if args.slot else resolving.slot_of(config)


def watch(slot: Slot, names: Collection[str]) -> dict[str, Any]:
    """Wait until these groups are up, given up or held, and say on standard error what they do meanwhile. Returns the
    snapshot, over the deaths of keepers. Raises NoEngineError when the engine goes away."""
    import sys

    from supervisor import budgets, control, locks
    from supervisor.control import ControlError
    from supervisor.errors import NoEngineError

    said: dict[str, str] = {}
    while locks.is_held(slot.warden_lock) is not False:
        with suppress(ControlError):
            for snapshot in control.converse(slot, "follow", limit=math.inf):
                for group in snapshot["groups"]:
                    now = said_of(group)
                    if group["name"] in names and said.get(group["name"]) != now:
                        said[group["name"]] = now
                        print(f"queenright: {now}", file=sys.stderr, flush=True)
                mine = [group for group in snapshot["groups"] if group["name"] in names]
                if all(group["settled"] and not group.get("draining") for group in mine):
                    return snapshot
        time.sleep(budgets.READY_POLL)  # noqa: TID251 - the next keeper is on its way
    raise NoEngineError(f"the engine in {slot.path} is gone", "`queenright logs` has what was said last")


def said_of(group: dict[str, Any]) -> str:
    """What a group of a snapshot does, in a line."""
    from supervisor.wording import printable, why

    return printable(f"{group['name']}: {group['state']}{why(group['state'], group['reason'])}")


@contextmanager
def patience(what: str) -> Iterator[None]:
    """Say on standard error, once, that `what` is waited for, if what is done inside takes longer than PATIENCE."""
    import sys
    from threading import Timer

    from supervisor import budgets

    timer = Timer(budgets.PATIENCE, lambda: print(f"queenright: waiting for {what}", file=sys.stderr, flush=True))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def ago(since: float | None) -> str:
    """How long ago that was. `since` is seconds of the epoch."""
    from supervisor import wording

    return wording.ago(since, time.time())
