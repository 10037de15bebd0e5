"""Users of an engine, for the bench: `python -m chaos.bench_user members SLOT COUNT` is that many of them in one process,
`... bind SLOT CONFIG` is one that comes and goes when it is told. Both end with their standard input.

Some names of `membership` that are not public are used here: a process has one membership of a slot, and a thousand
processes are more than a bench should start.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from supervisor import budgets, locks, membership
from supervisor.slot import Slot

if TYPE_CHECKING:
    from supervisor.contract import EngineSpec


def members(slot: Slot, count: int) -> None:
    """Make and lock their files as a process that joins does, one after the other."""
    with locks.acquire(slot.build_lock, timeout=budgets.BUILD_LOCK_WAIT):
        held = [membership._enter(slot, "queenright bench") for _ in range(count)]
    print(len(held), flush=True)
    sys.stdin.read()
    for one in held:
        one.release()


def bind(slot: Slot, configuration: Path) -> None:
    """For each line, come to the engine and go again: `bind` from what is wanted, `open` from the configuration. Prints
    the seconds that the coming took."""
    from supervisor import acquire
    from supervisor.ladder import Rung

    known = _wanted(configuration)
    for line in sys.stdin:
        began = time.perf_counter()
        wanted = known if line.strip() == "bind" else _wanted(configuration)
        acquired = acquire.acquire(slot, wanted, program="queenright bench")
        took = time.perf_counter() - began
        acquired.membership.leave()
        print(took if acquired.decision.rung is Rung.BIND else acquired.decision.reason, flush=True)


def _wanted(configuration: Path) -> EngineSpec:
    from chaos.bench_cells import group_to_run
    from supervisor.contract import EngineSpec

    return EngineSpec((group_to_run(configuration),), root=str(configuration.parent))


if __name__ == "__main__":
    if sys.argv[1] == "members":
        members(Slot(Path(sys.argv[2])), int(sys.argv[3]))
    else:
        bind(Slot(Path(sys.argv[2])), Path(sys.argv[3]))
