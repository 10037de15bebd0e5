"""The leader of a group in a container: it makes room for the container, then becomes `podman run` or `docker run`.

    python -I -S .../container.py start ENGINE NAME SLOT GROUP -- run ARGUMENT...
    python -I -S .../container.py undo ENGINE GENERATION IDFILE

`start` removes what an earlier generation of this group left, told by labels. A container of our name without our labels
is somebody else's: it stays, and nothing is started. `undo` ends the containers of one generation, and exits with 0 once
the container engine says that there is none: a container has no parent, descriptor or marker of ours, so no sweep finds it.

Standard library only: it runs before each start. Exit statuses of its own: 64 usage, 69 the container engine does not
answer, 73 the name is somebody else's.
"""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress

LABEL = "queenright."
EXIT_USAGE, EXIT_UNAVAILABLE, EXIT_TAKEN = 64, 69, 73
ANSWER = 8.0  # budget: one question; `docker ps` takes 20 ms, and `rm -f` of a process that uses a GPU some seconds


class Refused(Exception):
    """The container engine did not do what it was asked."""


def said(*words: str) -> str:
    """What a command prints. Raises Refused."""
    try:
        done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, timeout=ANSWER, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Refused(str(error)) from error
    if done.returncode != 0:
        lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
        raise Refused(f"{words[0]} {words[1]}: {lines[-1] if lines else f'exit status {done.returncode}'}")
    return done.stdout.decode("utf-8", "replace")


def containers(engine: str, *filters: str) -> set[str]:
    """Ids of those that fit, running or not."""
    words = [word for each in filters for word in ("--filter", each)]
    return set(said(engine, "ps", "-a", "-q", "--no-trunc", *words).split())


def of_name(engine: str, name: str) -> str:
    """Id of the container that has exactly this name, running or not; "" for none. The filter only makes the list shorter: it
    is a pattern to podman and docker, in which a dot is any character, and a part of the name to nerdctl."""
    words = ("ps", "-a", "--no-trunc", "--filter", f"name={name}", "--format", "{{.ID}} {{.Names}}")
    for line in said(engine, *words).splitlines():
        one, _, names = line.partition(" ")
        if name in names.replace(",", " ").split():
            return one
    return ""


def remove(engine: str, *filters: str) -> None:
    """Kill and remove them. Raises Refused where one is left."""
    found = containers(engine, *filters)
    trouble = ""
    for one in found:
        # Killed first: `podman rm -f` waits ten seconds for a SIGTERM that was sent already (podman-rm(1)), which is longer
        # than we ask for, and `docker rm -f` does not.
        with suppress(Refused):  # it does not run
            said(engine, "kill", one)
        try:
            said(engine, "rm", "-f", one)
        except Refused as error:  # it may be on its way out already (`--rm`); whether it went is asked below
            trouble = str(error)
    if found and (left := containers(engine, *filters)):
        raise Refused(f"container {min(left)[:12]} is still there{f': {trouble}' if trouble else ''}")


def start(engine: str, name: str, slot: str, group: str, words: list[str]) -> int:
    """Returns an exit status, or never."""
    ours = (f"label={LABEL}slot={slot}", f"label={LABEL}group={group}")
    remove(engine, *ours)
    if foreign := of_name(engine, name):
        complain(f"there is a container {name} ({foreign[:12]}) that this group did not start: it is left alone")
        return EXIT_TAKEN
    return os.execv(engine, [engine, *words])


def complain(text: str) -> None:
    """One line on stderr, which is the group's log."""
    sys.stderr.write(f"queenright container: {text}\n")


def main(words: list[str]) -> int:
    """Exit status."""
    try:
        match words:
            case ["start", engine, name, slot, group, "--", *rest] if rest:
                return start(engine, name, slot, group, rest)
            case ["undo", engine, generation, id_file]:
                remove(engine, f"label={LABEL}generation={generation}")
                with suppress(OSError):
                    os.unlink(id_file)
                return 0
    except Refused as error:
        complain(f"{error}")
        return EXIT_UNAVAILABLE
    complain("usage: container.py start ENGINE NAME SLOT GROUP -- run ARGUMENT... | undo ENGINE GENERATION IDFILE")
    return EXIT_USAGE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
