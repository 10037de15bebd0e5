"""Log files of an engine: their last words, and a cap on their size.

Everybody appends (O_APPEND), so a file can be truncated under its writers: they go on at the new end.
"""

from __future__ import annotations

import os
import re
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

from supervisor import budgets
from supervisor.slot import START_LOG_END

if TYPE_CHECKING:
    from pathlib import Path

TAIL_BYTES = 32 * 1024
START_LINES, START_BYTES = 200, 64 * 1024
"""Kept of a generation's start. llama-server writes 10 lines until it is ready, with `-lv 4` 195 (measured)."""
START_LOGS = 5
"""Start-up logs of a group that are kept: those of a doomed one, and what was before it."""
COPY_MOST_BYTES = 2 * budgets.LOG_CAP_BYTES
"""Between two looks a server can write gigabytes, and a copy of all that would stay until the next cut. Ordinary logs do not
outgrow their cap by as much, and are copied whole: who follows one finds his place in the copy."""
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


def tail(path: Path, *, lines: int, since: int = 0, most: int = TAIL_BYTES) -> list[str]:
    """The last lines written after byte `since`, out of the last `most` bytes; fewer where there are fewer. Never raises for
    what is in the file."""
    try:
        with path.open("rb") as file:
            end = file.seek(0, os.SEEK_END)
            start = since if since <= end else 0  # it was truncated meanwhile
            file.seek(max(start, end - most))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return []
    return [line.rstrip() for line in text.splitlines() if line.strip()][-lines:] if lines > 0 else []


def last_lines(path: Path, lines: int) -> list[str]:
    """The last lines of a log for somebody who reads it: however long they are, and of a log that was just cut also what
    stands in the copy."""
    found = tail(path, lines=lines, most=COPY_MOST_BYTES)
    if len(found) < lines:
        found = tail(path.with_name(path.name + ".1"), lines=lines - len(found), most=COPY_MOST_BYTES) + found
    return found


def last_words(lines: list[str]) -> str:
    """The line that most likely says why: the first that llama.cpp itself calls an error, else the last of others that
    speaks of trouble, else the last; "" where llama.cpp itself saw none in that either."""
    levels = {line: found[1] for line in lines if (found := LEVEL.match(line))}
    errors = [line for line in lines if levels.get(line) == "E" or line.startswith("error:")]
    others = [line for line in lines if line not in levels]
    trouble = [line for line in others if any(word in line.lower() for word in TROUBLE)]
    telling = errors[:1] or trouble[-1:] or [line for line in lines[-1:] if line not in levels]
    return telling[0][:300] if telling else ""


class StartLog:
    """The first lines of a generation, in a file of their own: of a group's log the beginning is what a cap takes first.

    Whoever makes one for a generation that has one already goes on where that ends.
    """

    def __init__(self, log: Path, since: int, path: Path) -> None:
        self._log, self._path = log, path
        try:
            kept = path.read_bytes()
        except OSError:
            kept = b""
        self._at, self._bytes, self._lines = since + len(kept), len(kept), kept.count(b"\n")

    @property
    def is_full(self) -> bool:
        """Whether all that is kept of a start is there."""
        return self._bytes >= START_BYTES or self._lines >= START_LINES

    def take(self) -> None:
        """Keep what was written since the last time, as far as there is room. What cannot be read or written is lost."""
        if self.is_full:
            return
        with suppress(OSError):
            with self._log.open("rb") as file:
                end = file.seek(0, os.SEEK_END)
                self._at = self._at if self._at <= end else 0  # it was truncated meanwhile
                file.seek(self._at)
                data = file.read(START_BYTES - self._bytes)
            lines = data.splitlines(keepends=True)[: START_LINES - self._lines]
            data = b"".join(lines)
            if data:
                flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
                with open(os.open(self._path, flags, 0o600), "ab") as kept:
                    kept.write(data)
            self._at, self._bytes = self._at + len(data), self._bytes + len(data)
            self._lines += data.count(b"\n")


def start_logs(folder: Path, group: str = "") -> list[Path]:
    """The start-up logs of a group, or of all of them, the newest last."""
    try:  # glob takes ten times as long, and each of a hundred groups that start has a hundred logs to pass over
        names = [name for name in os.listdir(folder) if name.endswith(START_LOG_END)]
    except OSError:
        return []
    found = []
    for path in (folder / name for name in names if not group or name.startswith(f"{group}.")):
        with suppress(OSError):
            found.append((path.stat().st_mtime_ns, path))
    return [path for _, path in sorted(found)]


def make_room(folder: Path, group: str) -> None:
    """Remove the oldest start-up logs of a group, so that with another one there are START_LOGS."""
    for path in start_logs(folder, group)[: -(START_LOGS - 1)]:
        with suppress(OSError):
            path.unlink()


def cap(path: Path, limit: int = budgets.LOG_CAP_BYTES) -> bool:
    """Copy a file that outgrew `limit` bytes to `<name>.1` and truncate it; True when that was done. Of one that was flooded
    only the end is copied (COPY_MOST_BYTES).

    What is written between the copy and the truncation is lost: microseconds of a log, against a disk that fills.
    """
    if size(path) <= limit:
        return False
    import shutil  # and with it half a dozen compressions, for what hardly ever happens

    # No room for the copy: the cap matters more.
    with suppress(OSError), path.open("rb") as file, path.with_name(path.name + ".1").open("wb") as older:
        end = file.seek(0, os.SEEK_END)
        file.seek(max(0, end - COPY_MOST_BYTES))
        shutil.copyfileobj(file, older)
    try:
        with path.open("rb+") as file:
            file.truncate(0)
    except OSError:  # it was removed meanwhile, or is no file
        return False
    return True
