"""A planned stop that meets a server which does not go: SIGTERM does nothing to it."""

from __future__ import annotations

import signal
import subprocess
import sys
import sysconfig
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from chaos.observer import NotObservedError
from chaos.soak.faults.ground import Fault, Hit
from chaos.soak.faults.orders import IGNORE_TERM, obeys
from supervisor import budgets

if TYPE_CHECKING:
    from chaos.soak.faults.ground import Ground

PATIENCE: Final = 60.0  # budget: a command's start on a busy machine, and a teardown (TEARDOWN)


def queenright(*words: str) -> str:
    """A command of ours, to its end; what it printed. Raises NotObservedError where it fails."""
    script = Path(sysconfig.get_path("scripts")) / "queenright"
    argv = [sys.executable, str(script)] if script.is_file() else [sys.executable, "-P", "-m", "supervisor.cli"]
    try:
        done = subprocess.run([*argv, *words], capture_output=True, text=True, timeout=PATIENCE, check=False)
    except subprocess.TimeoutExpired as error:
        raise NotObservedError(f"`queenright {words[0]}` did not end within {PATIENCE:g} s") from error
    if done.returncode:
        raise NotObservedError(f"`queenright {words[0]}` ended with {done.returncode}: {done.stderr.strip()[-300:]}")
    return done.stdout


class IgnoredTerm(Fault):
    """A fake ignores the signal; a real one is stopped, and so never gets to it. The engine is held meanwhile, and released."""

    name, what = "ignored term", "servers that hear no SIGTERM while `queenright hold` stops the engine; then `release`"

    def invoke(self, ground: Ground) -> Hit:
        """All of the engine's processes must be gone when the command says so."""
        slot = ["--slot", str(ground.slot.path)]
        for servers in ground.before.servers.values():
            for server in servers:
                if obeys(server):
                    ground.kill(server, IGNORE_TERM)
                else:
                    ground.undo.callback(ground.kill, server, signal.SIGCONT)
                    ground.kill(server, signal.SIGSTOP)
        ground.undo.callback(queenright, "release", *slot)
        began = time.monotonic()
        queenright("hold", "a soak", *slot)
        took = time.monotonic() - began
        victims = tuple(sorted(ground.before.engine, key=lambda one: one.pid))
        most = 3 * budgets.TEARDOWN  # a command's start and a busy machine besides

        def wrong() -> str:
            return f"the engine was down after {took:.1f} s" if took > most else ""

        return Hit(victims, frozenset(ground.before.leaders), heals_first=True, wrong=wrong)
