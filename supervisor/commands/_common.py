"""Arguments that several commands have, and the slot they mean."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse

    from supervisor.slot import Slot


def add_place(parser: argparse.ArgumentParser) -> None:
    """`--config` and `--slot`."""
    parser.add_argument("--config", type=Path, metavar="FILE", help="configuration (default: queenright.toml, upwards)")
    parser.add_argument("--slot", type=Path, metavar="DIR", help="slot directory (default: as configured)")


def slot_of(args: argparse.Namespace) -> Slot:
    """The slot that is meant. Only the one key that says so is read of the configuration, so that an error elsewhere
    in it never keeps anybody from looking or stopping. Raises ConfigError."""
    from supervisor.slot import Slot

    if args.slot is not None:
        return Slot(Path(os.path.abspath(args.slot)))
    from supervisor.config_find import locate_slot

    return Slot(Path(os.path.abspath(locate_slot(explicit=args.config))))


def ago(since: float | None) -> str:
    """A time as people say it. `since` is seconds of the epoch."""
    if since is None:
        return "?"
    seconds = max(0, int(time.time() - since))
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"


def size(number: int | None) -> str:
    """Bytes as people say them."""
    if number is None:
        return "?"
    return f"{number / 2**30:.1f} GiB" if number >= 2**30 else f"{number / 2**20:.0f} MiB"
