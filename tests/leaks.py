"""What of a test is still there, seen from a process of its own: `python -I -S leaks.py < questions > answers`.

It asks the kernel alone (locks, environments, parents, command lines, open files, sockets) and never what our programs
wrote down. A question is a line of JSON, every part of it optional:

- `slot`: a directory: locks that are held below it, processes that name it or have files of it open, sockets bound in it
- `marker`: an environment entry `NAME=value`, or the beginning of one
- `generations`, `wardens`: those that the test came across
- `children`: whether all descendants of the asker count, `before`: but for these (pid and start ticks) and theirs
- `within`: seconds to wait for nothing being left; `kill`: at each look, end the processes that are found

The answer is a line, too: a list of what is left, empty when nothing is. Only a process that was orphaned and has
neither its environment nor a file or lock of the test any more is not found.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import sys
import time
from contextlib import suppress
from typing import Any, NamedTuple

SEEN_LENGTH = 300
POLL_S = 0.02


class Process(NamedTuple):
    """One that is no zombie."""

    parent: int
    ticks: int


def read(path: str) -> bytes:
    """A file of /proc, or nothing where the process is gone."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""


def held_locks(folder: str) -> list[str]:
    """Every file below that somebody has a flock on."""
    found = []
    for where, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(where, name)
            try:
                descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
            except OSError:
                continue  # a socket, or gone
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                found.append(f"lock held: {os.path.relpath(path, folder)}")
            finally:
                os.close(descriptor)
    return found


def open_files(pid: int) -> list[str]:
    """What its descriptors point to; one that is closed meanwhile says nothing of the rest."""
    found = []
    with suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                found.append(os.readlink(f"/proc/{pid}/fd/{name}"))
    return found


def processes() -> dict[int, Process]:
    """Every process that is no zombie, by pid."""
    found = {}
    for name in os.listdir("/proc"):
        fields = read(f"/proc/{name}/stat").rpartition(b")")[2].split() if name.isdecimal() else []
        if fields and fields[0] not in (b"Z", b"X"):
            found[int(name)] = Process(int(fields[1]), int(fields[19]))  # proc_pid_stat(5), from its third field on
    return found


def descent(pid: int, living: dict[int, Process]) -> list[int]:
    """A process and those it descends from, nearest first."""
    line: list[int] = []
    while pid in living and pid not in line:
        line.append(pid)
        pid = living[pid].parent
    return line


def why_ours(pid: int, line: list[int], question: dict[str, Any]) -> str:
    """By what a process belongs to the test; "" if it does not."""
    environment = read(f"/proc/{pid}/environ").split(b"\0")
    marker, slot = question.get("marker", "").encode(), question.get("slot", "")
    if marker and any(entry.startswith(marker) for entry in environment):
        return "marker"
    marks = {f"QUEENRIGHT_GENERATION={generation}".encode() for generation in question.get("generations", ())}
    if marks & set(environment):
        return "generation"
    if slot and slot.encode() in read(f"/proc/{pid}/cmdline"):
        return "command line"
    if set(question.get("wardens", ())).intersection(line):
        return "descent"
    if question.get("children") and os.getppid() in line[1:]:
        return "descent"
    return "open file" if slot and any(path.startswith(slot + "/") for path in open_files(pid)) else ""


def look(question: dict[str, Any]) -> list[str]:
    """All that is left now."""
    slot = question.get("slot", "")
    found = held_locks(slot) if slot else []
    living = processes()
    before = {pid for pid, ticks in question.get("before", ()) if pid in living and living[pid].ticks == ticks}
    for pid in living:
        line = descent(pid, living)
        if pid == os.getpid() or before.intersection(line) or not (why := why_ours(pid, line, question)):
            continue
        command = read(f"/proc/{pid}/cmdline").replace(b"\0", b" ").decode("utf-8", "replace")[:SEEN_LENGTH]
        found.append(f"process {pid} ({why}): {command.strip()}")
        if question.get("kill") and pid != os.getppid():  # the test itself may have a file open
            with suppress(ProcessLookupError):  # it ended meanwhile
                os.kill(pid, signal.SIGKILL)
    for bound in read("/proc/net/unix").decode("utf-8", "replace").splitlines() if slot else ():
        if f" {slot}/" in bound:
            found.append(f"socket: {bound.split()[-1]}")
    return found


def main() -> None:
    """Questions and their answers, until there are no more."""
    for line in sys.stdin:
        question = json.loads(line)
        deadline = time.monotonic() + question.get("within", 0)
        while (found := look(question)) and time.monotonic() < deadline:
            time.sleep(POLL_S)
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
