"""A group on the bench: the real `Group`, a warden and a kind that do what the test says, and a clock that jumps."""

from __future__ import annotations

import functools
import itertools
import math
import os
import signal
import time
import types
from collections import deque
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ParamSpec, cast

import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from supervisor import ports
from supervisor.contract import Exit, GroupSpec, LaunchSpec, State
from supervisor.group import Group
from supervisor.kinds import Activity, Answer, Birth, Command, Report, ServerState
from supervisor.ports import Owner, Ownership
from supervisor.procs import Exited, Gone, Hello, News, Procs, Row, Spawned, SpawnRefusedError, Unkillable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Collection

    import pytest

    from supervisor.config_shape import EngineConfig, GroupConfig
    from supervisor.life import Life
    from supervisor.lifecycle import Event
    from supervisor.probing import Prober
    from supervisor.slot import Slot

P = ParamSpec("P")

KILLED, EXITED = 2, 1
NO_SUCH_PIDS = itertools.count(5_000_000)
"""Above what Linux gives (PID_MAX_LIMIT, 2^22): whatever looks for such a process finds none."""

SPEC = GroupSpec(
    "chat",
    "fake",
    (LaunchSpec("chat", "m1", "/m1.gguf", 4096, 1), LaunchSpec("draft", "m2", "/m2.gguf", 4096, 1)),
    "pin",
    environment={"OF_THE_GROUP": "1"},
)


class FakeWarden:
    """The warden behind `procs.Procs`, as seen from a group: a table of generations, notes, and rules of its own."""

    def __init__(self) -> None:
        self.hello = Hello(4242, 1, 1, 0, None)
        self.table: dict[str, Row] = {}
        self.notes: dict[str, Any] = {}
        self.spawned: list[dict[str, Any]] = []
        self.kills: list[tuple[str, int, bool]] = []
        self.errors: list[str] = []
        """Commands that the real warden would have answered with `error`."""
        self.refusals: deque[str] = deque()
        self.gate: trio.Event | None = None
        """Spawns wait for it, where there is one."""
        self.obeys = {signal.SIGTERM, signal.SIGKILL}
        self._news: dict[str, tuple[trio.MemorySendChannel[News], trio.MemoryReceiveChannel[News]]] = {}

    # --- what Procs has ---

    @property
    def rows(self) -> dict[str, Row]:
        return dict(self.table)

    def follow(self, generation: str) -> trio.MemoryReceiveChannel[News]:
        if generation not in self._news:
            self._news[generation] = trio.open_memory_channel[News](math.inf)
        return self._news[generation][1]

    async def spawn(self, *, gen: str, group: str, note: dict[str, Any], **how: Any) -> Spawned:
        await trio.lowlevel.checkpoint()
        if self.gate is not None:
            await self.gate.wait()
        if self.refusals:
            raise SpawnRefusedError(f"cannot start {how['argv'][0]}: {self.refusals.popleft()}")
        if any(row.group == group and row.state != "gone" for row in self.table.values()):
            raise SpawnRefusedError(f"cannot start {how['argv'][0]}: group {group} still has a generation")
        pid = next(NO_SUCH_PIDS)
        self.table[gen] = Row(gen, group, pid, 1, "running", Exit(0, 0), note)
        self.spawned.append({"gen": gen, "group": group, "note": note, **how})
        return Spawned(pid, 1)

    def kill(self, generation: str, number: int, *, everybody: bool = False) -> None:
        self.kills.append((generation, int(number), everybody))
        if generation not in self.table:
            self.errors.append(f"kill {generation}")
        elif number in self.obeys and self.table[generation].state == "running":
            self.die(generation, KILLED, int(number))

    def note_generation(self, generation: str, value: dict[str, Any]) -> None:
        if generation in self.table:
            self.table[generation] = self.table[generation]._replace(note=value)
        else:
            self.errors.append(f"note {generation}")

    def note_slot(self, key: str, value: Any) -> None:
        self.notes[key] = value

    def forget(self, generation: str) -> None:
        if generation not in self.table:
            self.errors.append(f"forget {generation}")
        elif self.table[generation].state == "gone":
            del self.table[generation]
        self._news.pop(generation, None)

    # --- what happens ---

    @property
    def living(self) -> list[str]:
        return [row.gen for row in self.table.values() if row.state == "running"]

    @property
    def last(self) -> str:
        """The generation that was started last."""
        return str(self.spawned[-1]["gen"])

    def exit(self, generation: str, code: int, status: int) -> None:
        """The leader dies; its sweep begins."""
        self.table[generation] = self.table[generation]._replace(state="sweeping", exit=Exit(code, status))
        self._tell(generation, Exited(Exit(code, status)))

    def sweep(self, generation: str) -> None:
        """Everything of it is dead and reaped."""
        self.table[generation] = self.table[generation]._replace(state="gone")
        self._tell(generation, Gone(0, 1.0))

    def cannot_kill(self, generation: str, *pids: int) -> None:
        self.table[generation] = self.table[generation]._replace(state="unkillable")
        self._tell(generation, Unkillable(pids))

    def die(self, generation: str, code: int = KILLED, status: int = signal.SIGKILL) -> None:
        self.exit(generation, code, status)
        self.sweep(generation)

    def next_keepers(self) -> FakeWarden:
        """The same warden, seen by the next keeper: table and notes, and of the news only what comes from now on."""
        other = FakeWarden()
        other.table, other.notes, other.spawned = dict(self.table), dict(self.notes), self.spawned
        return other

    def _tell(self, generation: str, news: News) -> None:
        self.follow(generation)
        self._news[generation][0].send_nowait(news)


class FakeKind:
    """A kind whose servers do as they are told. Each `load` takes the next of `loads`, and is ready without one."""

    name = "fake"

    def __init__(self) -> None:
        self.loads: deque[str | Exception | Callable[[Report], None]] = deque()
        """`hang`, an exception to raise, or something to do while it loads."""
        self.loading: list[str] = []
        self.asked: list[list[str]] = []
        self.watching: list[str] = []
        self.releases: list[str] = []
        self.release_does: str | Exception = ""
        self.report: Report | None = None

    def resolve(self, group: GroupConfig, engine: EngineConfig) -> GroupSpec:
        raise NotImplementedError

    def looked_at(self, spec: GroupSpec) -> tuple[()]:
        return ()

    def port_names(self, spec: GroupSpec) -> tuple[str, ...]:
        return ("proxy", *(launch.role for launch in spec.launches))

    def command(self, spec: GroupSpec, birth: Birth) -> Command:
        keys = birth.config.with_suffix(".keys")
        files = {birth.config: "{}", keys: f"{birth.client_key}\n{birth.generation_key}\n"}
        return Command(("/bin/proxy", "-listen", str(birth.ports["proxy"])), dict(spec.environment), files)

    async def load(self, spec: GroupSpec, birth: Birth, roles: Collection[str], report: Report) -> None:
        self.loading.append(birth.generation)
        self.asked.append(sorted(roles))
        for role in roles:
            report(role, ServerState.LOADING)
        await trio.lowlevel.checkpoint()
        todo = self.loads.popleft() if self.loads else ""
        if todo == "hang":
            await trio.sleep_forever()
        elif isinstance(todo, Exception):
            raise todo
        for role in roles:
            report(role, ServerState.READY)
        if callable(todo):
            todo(report)

    async def probe(self, spec: GroupSpec, birth: Birth, subject: str) -> Answer:
        return Answer.UNKNOWN

    async def look_closer(self, spec: GroupSpec, birth: Birth, role: str) -> str | None:
        return None

    async def canary(self, spec: GroupSpec, birth: Birth, role: str) -> Answer:
        return Answer.UNKNOWN

    async def watch(self, spec: GroupSpec, birth: Birth, report: Report, activity: Activity) -> None:
        self.watching.append(birth.generation)
        self.report = report
        try:
            await trio.sleep_forever()
        finally:
            self.watching.remove(birth.generation)

    async def outside(self, birth: Birth) -> int | None:
        return None

    async def release(self, birth: Birth) -> None:
        self.releases.append(birth.generation)
        if self.release_does == "hang":
            await trio.sleep_forever()
        elif isinstance(self.release_does, Exception):
            raise self.release_does


@dataclass
class Bench:
    """One group with all that is around it."""

    slot: Slot
    warden: FakeWarden = field(default_factory=FakeWarden)
    kind: FakeKind = field(default_factory=FakeKind)
    spec: GroupSpec = SPEC
    heard: list[State] = field(default_factory=list)
    """The states the group went through."""
    ends: list[dict[str, Any]] = field(default_factory=list)
    """What it told of each death."""

    def __post_init__(self) -> None:
        self.group = Group(self.spec, self.slot, self.kind, cast("Procs", self.warden), self._hear, self.ends.append)

    def state(self) -> State:
        """Of the group. A call, so that no type checker takes it for what it was a moment ago."""
        return self.group.state

    def life(self) -> Life:
        """The generation that lives."""
        assert self.group.life is not None
        return self.group.life

    def prober(self) -> Prober:
        """Who judges its processes."""
        assert self.group.nurse is not None
        return self.group.nurse.prober

    def _hear(self) -> None:
        if not self.heard or self.heard[-1] is not self.group.state:
            self.heard.append(self.group.state)

    @asynccontextmanager
    async def alive(self, row: Row | None = None, *, wanted: bool = True) -> AsyncIterator[None]:
        """The group's task runs within; where it had anything to do at once, that is done."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.group.run, row, wanted)
            await wait_all_tasks_blocked()
            yield
            nursery.cancel_scope.cancel()

    async def tell(self, event: Event, reason: str = "") -> None:
        """Post it, and let everything follow that needs no time."""
        self.group.post(event, reason=reason)
        await wait_all_tasks_blocked()

    async def happen(self, what: Callable[..., object], *arguments: Any) -> None:
        what(*arguments)
        await wait_all_tasks_blocked()

    async def pass_time(self, seconds: float) -> None:
        await trio.sleep(seconds)
        await wait_all_tasks_blocked()

    async def lose(self, role: str) -> None:
        """A server of the group dies."""
        assert self.kind.report is not None
        self.kind.report(role, ServerState.LOST)
        await wait_all_tasks_blocked()

    def next_keepers(self) -> Bench:
        """The bench as the next keeper has it: the same warden, and nothing that was in memory."""
        return Bench(self.slot, self.warden.next_keepers(), FakeKind(), self.spec)


def jumping(test: Callable[P, Awaitable[None]]) -> Callable[P, None]:
    """A test whose clock jumps to the next deadline when all tasks wait. (pytest-trio's `autojump_clock` would have to be
    named among the arguments of each.)"""

    @functools.wraps(test)
    def run(*arguments: P.args, **named: P.kwargs) -> None:
        trio.run(functools.partial(test, *arguments, **named), clock=MockClock(autojump_threshold=0))

    return run


def prepare(monkeypatch: pytest.MonkeyPatch) -> None:
    """What would leave the clock's control: threads run inline, monotonic time is trio's, and the port belongs
    to the generation that asks."""

    async def inline(function: Callable[[], object], *arguments: object, **_: object) -> object:
        await trio.lowlevel.checkpoint()
        return function(*arguments)

    monkeypatch.setattr(trio.to_thread, "run_sync", inline)
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)  # takes milliseconds, and no test here pulls a plug
    clock = types.SimpleNamespace(time=time.time, monotonic=trio.current_time)
    monkeypatch.setattr("supervisor.group.time", clock)
    monkeypatch.setattr("supervisor.group.random", types.SimpleNamespace(random=lambda: 0.0))
    monkeypatch.setattr(ports, "owned_by", lambda port, pids: Ownership(Owner.OURS, next(iter(pids), None)))
