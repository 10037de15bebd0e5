"""The keeper: owner of a slot's policy. Crash-only: it takes up what the warden reports, and may die at any moment.

Started by the warden by absolute path as `python -P keeper.py SLOT [--console]`, with the link on descriptor 3 and
the control listener on 4. It holds nothing that it cannot get back: before it acts, what it means is in a note.

Over 300 lines: what is done about the slot is in modules of one idea each, and the state that they share has one owner.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import trio

from supervisor import (
    acts,
    birth,
    budgets,
    draining,
    hold_watch,
    holding,
    kinds,
    last_out,
    locks,
    logfiles,
    notifying,
    portrait,
    records,
    service,
    standby,
)
from supervisor._version import __version__
from supervisor.console import Console
from supervisor.contract import EngineSpec, GatewaySpec, GroupSpec, LaunchSpec, Lifetime, State, signal_name
from supervisor.control_server import serve
from supervisor.errors import LinkError, QueenrightError, RecordError
from supervisor.gateway import listening
from supervisor.gateway.upkeep import Gateway
from supervisor.narration import Narrator
from supervisor.procs import Procs
from supervisor.recoveries import Recoveries
from supervisor.slot import Slot
from supervisor.slot_watch import SlotWatch
from supervisor.tree import Tree

if TYPE_CHECKING:
    import socket

KEEPER_VERSION = 1
FILES = 65536
"""Descriptors at most: each held request of a client is a connection here."""


class Keeper:
    """The state of one slot while this process keeps it."""

    acts = acts.ACTS

    def __init__(
        self, slot: Slot, console: Console, listener: socket.socket | None = None, watchdog_s: float | None = None
    ) -> None:
        """`listener` is the warden's for the gateway, where it has one; `watchdog_s` the service manager's, where there is
        one to tell things."""
        self.slot, self.console = slot, console
        self.procs = Procs()
        self.since = time.time()
        self.spec: EngineSpec | None = None
        self.tree: Tree | None = None
        self.stopping = ""
        self.draining = ""
        """Who waits for a quiet moment to stop the engine."""
        self.warm: set[str] = set()
        """Configurations that want the engine to outlive its members."""
        self._warden_signalled = False
        self._watchdog_s = watchdog_s
        self.change = trio.Event()
        """Set at the next change, and replaced."""
        self._stop_asked = trio.Event()
        self._is_leaving = False
        self._narrator = Narrator(slot, console)
        self.recoveries = Recoveries()
        self._slot_watch = SlotWatch(slot)
        self.gateway = Gateway(self, listener)

    # --- what control serves ----------------------------------------------------------------------------------------

    def snapshot(self) -> dict[str, Any]:
        """The whole state, as `status --json` shows it."""
        return portrait.snapshot(self)

    def engine(self) -> dict[str, Any]:
        """The part of it that a service manager is told: what the engine does."""
        return portrait.engine(self)

    def brief(self) -> dict[str, Any]:
        """What a process that comes to the engine decides by."""
        return portrait.brief(self)

    @property
    def state(self) -> State:
        """One word for the slot. Groups that are down while nobody stops them are about to start."""
        if self.stopping:
            return State.STOPPING
        found = self.tree.state if self.tree else State.DOWN
        return State.STARTING if found is State.DOWN else found

    def is_settled(self, groups: list[str]) -> bool:
        """Whether a caller who waits for these groups has waited enough."""
        return bool(self.stopping) or (self.tree is not None and self.tree.is_settled(groups))

    @property
    def is_at_rest(self) -> bool:
        """Whether nothing of the engine runs any more."""
        return self.tree is not None and self.tree.is_at_rest

    async def changed(self) -> None:
        """Wait for the next change."""
        await self.change.wait()

    async def act(self, op: str, question: dict[str, Any]) -> None:
        """Do what the control socket asks for; returns when the warden has it, so that our death would not undo it.
        Raises QueenrightError for what cannot be done; nothing is changed then."""
        self.acts[op](self, question)
        self.tell()
        await self.procs.settle()
        if self._is_leaving:  # only now, so that there is somebody to give the answer
            self._stop_asked.set()

    # --- changes ----------------------------------------------------------------------------------------------------

    def tell(self, name: str | None = None) -> None:
        """Something changed, of that group alone or of any: wake those who follow. What an operator would want to hear of
        it is said a little later."""
        self.change.set()
        self.change = trio.Event()
        self._narrator.see_gateway(self.gateway.describe())
        if self.tree is not None:
            groups = self.tree.groups
            names = groups if name is None else groups.keys() & {name}  # to look at all of them costs their square
            for each in names:
                self.recoveries.see(each, groups[each].state, time.monotonic())
                self._narrator.see_fetch(each, groups[each].fetch.describe())
                nurse = groups[each].nurse
                self._narrator.see_loads(each, nurse.loads.long if nurse else {})
            self._narrator.see((each, groups[each].state, groups[each].reason) for each in names)

    def _note_end(self, facts: dict[str, Any]) -> None:
        self.recoveries.note_end(facts)
        self._narrator.note_end(facts)

    def begin_stop(self, why: str, *, now: bool = False) -> None:
        """The step into `stopping`. A second signal to the warden, or to the keeper (`now`), ends it without grace;
        the same signal to both, as systemd sends it to a whole unit, is one."""
        if not self.stopping:
            self.stopping = why
            self.procs.note_slot("intent", {"stop": why})
            self._stop_asked.set()
            self.tell()
        elif now and self.tree is not None:
            self.tree.kill()

    def drains(self, who: str) -> None:
        """Somebody waits for a quiet moment to stop the engine; "" when that is over."""
        self.draining = who
        self.tell()

    def in_flight(self) -> draining.InFlight:
        """What a stop that drains has to wait for: nothing once something else stops the engine."""
        if self.stopping:
            return {}
        return self.tree.in_flight if self.tree else {"any group": None}

    def leave(self) -> None:
        """Make room for the next keeper once that is answered; the engine goes on."""
        self._is_leaving = True

    # --- tasks ------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Keep the slot until it is stopped or the warden is gone."""
        async with trio.open_nursery() as nursery:
            await nursery.start(self.procs.run)
            nursery.start_soon(serve, self)
            nursery.start_soon(self._obey_signals)
            nursery.start_soon(self._obey_own_signals)
            nursery.start_soon(self._slot_watch.run, partial(self.begin_stop, "the slot directory was removed"))
            nursery.start_soon(self._narrator.run)
            lock = await locks.acquire_async(self.slot.keeper_lock, timeout=budgets.HANDOFF_WAIT)
            records.clear_temporaries(self.slot.path)
            records.clear_temporaries(self.slot.groups)
            birth.clear_unborn(self.slot, self.procs.rows)
            self.spec = await self._contract()
            self.warm = set(self.procs.notes.get("warm") or [])
            held = hold.describe() if (hold := holding.find(self.slot)) else ""
            self.tree = Tree(
                self.spec, self.slot, kinds.find, self.procs,
                tell=self.tell, tell_end=self._note_end, changed=self.changed,
            )  # fmt: skip
            if self.procs.notes.get("intent"):
                self.begin_stop(self.procs.notes["intent"]["stop"])
            held_groups = {name: hold.describe() for name, hold in holding.on_groups(self.slot).items()}
            nursery.start_soon(self.tree.run, self.stopping, held, held_groups)
            nursery.start_soon(hold_watch.run, self)
            if self.spec.lifetime is Lifetime.MEMBERS:
                leave = partial(self.begin_stop, "the last member left")
                nursery.start_soon(last_out.watch, self.slot, lambda: bool(self.warm), leave, self._say_left_warm)
            nursery.start_soon(self._cap_logs)
            if self._watchdog_s is not None:
                nursery.start_soon(notifying.run, self, self._watchdog_s)
            nursery.start_soon(self.gateway.run)
            await trio.to_thread.run_sync(self.write_record)
            await self._stop_asked.wait()
            if self.stopping:
                await self._tear_down()
            else:
                await self.gateway.close(budgets.GATEWAY_DRAIN)
                if refused := await self.procs.replace():
                    logfiles.complain(f"the warden will count this as a crash: {refused}")
            lock.release()
            nursery.cancel_scope.cancel()

    async def _contract(self) -> EngineSpec:
        """From the warden's notes, or, for the first keeper of a slot, as the builder left it. Noted before use."""
        if (noted := self.procs.notes.get("contract")) is not None:
            return records.structure(noted, EngineSpec)
        path = self.slot.contract_record
        spec = await trio.to_thread.run_sync(lambda: records.read(path, EngineSpec, version=records.CONTRACT_VERSION))
        if spec is None:
            what = f"{path} is not there, so nothing says what to run"
            raise RecordError(what, "`queenright stop`, and start the engine again")
        self.procs.note_slot("contract", records.unstructure(spec))
        if spec.keep_warm:
            self.procs.note_slot("warm", [spec.root])
        return spec

    def write_record(self) -> None:
        """keeper.json, for readers. It blocks."""
        facts = {
            "pid": os.getpid(),
            "version": __version__,
            "since": self.since,
            "control": str(self.slot.control_socket),
            "gateway": self.gateway.url or None,
            "warden_pid": self.procs.hello.pid,
            "warden_ticks": self.procs.hello.ticks,
        }
        try:
            records.write(self.slot.keeper_record, facts, version=KEEPER_VERSION)
        except QueenrightError as error:
            logfiles.complain(str(error))  # it is for readers only

    async def _obey_signals(self) -> None:
        async for number in self.procs.signals:
            self.begin_stop(signal_name(number), now=self._warden_signalled)
            self._warden_signalled = True

    async def _obey_own_signals(self) -> None:
        """SIGTERM to the keeper itself means stop, as to the warden: only what cannot be caught is a crash."""
        again = False
        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as numbers:
            async for number in numbers:
                self.begin_stop(f"{signal_name(number)} to the keeper", now=again)
                again = True

    def _say_left_warm(self) -> None:
        self._narrator.say_left_warm(list(self.tree.groups) if self.tree else [], sorted(self.warm))

    async def _cap_logs(self) -> None:
        def cap_all() -> None:
            for path in [*self.slot.logs.glob("*.log"), self.slot.events]:
                logfiles.cap(path)

        while True:
            await trio.to_thread.run_sync(cap_all)
            await trio.sleep(budgets.LOG_CHECK)

    async def _tear_down(self) -> None:
        """Stop everything, leave nothing of ours behind, and have the warden leave after us."""
        assert self.tree is not None  # noqa: S101 - there is one before anything can ask to stop
        began = time.monotonic()
        clean = await self.tree.stop(self.stopping)
        await self.gateway.close(budgets.GATEWAY_MOVE)  # whoever is left has been told by now why there is no answer
        groups = self.tree.groups
        self._narrator.say_stopped(
            self.stopping,
            list(groups),
            time.monotonic() - began,
            clean=clean,
            killed=[name for name, group in groups.items() if group.was_killed],
            swept=sum(group.swept for group in groups.values()),
        )
        for path in (
            self.slot.keeper_record,
            self.slot.contract_record,
            *map(self.slot.group_record, self.tree.groups),
        ):
            with suppress(OSError):  # a slot that can only be read is no reason to begin the stop anew
                path.unlink()
        refused = await self.procs.quit()
        if refused:
            raise LinkError(f"the warden does not end the slot: {refused}")


def main() -> int:
    """Exit status: 0 stopped, 1 an error that the warden will answer with another keeper."""
    if sys.argv[1] == standby.WORD:
        records.prepare(EngineSpec, GroupSpec, LaunchSpec, GatewaySpec)  # of a contract, which is still being made
        sys.argv[1:] = standby.wait(int(sys.argv[2]))
    listener = listening.inherited()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files(soft, hard), hard))
    slot = Slot(Path(sys.argv[1]))
    keeper = Keeper(slot, Console("--console" in sys.argv[2:]), listener, service.watchdog_of(sys.argv[2:]))
    status = 0
    try:
        trio.run(keeper.run)
    except* QueenrightError as group:
        for error in leaves(group):
            logfiles.complain(f"keeper: {error}")
        status = 1
    keeper.console.drain()
    return status


def files(soft: int, hard: int) -> int:
    """The soft limit of descriptors to ask for: FILES where it is allowed, and never less than there is. That one limit
    has no end is said by a negative number (getrlimit(2): RLIM_INFINITY)."""
    endless = resource.RLIM_INFINITY
    return soft if soft == endless else max(soft, FILES if hard == endless else min(hard, FILES))


def leaves(group: BaseExceptionGroup[BaseException]) -> list[BaseException]:
    """The errors of a group, however deep the nurseries were."""
    return [
        leaf
        for error in group.exceptions
        for leaf in (leaves(error) if isinstance(error, BaseExceptionGroup) else [error])
    ]


if __name__ == "__main__":
    sys.exit(main())
