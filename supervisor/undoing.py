"""Ending what a generation started outside its own processes, by the command that its kind gave (kinds.Command.undo).

The command is in a file of the slot, so that whoever comes after a dead engine can run it: neither the kernel nor a
sweep finds a container, which has no lock, descriptor, parent or marker of ours.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from supervisor import budgets

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Mapping, Sequence

    from supervisor.slot import Slot


def left(slot: Slot, known: Container[str] = ()) -> list[tuple[str, Path]]:
    """By group, what generations that are not `known` have left to be ended. Nothing where that cannot be read."""
    return [(one["group"], Path(one["file"])) for one in slot.left_outside(known)]


def text_of(argv: Sequence[str], environment: Mapping[str, str]) -> str:
    """What is in such a file."""
    return json.dumps({"argv": list(argv), "environment": dict(environment)})


def undo(path: Path) -> str:
    """Run it, for UNDO_TRY at most, and remove the file where it succeeded: "" then, and where there is none. Else what
    went wrong, in words. It blocks."""
    try:
        given = json.loads(path.read_bytes())
        argv, environment = [*map(str.__str__, given["argv"])], dict(given["environment"])
    except FileNotFoundError:
        return ""
    except (OSError, ValueError, LookupError, TypeError) as error:
        return f"{path.name} cannot be read: {error}"
    try:
        done = subprocess.run(
            argv,
            env=environment,
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=budgets.UNDO_TRY,
            check=False,
        )
    except (OSError, ValueError, TypeError, subprocess.TimeoutExpired) as error:  # whatever stands in the file
        return f"what is left outside cannot be ended: {error}"
    if done.returncode != 0:
        words = done.stderr.decode("utf-8", "replace").strip().splitlines()
        return f"what is left outside cannot be ended: {words[-1] if words else f'exit status {done.returncode}'}"
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        return f"what was left outside has ended, and {path.name} cannot be removed: {error.strerror}"
    return ""


async def finish(path: Path, complain: Callable[[str], None]) -> None:
    """Until it has succeeded, for as long as that takes; `complain` is told once, after UNDO_LIMIT."""
    if not os.path.lexists(path):  # noqa: ASYNC240 - a thread would take longer, and most groups never have one
        return
    import trio  # who clears up after an engine (`undo`) needs none of it

    trouble, pause = "what is left outside does not end", budgets.UNDO_PAUSE
    async with trio.open_nursery() as nursery:

        async def complain_late() -> None:
            await trio.sleep(budgets.UNDO_LIMIT)
            complain(trouble)

        nursery.start_soon(complain_late)
        while found := await trio.to_thread.run_sync(undo, path, abandon_on_cancel=True):
            trouble = found
            await trio.sleep(pause)
            pause = min(2 * pause, budgets.UNDO_PAUSE_MOST)
        nursery.cancel_scope.cancel()
