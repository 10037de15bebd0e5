"""Log files of an engine: their last words, and a cap on their size.

Everybody appends (O_APPEND), so a file can be truncated under its writers: they go on at the new end.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

from supervisor import budgets

if TYPE_CHECKING:
    from pathlib import Path

TAIL_BYTES = 32 * 1024
TROUBLE = ("error", "fail", "cannot", "couldn't", "invalid", "unable", "abort", "refus", "unexpected")
LEVEL = re.compile(r"[0-9.]+ ([A-Z]) ")
"""What llama.cpp itself takes a line for, behind the time since its start: I, W, E, ... Its warnings speak of failures
that it has just avoided."""


def complain(text: str) -> None:
    """One line for the log that standard error is. On a full disk it is lost, and nobody dies of it."""
    with suppress(OSError):
        print(text, file=sys.stderr, flush=True)


def size(path: Path) -> int:
    """Bytes in the file; 0 where there is none."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def tail(path: Path, *, lines: int, since: int = 0) -> list[str]:
    """The last lines written after byte `since`; fewer where there are fewer. Never raises for what is in the file."""
    try:
        with path.open("rb") as file:
            end = file.seek(0, os.SEEK_END)
            start = since if since <= end else 0  # it was truncated meanwhile
            file.seek(max(start, end - TAIL_BYTES))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return []
    return [line.rstrip() for line in text.splitlines() if line.strip()][-lines:]


def last_words(lines: list[str]) -> str:
    """The line that most likely says why: the first that llama.cpp itself calls an error, else the last of others that
    speaks of trouble, else the last; "" where llama.cpp itself saw none in that either."""
    levels = {line: found[1] for line in lines if (found := LEVEL.match(line))}
    errors = [line for line in lines if levels.get(line) == "E" or line.startswith("error:")]
    others = [line for line in lines if line not in levels]
    trouble = [line for line in others if any(word in line.lower() for word in TROUBLE)]
    telling = errors[:1] or trouble[-1:] or [line for line in lines[-1:] if line not in levels]
    return telling[0][:300] if telling else ""


def cap(path: Path, limit: int = budgets.LOG_CAP_BYTES) -> bool:
    """Copy a file that outgrew `limit` bytes to `<name>.1` and truncate it; True when that was done.

    What is written between the copy and the truncation is lost: microseconds of a log, against a disk that fills.
    """
    if size(path) <= limit:
        return False
    with suppress(OSError):  # no room for the copy: the cap matters more
        shutil.copyfile(path, path.with_name(path.name + ".1"))
    try:
        with path.open("rb+") as file:
            file.truncate(0)
    except OSError:  # it was removed meanwhile, or is no file
        return False
    return True
