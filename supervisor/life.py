"""The handle on a generation while it lives."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from supervisor import budgets, evidence, identity
from supervisor.contract import Exit
from supervisor.kinds import ServerState
from supervisor.logfiles import StartLog

if TYPE_CHECKING:
    from collections.abc import Iterator

    from supervisor.kinds import Birth
    from supervisor.slot import Slot


class Life:
    """A generation while it lives. `undo`: what ends the rest of it (kinds.Command.undo), if it is there; `mark` tells what it was
    started as (`birth.mark_of`); `servers`: what was heard of them. `exited`: its leader is dead, by `ended`; `swept` counts
    the processes that had not ended with it.

    For naming what ends it: `was_ready`, the OOM kills counted before, and the processes it had when it became ready.
    For naming what holds its load up: `stalls`, the kernel's count of compaction stalls before it.
    """

    def __init__(self, slot: Slot, group: str, birth: Birth, pid: int, mark: str) -> None:
        self.birth, self.pid, self.log_start, self.mark = birth, pid, birth.log_start, mark
        self.undo = slot.generation_undo(group, birth.generation)
        self.log = slot.group_log(group)
        self.start_log = StartLog(self.log, self.log_start, slot.start_log(group, birth.generation))
        self.exited = trio.Event()
        self.ended = Exit(1, 0)
        self.swept = 0
        self.was_ready = False
        self.oom: evidence.Count | None = None
        self.stalls: int | None = None
        self.kin: set[int] = {pid}
        self.leader = identity.of(pid)
        self.servers: dict[str, ServerState] = {}

    @property
    def port(self) -> int:
        """Where clients go."""
        return self.birth.port

    def family(self) -> list[int]:
        """Pids of the leader and all below it, now."""
        return list(self.each())

    def each(self) -> Iterator[int]:
        """The same one by one, the leader first: who has found what he looks for need not walk further."""
        yield self.pid
        yield from identity.below(self.pid)

    def lost_roles(self) -> list[str]:
        """Servers that died, and that are not back."""
        return [role for role, state in self.servers.items() if state is ServerState.LOST]

    def servers_are_down(self) -> None:
        """They end with the leader."""
        self.servers = dict.fromkeys(self.servers, ServerState.DOWN)

    def prove_started(self) -> None:
        """Every server answers: keep the first lines of the start, and who its processes are. Of a later load, only these."""
        if not self.was_ready:
            self.start_log.take()
        self.kin |= set(self.family())
        self.was_ready = True

    async def keep_start(self) -> None:
        """Its first lines, before the cap on the log takes them."""
        while not (self.was_ready or self.start_log.is_full):
            self.start_log.take()
            await trio.sleep(budgets.START_LOG_LOOK)
