"""Control faults of the soak: for each invariant something is planted into a real run that it must find, and nothing else does.

One run on fakes, a control a round, through the whole path: looking, gathering, judging. So taking an invariant out makes the
control of its name fail: without it the round would have been green. An invariant without a control is refused when this module
is collected.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from chaos.asking import Asked
from chaos.soak import faults, invariants, soak
from chaos.soak.soak import Soak
from chaos.soak.verdicts import Verdict, worst
from supervisor import locks, membership, resolving
from supervisor.contract import GENERATION_VARIABLE
from supervisor.devices import reservations
from supervisor.devices.promises import HOST, Grant
from supervisor.slot import Slot
from tests.chaos import test_faults
from tests.engine.kit import Launch
from tests.engine.place import Place
from tests.support import free_port, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

    from chaos.soak.seen import Round
    from chaos.soak.soak import Told
    from chaos.soak.verdicts import Judgement
    from tests.engine.kit import Kit

pytestmark = [pytest.mark.process, pytest.mark.long, pytest.mark.timeout(900)]

PATIENCE = 30.0
FOREIGN = 5
"""Requests of nobody: one may be under way and one just over at each of two readings."""
LEAK = {"leak_every": 8, "leak_memory": 1024, "leak_descriptors": 1, "leak_threads": 1}
"""Enough to be seen in a dozen short rounds, and little enough that as many long ones leave descriptors over: a server
without any would be another fault than this one, and is found as such (requests are then served twice)."""


class Bench:
    """A run, and what its controls need to know of it. Its first round has the only fault, so that there is a generation that
    is over; then a round for each control."""

    def __init__(self, place: Place, served: Path) -> None:
        self.place, self.served = place, served
        groups = resolving.resolve(resolving.load(place.config)).groups
        options: dict[str, Any] = {"tell": self.told, "plant": self.plant, "receipts": [served]}
        self.soak = Soak(place.slot, place.config, groups, streams=3, every=1, names=["proxy"], **options)
        self.soak.before_a_look = self.before_a_look
        self.names = list(CONTROLS)
        self.seen: dict[str, Round] = {}
        self.found: dict[str, list[Judgement]] = {}
        self.change: Callable[[Round], Round] = lambda seen: seen
        self.over = ""
        """A generation that is over, once there is one."""
        self._before: set[str] = set()
        self._stack = ExitStack()

    def generations(self) -> set[str]:
        return {generation for _, generation in self.place.slot.generations()}

    @property
    def visitor(self) -> str:
        """The request of this round's one-shot front end, which is over when the round is looked at."""
        return f"visitor-{len(self.soak.rounds) + 1}"

    def before_a_look(self) -> None:
        if self.over:
            self._stack.enter_context(CONTROLS[self.names[0]](self))

    def plant(self, seen: Round) -> Round:
        changed = self.change(seen)
        if self.over and self.names:
            self.seen[self.names[0]] = changed
        return changed

    def told(self, told: Told) -> None:
        self._stack.close()
        if not self.over:
            self.over = next(iter(self._before - self.generations()))
        else:
            self.found[self.names.pop(0)] = list(told.judgements)

    def run(self) -> None:
        visit, leave = self.soak.load.visit, self.soak.load.leave

        def visited(number: int) -> None:
            self._before = self._before or self.generations()
            visit(number)

        with pytest.MonkeyPatch.context() as patch, ExitStack() as at_end:

            def left() -> None:
                leave()
                at_end.enter_context(a_process(self.over))
                at_end.enter_context(a_promise(self))

            patch.setattr(soak, "SETTLE_LIMIT", 3.0)
            patch.setattr(invariants, "ROUNDS_LEAST", 8)
            patch.setattr(faults, "schedule", lambda *_: itertools.chain(["proxy"], itertools.repeat(None)))
            patch.setattr(self.soak.load, "visit", visited)
            patch.setattr(self.soak.load, "leave", left)
            at_end.callback(self._stack.close)
            self.soak.run(1 + len(CONTROLS))
        self.found["end"] = self.soak.ends


@contextmanager
def a_process(mark: str) -> Iterator[None]:
    """It carries the mark of a generation, and ends with its standard input."""
    environment = {**os.environ, GENERATION_VARIABLE: mark}
    argv = [sys.executable, "-S", "-c", "import sys; print(flush=True); sys.stdin.read()"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as started:
        assert started.stdout is not None
        started.stdout.readline()  # it is there, with its environment
        try:
            yield
        finally:
            started.communicate()


def a_duplicate_server(bench: Bench) -> AbstractContextManager[None]:
    """As a supervisor leaves it that starts a server twice."""
    return a_process(next(iter(bench.generations())))


def an_orphan(bench: Bench) -> AbstractContextManager[None]:
    """Of a generation that is over."""
    return a_process(bench.over)


@contextmanager
def a_zombie(bench: Bench) -> Iterator[None]:
    """Below the warden, and nobody reaps it."""
    server = bench.place.spawns("embed")[-1]["pid"]
    os.kill(server, signal.SIGUSR1)
    wait_until(bench.soak._gatherer.zombies, within=PATIENCE, what="the child is dead")
    yield
    os.kill(server, signal.SIGUSR2)


@contextmanager
def a_stuck_lock(bench: Bench) -> Iterator[None]:
    """A membership lock of somebody who is no front end."""
    with membership.join(bench.place.slot, program="stuck"):
        yield


@contextmanager
def a_duplicate_engine(bench: Bench) -> Iterator[None]:
    """A private slot whose warden lives, for a contract that this engine serves."""
    beside = bench.place.slot.path
    other = Slot(beside.with_name(f"{beside.name}-private") / ("0" * 16))
    other.prepare()
    hold = locks.try_acquire(other.warden_lock)
    assert hold is not None
    yield
    hold.release()


@contextmanager
def a_promise(bench: Bench) -> Iterator[None]:
    """A second one, for a group that has one."""
    with reservations.planning() as book:
        promise = book.reserve(bench.place.slot.path, "chat", [Grant(HOST, 1)])
    # With the first one given up there would be one: what is planted must be too much by itself.
    with reservations.planning() as book:
        second = book.reserve(bench.place.slot.path, "chat", [Grant(HOST, 1)])
    with promise, second:
        yield


@contextmanager
def changed(bench: Bench, change: Callable[[Round], Round]) -> Iterator[None]:
    bench.change = change
    try:
        yield
    finally:
        bench.change = lambda seen: seen


def a_failed_request(bench: Bench) -> AbstractContextManager[None]:
    """A request that ended in nothing."""

    def change(seen: Round) -> Round:
        last = seen.ended[-1]._replace(outcome="failed", why="lost", text="")
        return seen._replace(ended=[*seen.ended[:-1], last])

    return changed(bench, change)


def a_late_answer(bench: Bench) -> AbstractContextManager[None]:
    """One whose first byte came an hour after it was asked."""

    def change(seen: Round) -> Round:
        late = seen.ended[-1]._replace(seconds=3600.0, first_s=3600.0)
        return seen._replace(ended=[*seen.ended[:-1], late])

    return changed(bench, change)


@contextmanager
def a_lost_request(bench: Bench) -> Iterator[None]:
    """A member said that it asks, and never said how that ended."""
    member = bench.soak.load.members[0]
    asked = Asked("lost", "chat", 0, 1.0, time.monotonic() - 600.0)
    member.said.append({"what": "asked", **asked._asdict()})
    yield
    bench.soak.load._open.pop("lost")


@contextmanager
def a_missing_receipt(bench: Bench) -> Iterator[None]:
    """A request that was answered, and no server wrote down that it did: its lines lose the id, and nothing else."""
    wanted = f'"{bench.visitor}"'.encode()
    text = bench.served.read_bytes()
    with bench.served.open("r+b") as file:
        for at in (match.start() for match in re.finditer(re.escape(wanted), text)):
            file.seek(at)
            file.write(b'"-"'.ljust(len(wanted)))
    yield


@contextmanager
def a_second_execution(bench: Bench) -> Iterator[None]:
    """A server worked on a request that another had answered."""
    line = {"id": bench.visitor, "pid": 1, "at": time.monotonic(), "tokens": None}
    with bench.served.open("a") as file:
        file.write(json.dumps(line) + "\n")
    yield


@contextmanager
def another_text(bench: Bench) -> Iterator[None]:
    """The answers are not what they were in calm."""
    controls = dict(bench.soak.load.controls)
    bench.soak.load.controls = {key: f"not {text}" for key, text in controls.items()}
    yield
    bench.soak.load.controls = controls


@contextmanager
def requests_of_nobody(bench: Bench) -> Iterator[None]:
    """The gateway counts requests that no caller of the load has asked."""
    for _ in range(FOREIGN):
        body = {"model": "embed", "input": "bees"}
        answer = httpx.post(f"{bench.soak.load.gateway.url}/v1/embeddings", json=body, timeout=60.0, trust_env=False)
        answer.raise_for_status()
    yield
    bench.soak._ledger._base["answered"] += FOREIGN


CONTROLS: dict[str, Callable[[Bench], AbstractContextManager[None]]] = {
    "engine as planned": a_duplicate_server,
    "nothing outside the records": an_orphan,
    "no zombie": a_zombie,
    "locks are members": a_stuck_lock,
    "one engine": a_duplicate_engine,
    "one promise a group": a_promise,
    "requests end well": a_failed_request,
    "within the deadline": a_late_answer,
    "no request lost": a_lost_request,
    "answers have receipts": a_missing_receipt,
    "served once": a_second_execution,
    "texts as the control": another_text,
    "ledger reconciles": requests_of_nobody,
}
"""By the invariant that must find it. What is judged at the end has its own, below."""

OF_THE_FAULT = {
    "the rest is untouched": test_faults.test_whoever_a_fault_did_not_touch_must_be_the_same_process,
    "the fault is met as it must be": test_faults.test_what_a_fault_says_of_itself_is_judged_and_a_crash_has_found_out_nothing,
}
"""What is judged of the fault itself, and its tests."""

AT_END = {
    "recovers": "test_an_engine_that_does_not_come_back_turns_the_run_red",
    "memory is flat": "test_a_leak_turns_the_run_red",
    "descriptors is flat": "test_a_leak_turns_the_run_red",
    "threads is flat": "test_a_leak_turns_the_run_red",
    "nothing is left": "test_what_is_left_at_the_end_turns_the_run_red",
    "no promise is left": "test_what_is_left_at_the_end_turns_the_run_red",
}


@contextmanager
def soaked(kit: Kit, **knobs: object) -> Iterator[tuple[Place, Path]]:
    """A place whose front ends the soak starts; everything of it carries the test's mark."""
    place = Place(kit)
    served = place.home / "served"
    known = {"served_file": served, "zombies": 1, "rate": 200, **knobs}
    launches = {"chat": (Launch("chat", knobs=known),), "embed": (Launch("embed", kit.embed, knobs=known),)}
    place.configure(launches, gateway={"listen": f"127.0.0.1:{free_port()}"})
    with pytest.MonkeyPatch.context() as patch:
        for name, value in place.environment.items():
            patch.setenv(name, value)
        try:
            yield place, served
        finally:
            place.close()


@pytest.fixture(scope="module")
def bench(kit: Kit) -> Bench:
    """The run with all controls, over."""
    with soaked(kit, **LEAK) as (place, served):
        made = Bench(place, served)
        made.run()
    return made


def broken(found: list[Judgement]) -> set[str]:
    return {one.invariant for one in found if one.verdict is not Verdict.HOLDS}


@pytest.mark.parametrize("invariant", CONTROLS)
def test_control(bench: Bench, invariant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = bench.found[invariant]
    # A process too many is also one that was not there before the round: who looks at the fault's own sees that, too.
    assert broken(found) - OF_THE_FAULT.keys() == {invariant}, [
        one for one in found if one.verdict is not Verdict.HOLDS
    ]
    assert worst(found) is Verdict.BROKEN
    monkeypatch.delitem(invariants.EACH_ROUND, invariant)
    assert worst(invariants.judge(bench.seen[invariant])) is Verdict.HOLDS, "without it nothing else would notice"


def test_a_leak_turns_the_run_red(bench: Bench) -> None:
    assert {"memory is flat", "descriptors is flat", "threads is flat"} <= broken(bench.found["end"])


def test_what_is_left_at_the_end_turns_the_run_red(bench: Bench) -> None:
    assert {"nothing is left", "no promise is left"} <= broken(bench.found["end"])


def test_everything_that_is_judged_has_a_control(bench: Bench) -> None:
    judged = {one.invariant for found in bench.found.values() for one in found}
    assert judged <= {*CONTROLS, *AT_END, *OF_THE_FAULT}


def test_an_engine_that_does_not_come_back_turns_the_run_red(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(soak, "RECOVERY_LIMIT", 0.0)
    with soaked(kit) as (place, _):
        groups = resolving.resolve(resolving.load(place.config)).groups
        run = Soak(place.slot, place.config, groups, streams=1, every=1, names=["server"])
        assert run.run(1) is Verdict.BROKEN
    assert {one.invariant for one in run.ends if one.verdict is Verdict.BROKEN} == {"recovers"}


for _wanted, _there in ((invariants.EACH_ROUND, CONTROLS), (dict.fromkeys(invariants.AT_END), AT_END)):
    if _wanted.keys() != _there.keys():
        raise LookupError(f"an invariant without a control fault, or the reverse: {_wanted.keys() ^ _there.keys()}")
if _missing := [name for name in AT_END.values() if name not in globals()]:
    raise LookupError(f"there is no {', '.join(_missing)}")
