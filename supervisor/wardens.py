"""How a warden is started, from outside: its command line, and the detached start."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from supervisor import budgets
from supervisor.environment import SCRUBBED, clean
from supervisor.errors import EngineStartError, OwnedElsewhereError

if TYPE_CHECKING:
    from supervisor.slot import Slot

HERE = Path(__file__).resolve().parent
HELD = 3
"""Exit status of a warden whose slot has one already."""


def command(slot: Slot, *, console: bool = False, release_fd: int | None = None) -> list[str]:
    """The warden's command line. By absolute path and without the user's directory or site-packages (`-I -S`): `-m`
    would import whatever `supervisor/` lies in the working directory (tried). The keeper needs our packages: `-P`."""
    keeper = [sys.executable, "-P", str(HERE / "keeper.py"), str(slot.path), *(["--console"] if console else [])]
    settings: dict[str, Any] = {
        "keeper": keeper,
        "console": console,
        "scrub": SCRUBBED,
        "stop_limit": budgets.WARDEN_STOP,
        "sweep_limit": budgets.SWEEP_LIMIT,
        "keeper_delays": budgets.KEEPER_DELAYS,
        "keeper_stable": budgets.KEEPER_STABLE,
        "keeper_silence": budgets.KEEPER_SILENCE,
        "keeper_look": budgets.KEEPER_LOOK,
    }
    if release_fd is not None:
        settings["release_fd"] = release_fd
    return [sys.executable, "-I", "-S", str(HERE / "warden.py"), str(slot.path), json.dumps(settings)]


def start_detached(slot: Slot, deadline: float) -> None:
    """Start a warden that shares no fate with us; returns when it holds its lock and its control socket listens.
    `deadline` is on `time.monotonic()`.

    Raises OwnedElsewhereError when the slot has a warden, EngineStartError when it does not start.
    """
    stub = [sys.executable, "-I", "-S", str(HERE / "detach_stub.py"), str(slot.warden_log)]
    try:
        done = subprocess.run(
            [*stub, *command(slot)],
            env=clean(os.environ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=max(0.1, deadline - time.monotonic()),
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise EngineStartError(
            f"a warden for {slot.path} did not start within {budgets.CONTROL_WAIT:g} s", f"see {slot.warden_log}"
        ) from error
    if done.returncode == HELD:
        raise OwnedElsewhereError(f"{slot.path} got a warden from somebody else just now", "try again")
    if done.returncode != 0:
        raise EngineStartError(
            f"a warden for {slot.path} did not start: {done.stderr.decode('utf-8', 'replace').strip()}",
            f"see {slot.warden_log}",
        )
