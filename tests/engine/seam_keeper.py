"""A keeper that kills itself with SIGKILL at a named seam, the first time that one of them comes there.

    python -P seam_keeper.py SLOT SEAM MARK [OPTION...]

MARK is a file that it makes before it dies; where it is, this is a keeper like any other. Seams, each before and after:
a command to the warden, an action of a group's table, a write of a record. And news from the warden, before it is heeded.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from supervisor import keeper, records
from supervisor.group import Group
from supervisor.procs import Procs

if TYPE_CHECKING:
    from collections.abc import Callable

SEAM, MARK = sys.argv[2], Path(sys.argv[3])


def reach(seam: str) -> None:
    """Die here, if it is the one."""
    if seam == SEAM and not MARK.exists():
        MARK.touch()
        os.kill(os.getpid(), signal.SIGKILL)


def around(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def wrapped(*arguments: Any, **named: Any) -> Any:
        reach(f"before {name}")
        result = function(*arguments, **named)
        reach(f"after {name}")
        return result

    return wrapped


def command_name(message: dict[str, Any]) -> str:
    """`kill 9`, `note of a group`: what makes a difference."""
    match message:
        case {"op": "kill", "sig": number}:
            return f"kill {number}"
        case {"op": "note", "gen": _}:
            return "note of a generation"
        case {"op": "note", "key": key}:
            return "note of a group" if key.startswith("group:") else f"note of the {key}"
        case _:
            return str(message["op"])


class Link:
    """The stream to the warden, with a seam on both sides of each line."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self.receive_some = stream.receive_some
        self.socket = stream.socket

    async def send_all(self, lines: bytes) -> None:
        for line in lines.splitlines(keepends=True):  # those that were posted together come together
            name = command_name(json.loads(line))
            reach(f"before {name}")
            await self._stream.send_all(line)
            reach(f"after {name}")


def prepare() -> None:
    """Put the seams in."""
    make, take = Procs.__init__, Procs._take

    def make_procs(self: Procs, *arguments: Any) -> None:
        make(self, *arguments)
        self._stream = Link(self._stream)  # type: ignore[assignment]

    def take_news(self: Procs, message: dict[str, Any]) -> None:
        reach(f"told {message['ev']}")
        take(self, message)

    def write(path: Path, *arguments: Any, **named: Any) -> None:
        who = "keeper" if path.name == "keeper.json" else "group"
        around(f"record of a {who}", real_write)(path, *arguments, **named)

    real_write = records.write
    Procs.__init__ = make_procs  # type: ignore[method-assign,assignment]
    Procs._take = take_news  # type: ignore[method-assign]
    records.write = write
    records.write_text_private = around("file of a generation", records.write_text_private)
    for action, hand in list(Group._hands.items()):
        Group._hands[action] = around(f"action {action.name.lower()}", hand)


if __name__ == "__main__":
    prepare()
    sys.exit(keeper.main())
