"""Taking up a generation that an earlier keeper started: same processes, same ports, same keys."""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisor import notes
from supervisor.birth import known_birth
from supervisor.contract import State
from supervisor.life import Life

if TYPE_CHECKING:
    from supervisor.contract import GroupSpec
    from supervisor.procs import Row
    from supervisor.slot import Slot

TAKEN_UP = "taken up by a new keeper"


def take_up(row: Row, spec: GroupSpec, slot: Slot, warden_pid: int) -> Life:
    """What the warden says of it, as its keeper would know it. Raises QueenrightError when the key cannot be kept."""
    left = notes.of_life(row.note)
    birth = known_birth(spec, slot, row.gen, left.ports, warden_pid, left.log_start)
    life = Life(slot, spec.name, birth, row.pid, left.mark)
    life.was_ready, life.oom, life.ended = left.ready, left.oom, row.exit
    if row.state != "running":
        life.exited.set()
    return life


def found(row: Row, life: Life, *, ever_ready: bool, changed: bool) -> tuple[State, str]:
    """The state that its group begins with, and the reason for it. `changed`: the group is to be another one by now."""
    if row.state == "unkillable":  # the warden said so once, to the keeper before us
        return State.FAILED, f"cannot be killed: what is left of pid {row.pid}"
    if row.state == "running" and life.was_ready and not changed:
        return State.RUNNING, TAKEN_UP
    return State.REBUILDING if ever_ready else State.STARTING, TAKEN_UP
