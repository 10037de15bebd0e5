"""What of an engine is still there, seen from a process of its own: `python -I -S leaks.py < question > answer`.

It asks the kernel alone (locks, environments, parents, command lines, open files, sockets) and never what our programs
wrote down. The question is JSON: `slot`; `marker`, an environment entry `NAME=value`; `generations` and `wardens` that
the test came across. The answer is a list of lines, empty when nothing is left. With `kill` it ends the processes it
finds, so that the next test starts on an empty machine.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import sys
from typing import Any

SEEN_LENGTH = 300


def read(path: str) -> bytes:
    """A file of /proc, or nothing where the process is gone."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""


def held_locks(slot: str) -> list[str]:
    """Every file in the slot that somebody has a flock on."""
    found = []
    for folder, _, names in os.walk(slot):
        for name in names:
            path = os.path.join(folder, name)
            try:
                descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
            except OSError:
                continue  # a socket, or gone
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                found.append(f"lock held: {os.path.relpath(path, slot)}")
            finally:
                os.close(descriptor)
    return found


def parents() -> dict[int, int]:
    """pid to parent of every process that is no zombie."""
    found = {}
    for name in os.listdir("/proc"):
        fields = read(f"/proc/{name}/stat").rpartition(b")")[2].split() if name.isdecimal() else []
        if fields and fields[0] not in (b"Z", b"X"):
            found[int(name)] = int(fields[1])
    return found


def why_ours(pid: int, family: dict[int, int], question: dict[str, Any]) -> str:
    """By what a process belongs to the engine; "" if it does not."""
    environment = read(f"/proc/{pid}/environ").split(b"\0")
    if question["marker"].encode() in environment:
        return "marker"
    marks = {f"QUEENRIGHT_GENERATION={generation}".encode() for generation in question["generations"]}
    if marks & set(environment):
        return "generation"
    if question["slot"].encode() in read(f"/proc/{pid}/cmdline"):
        return "command line"
    ancestor, seen = pid, set[int]()
    while ancestor in family and ancestor not in seen:
        seen.add(ancestor)
        if ancestor in question["wardens"]:
            return "descent"
        ancestor = family[ancestor]
    try:
        opened = [os.readlink(entry.path) for entry in os.scandir(f"/proc/{pid}/fd")]
    except OSError:
        opened = []
    return "open file" if any(path.startswith(question["slot"] + "/") for path in opened) else ""


def look(question: dict[str, Any]) -> list[str]:
    """All that is left."""
    found = held_locks(question["slot"])
    family = parents()
    for pid in family:
        if pid != os.getpid() and (why := why_ours(pid, family, question)):
            command = read(f"/proc/{pid}/cmdline").replace(b"\0", b" ").decode("utf-8", "replace")[:SEEN_LENGTH]
            found.append(f"process {pid} ({why}): {command.strip()}")
            if question.get("kill"):
                os.kill(pid, signal.SIGKILL)
    for line in read("/proc/net/unix").decode("utf-8", "replace").splitlines():
        if f" {question['slot']}/" in line:
            found.append(f"socket: {line.split()[-1]}")
    return found


if __name__ == "__main__":
    json.dump(look(json.load(sys.stdin)), sys.stdout)
