"""What a keeper does with a group of the kind `command`: wait for it, read what it says, run its stop command."""

from __future__ import annotations

import json
import os
import subprocess
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import trio

from supervisor.kinds import Answer
from workers import container_run, loopback

if TYPE_CHECKING:
    import re
    from collections.abc import Mapping

    from supervisor.kinds import Birth

FIRST_LOOK = 0.001  # budget: pause after the first refusal; a program that only opens a port is well after 1 ms
LOOK_MOST = 0.25  # budget: between two looks at one that loads a model for minutes
STOP_LIMIT = 5.0  # budget: a stop command may take as long as a group's stop (GROUP_STOP)
ANSWER_LIMIT = 5.0  # budget: one answer to a look; a health page that takes longer tells as much as none
LOG_PIECE: Final = 1 << 16
"""Bytes of a log that are read at once, and of a line that are looked at."""


async def until_well(birth: Birth, page: str) -> None:
    """Ask until all is well. Bounded by the caller: slow is not dead."""
    pause = FIRST_LOOK
    while True:
        with trio.move_on_after(ANSWER_LIMIT):
            if await loopback.health(birth.port, page, birth.client_key) is Answer.ANSWERED:
                return
        await trio.sleep(pause)
        pause = min(2 * pause, LOOK_MOST)


async def until_said(birth: Birth, ready: re.Pattern[str]) -> None:
    """Follow the generation's part of the log until a line has the pattern. Bounded by the caller."""
    at, rest, pause = birth.log_start, b"", FIRST_LOOK
    while True:
        with suppress(OSError), birth.log.open("rb") as file:
            at = min(at, file.seek(0, os.SEEK_END))  # it was cut
            file.seek(at)
            data = file.read(LOG_PIECE)
            at += len(data)
            *lines, rest = (rest + data).split(b"\n")
            if any(ready.search(line.decode("utf-8", "replace")) for line in (*lines, rest)):
                return
            rest = rest[-LOG_PIECE:]
            if len(data) == LOG_PIECE:
                continue
        await trio.sleep(pause)
        pause = min(2 * pause, LOOK_MOST)


async def container(birth: Birth) -> int | None:
    """See container_run.pid_of."""

    def look() -> int | None:
        asked = json.loads(birth.config.read_text())
        return container_run.pid_of(asked["argv"][0], birth, asked.get("environment", {}))

    with suppress(OSError, ValueError):
        return await trio.to_thread.run_sync(look, abandon_on_cancel=True)
    return None


def run(argv: list[str], environment: Mapping[str, str]) -> None:
    """`environment` is the group's, beside the keeper's own. Raises what kept it from running; that it failed, its own words
    in the keeper's log say."""
    subprocess.run(argv, stdin=subprocess.DEVNULL, env={**os.environ, **environment}, timeout=STOP_LIMIT, check=False)
