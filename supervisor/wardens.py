"""How a warden is started, from outside: its command line, and the detached start."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from supervisor import budgets, journal, units
from supervisor.environment import SCRUBBED, clean
from supervisor.errors import EngineStartError, OwnedElsewhereError
from supervisor.service import NOTIFIES
from supervisor.standby import PROGRAM

if TYPE_CHECKING:
    from collections.abc import Mapping

    from supervisor.service import Service
    from supervisor.slot import Slot
    from supervisor.standby import Standby
    from supervisor.units import WayOut

HERE = Path(__file__).resolve().parent
HERE_I_AM = b"here\n"
"""What the stub says when it was started."""
HELD = 3
"""Exit status of a warden whose slot has one already."""


def command(
    slot: Slot,
    *,
    console: bool = False,
    release_fd: int | None = None,
    service: Service | None = None,
    waiting: Standby | None = None,
) -> list[str]:
    """The warden's command line. By absolute path and without the user's directory or site-packages (`-I -S`): `-m`
    would import whatever `supervisor/` lies in the working directory (tried). The keeper needs our packages: `-P`."""
    keeper = [*PROGRAM, str(slot.path), *(["--console"] if console else [])]
    if service is not None and service.notify:
        keeper.append(f"{NOTIFIES}={service.watchdog_s:g}")
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
    if service is not None and service.notify:
        settings["notify"] = service.notify
    if service is not None and service.listener is not None:
        settings["gateway_fd"] = service.listener
    if waiting is not None:
        settings |= waiting.settings()
    return [sys.executable, "-I", "-S", str(HERE / "warden.py"), str(slot.path), json.dumps(settings)]


def start_detached(slot: Slot, deadline: float) -> None:
    """Start a warden that shares no fate with us; returns when it holds its lock and its control socket listens.
    `deadline` is on `time.monotonic()`. From within a systemd service it goes into a scope of its own if it can.

    Raises OwnedElsewhereError when the slot has a warden, EngineStartError when it does not start.
    """
    stub = [sys.executable, "-I", "-S", str(HERE / "detach_stub.py"), str(slot.warden_log), *command(slot)]
    environ = clean(os.environ)
    way = units.way_out(units.cgroup_of(os.getpid()), environ)
    with ExitStack() as stack:
        started = _begin(stack, stub, environ, way, slot) or _begin(stack, stub, environ, None, slot)
        assert started is not None  # noqa: S101 - without a way out it is what it is
        try:
            _, words = started.communicate(b"go\n", timeout=max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired as error:
            raise EngineStartError(
                f"a warden for {slot.path} did not start within {budgets.CONTROL_WAIT:g} s", f"see {slot.warden_log}"
            ) from error
    if started.returncode == HELD:
        raise OwnedElsewhereError(f"{slot.path} got a warden from somebody else just now", "try again")
    if started.returncode != 0:
        raise EngineStartError(
            f"a warden for {slot.path} did not start: {words.decode('utf-8', 'replace').strip()}",
            f"see {slot.warden_log}",
        )


def _begin(
    stack: ExitStack, stub: list[str], environ: Mapping[str, str], way: WayOut | None, slot: Slot
) -> subprocess.Popen[bytes] | None:
    """Start the stub, which does nothing until it is told to go on. None where the way out led nowhere: that is said in
    events.jsonl, and whatever was started is killed."""
    child = subprocess.Popen(
        [*(way.words if way else ()), *stub],
        env={**environ, **(way.environment if way else {})},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    stack.callback(_end, child)
    if way is None:
        return child
    assert child.stdout is not None  # noqa: S101 - it is a pipe
    if select.select([child.stdout], [], [], budgets.UNIT_WAIT)[0] and child.stdout.readline() == HERE_I_AM:
        journal.note(slot, "warden's unit", unit=way.unit, out_of=way.service)
        return child
    child.kill()
    words = child.communicate()[1].decode("utf-8", "replace").strip()
    why = words or f"no answer within {budgets.UNIT_WAIT:g} s"
    journal.note(slot, "warden's unit", unit=None, inside=way.service, why=why[:500])
    return None


def _end(child: subprocess.Popen[bytes]) -> None:
    """Nothing of it is left, whatever came: the warden is no child of ours."""
    with suppress(OSError):
        child.kill()
    child.communicate()
