"""A plan before a start: promised while it lasts, kept over deaths, given back; with a machine that the test makes up."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from attrs import evolve

from supervisor import budgets, fitting, planning
from supervisor.contract import EngineSpec, GroupSpec, LaunchSpec
from supervisor.devices import reservations
from supervisor.devices.promises import HOST, Grant
from supervisor.devices.shape import Device, Figure, HostMemory, Survey
from supervisor.errors import DoesNotFitError, EngineStartError, LockTimeoutError
from supervisor.kinds import Planned
from supervisor.planning import Ledger
from tests.support import ROOT

GIB = 1 << 30
MIB = 1 << 20
SPEC = GroupSpec("chat", "fake", (LaunchSpec("chat", "m", "/m.gguf", 0, 1),), "pin")
FIXED = GroupSpec("chat", "fake", (LaunchSpec("chat", "m", "/m.gguf", 2048, 1),), "pin")
"""Nothing of it is left to the memory there is."""


def machine(free: int = 8 * GIB, total: int = 16 * GIB) -> Survey:
    host = HostMemory(Figure(total, "test"), Figure(free, "test"), "test", Figure(free, "test"))
    return Survey((Device("GPU-1", "0", "a card", 0, Figure(total, "test"), Figure(free, "test")),), host)


class PlanningKind:
    """Wants so much, and says with what context it starts."""

    def __init__(self, need: int = GIB) -> None:
        self.need, self.asked = need, 0
        self.began, self.hold = threading.Event(), threading.Event()
        self.hold.set()

    def plan(self, spec: GroupSpec, survey: Survey) -> Planned:
        self.asked += 1
        self.began.set()
        self.hold.wait()
        free = survey.host.available.bytes
        assert free is not None
        if self.need > free:
            raise DoesNotFitError(f"chat/chat does not fit: {self.need} of {free}")
        launches = tuple(evolve(one, context=1024) for one in spec.launches)
        return Planned(
            evolve(spec, launches=launches),
            {HOST: self.need, "GPU-1": 0},
            {"chat": {"binds": "the test", "ledger": []}},
        )


@pytest.fixture(autouse=True)
def book(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A book of the test's own, and a machine that nobody has to ask."""
    folder = tmp_path / "book"
    monkeypatch.setenv(reservations.VARIABLE, str(folder))
    monkeypatch.setattr("supervisor.devices.survey.survey", machine)
    monkeypatch.setattr(planning, "_leaving", {})
    return folder


def promised(book: Path) -> dict[str, int]:
    with reservations.planning(book) as open_book:
        return {one.group: one.of(HOST) for one in open_book.live().values()}


def decide(ledger: Ledger, kind: Any, tmp_path: Path, spec: GroupSpec = SPEC) -> GroupSpec:
    return trio.run(ledger.plan, spec, kind, tmp_path / "generation.lock")


def test_what_is_planned_is_promised_and_given_back(tmp_path: Path, book: Path) -> None:
    ledger = Ledger(tmp_path, "chat")
    done = decide(ledger, PlanningKind(), tmp_path)
    assert done.launches[0].context == 1024
    assert promised(book) == {"chat": GIB}
    assert ledger.as_run(SPEC.launches[0]).context == 1024
    assert ledger.memory("chat")["binds"] == "the test"
    ledger.release()
    assert promised(book) == {}
    assert ledger.as_run(SPEC.launches[0]).context == 0


def test_what_starts_again_takes_the_plan_it_had(tmp_path: Path, book: Path) -> None:
    ledger, kind = Ledger(tmp_path, "chat"), PlanningKind()
    first = decide(ledger, kind, tmp_path)
    assert decide(ledger, kind, tmp_path) == first
    assert kind.asked == 1, "a restart waits for no driver"
    decide(ledger, kind, tmp_path, evolve(SPEC, pin="another"))
    assert kind.asked == 2
    assert promised(book) == {"chat": GIB}


def test_a_second_one_plans_in_what_the_first_was_promised_not(tmp_path: Path, book: Path) -> None:
    """vllm#55827: both would see all of it free, for nothing is loaded yet."""
    one, other = Ledger(tmp_path / "a", "chat"), Ledger(tmp_path / "b", "chat")
    decide(one, PlanningKind(5 * GIB), tmp_path)
    with pytest.raises(DoesNotFitError, match=str(3 * GIB)):
        decide(other, PlanningKind(5 * GIB), tmp_path)
    one.release()
    decide(other, PlanningKind(5 * GIB), tmp_path)


def test_settled_means_that_the_device_says_it(tmp_path: Path, book: Path) -> None:
    ledger = Ledger(tmp_path, "chat")
    decide(ledger, PlanningKind(5 * GIB), tmp_path)
    trio.run(ledger.settle, tmp_path / "generation.lock")
    with reservations.planning(book) as open_book:
        assert [one.settled for one in open_book.live().values()] == [True]
    # 8 GiB are still said to be free: of 16 in all 5 are promised, so it is 8 and not 3.
    other = Ledger(tmp_path / "b", "chat")
    decide(other, PlanningKind(8 * GIB), tmp_path)
    ledger.release()
    other.release()
    assert promised(book) == {}


def test_a_stop_does_not_wait_for_a_plan(tmp_path: Path, book: Path) -> None:
    kind, ledger = PlanningKind(), Ledger(tmp_path, "chat")
    kind.hold.clear()

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stop)
            with pytest.raises(EngineStartError):
                await ledger.plan(SPEC, kind, tmp_path / "generation.lock")  # type: ignore[arg-type]

    async def stop() -> None:
        await trio.to_thread.run_sync(kind.began.wait)
        ledger.leaves()

    trio.run(main)
    kind.hold.set()  # only now does the thread come to its promise
    ledger.release()
    assert promised(book) == {}, "the book is free again when the thread is done, and nothing is in it"


def test_a_refusal_waits_for_what_is_being_stopped_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ollama#11997: its memory is about to be free; never longer than that takes."""
    leaving, ledger = Ledger(tmp_path, "old"), Ledger(tmp_path, "chat")
    leaving.leaves()
    free = [GIB]
    monkeypatch.setattr("supervisor.devices.survey.survey", lambda: machine(free[0]))

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(gone)
            await ledger.plan(SPEC, PlanningKind(5 * GIB), tmp_path / "generation.lock")  # type: ignore[arg-type]

    async def gone() -> None:
        await trio.sleep(0.3)
        free[0] = 8 * GIB
        leaving.release()

    trio.run(main)
    ledger.release()


BALLAST = """
import signal, sys, time
hold = bytearray(int(sys.argv[1]) << 20)
hold[::4096] = b"x" * len(hold[::4096])
ended = []
signal.signal(signal.SIGTERM, lambda *_: ended.append(1))
print("full", flush=True)
while not ended:
    signal.pause()
time.sleep(float(sys.argv[2]))
"""


@pytest.mark.process
@pytest.mark.parametrize("takes", [0.5, pytest.param(5.0, marks=pytest.mark.long)])
@pytest.mark.parametrize("spec", [SPEC, FIXED], ids=["auto", "numbers"])
def test_a_successor_plans_with_what_its_predecessor_gave_back__lilbee_547_handoff(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spec: GroupSpec, takes: float
) -> None:
    """It takes its time to drop 400 MB after SIGTERM. The machine has 1 GiB, and free is what the ballast's resident pages
    leave: absolute, and read anew. What is decided by the memory there is ("auto") is not decided before that is all there."""
    child = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", BALLAST, "400", str(takes)], stdout=subprocess.PIPE, cwd=ROOT
    )
    leaving, ledger, kind = Ledger(tmp_path, "old"), Ledger(tmp_path, "chat"), PlanningKind(GIB)

    def free() -> int:
        try:
            words = Path(f"/proc/{child.pid}/statm").read_text(encoding="ascii").split()
        except OSError:
            return GIB
        return GIB - int(words[1]) * 4096 if child.poll() is None else GIB

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(gone)
            await ledger.plan(spec, kind, tmp_path / "generation.lock")  # type: ignore[arg-type]

    async def gone() -> None:
        await trio.to_thread.run_sync(child.wait)
        leaving.release()

    try:
        assert child.stdout is not None
        child.stdout.readline()
        assert free() < GIB - 400 * MIB
        monkeypatch.setattr("supervisor.devices.survey.survey", lambda: machine(free(), 4 * GIB))
        leaving.leaves()
        child.send_signal(signal.SIGTERM)
        before = time.monotonic()
        trio.run(main)
        assert time.monotonic() - before >= takes * 0.9
        assert kind.asked == 1 or spec is FIXED
    finally:
        child.kill()
        child.wait()
        if child.stdout is not None:
            child.stdout.close()
        ledger.release()


def test_what_is_to_stop_when_it_has_answered_is_waited_for_too(tmp_path: Path) -> None:
    """A group that drains has not begun to stop, and its memory is as good as free."""
    draining, ledger = Ledger(tmp_path, "old"), Ledger(tmp_path, "chat")
    draining.is_to_leave(30.0)
    free = [GIB]

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(gone)
            await ledger.plan(FIXED, PlanningKind(5 * GIB), tmp_path / "generation.lock")  # type: ignore[arg-type]

    async def gone() -> None:
        await trio.sleep(budgets.MEMORY_SETTLE + 0.3)
        free[0] = 8 * GIB
        draining.release()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("supervisor.devices.survey.survey", lambda: machine(free[0]))
        trio.run(main)
    ledger.release()


def test_what_is_free_already_is_not_waited_for__ollama_11997(tmp_path: Path) -> None:
    """The predecessor crashed before anybody looked, or another one is on its way out: there is no difference to be seen, and
    none is looked for."""
    leaving, ledger, kind = Ledger(tmp_path, "old"), Ledger(tmp_path, "chat"), PlanningKind(GIB)
    leaving.leaves()
    decide(ledger, kind, tmp_path, FIXED)
    assert kind.asked == 1
    ledger.release()


def test_other_programs_noise_neither_stops_nor_spoils_it__ollama_9926(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Free wobbles by 600 MB about what is wanted. It ends with the first look that is enough, or with the last one."""
    ledger, kind = Ledger(tmp_path, "chat"), PlanningKind(4 * GIB)
    wobble = iter([-600, 600] * 100)
    monkeypatch.setattr("supervisor.devices.survey.survey", lambda: machine(4 * GIB + next(wobble) * MIB))
    decide(ledger, kind, tmp_path)
    assert kind.asked == 2
    ledger.release()
    low = iter([-1200, -100, -600] * 100)
    monkeypatch.setattr("supervisor.devices.survey.survey", lambda: machine(4 * GIB + next(low) * MIB))
    began = time.monotonic()
    with pytest.raises(DoesNotFitError):
        decide(ledger, kind, tmp_path)
    assert time.monotonic() - began < 15


def test_a_kind_that_does_not_plan_is_started_as_it_is(tmp_path: Path, book: Path) -> None:
    ledger = Ledger(tmp_path, "chat")
    assert decide(ledger, object(), tmp_path) is SPEC
    assert ledger.planned is None
    assert not book.exists()
    assert ledger.memory("chat")["ledger"] is None


def test_what_an_earlier_keeper_decided_is_known(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path, "chat")
    ledger.take_up({"chat": (2048, 3)})
    found = ledger.as_run(SPEC.launches[0])
    assert (found.context, found.sequences) == (2048, 3)


def test_promises_are_taken_off_the_survey(tmp_path: Path, book: Path) -> None:
    with reservations.planning(book) as open_book:
        promise = open_book.reserve(tmp_path, "chat", [Grant("GPU-1", 3 * GIB), Grant(HOST, GIB)])
        seen = fitting.granted(machine(), open_book.live().values())
    assert seen.devices[0].free.bytes == 5 * GIB
    assert seen.host.available.bytes == 7 * GIB
    assert "promised to chat" in seen.host.available.source
    unified = evolve(machine(), devices=tuple(evolve(one, unified=True) for one in machine().devices))
    with reservations.planning(book) as open_book:
        seen = fitting.granted(unified, open_book.live().values())
    assert seen.devices[0].free.bytes == 7 * GIB, "the same bytes, counted once"
    promise.release()


def test_a_warning_stays_for_the_life_of_the_generation(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path, "chat")
    bad = {"held": None, "compared": [], "asked": [], "warnings": ["too much"]}
    assert ledger.note({"chat": bad})
    assert not ledger.note({"chat": bad}), "no news"
    ledger.note({"chat": {**bad, "warnings": []}})
    assert ledger.memory("chat")["warnings"] == ["too much"]


def test_and_after_that_until_a_start_that_is_within_the_band(tmp_path: Path) -> None:
    """What a crash takes with it is not mended by it. Nobody's having looked yet is no sign of anything."""
    ledger = Ledger(tmp_path, "chat")

    def look(verdict: str, *warnings: str) -> list[str]:
        compared = [{"what": "system memory of its own", "verdict": verdict}]
        ledger.note({"chat": {"held": None, "compared": compared, "asked": [], "warnings": list(warnings)}})
        return [*ledger.memory("chat")["warnings"]]

    look("over", "too much")
    for _ in range(2):
        ledger.forget()
        assert ledger.memory("chat")["warnings"] == ["at the start before: too much"]
    assert look("unknown") == ["at the start before: too much"], "no evidence"
    assert look("over", "too much") == ["too much"]
    ledger.forget()
    assert look("under") == []


def test_no_more_context_is_told_than_the_server_serves(tmp_path: Path) -> None:
    ledger, launch = Ledger(tmp_path, "chat"), evolve(SPEC.launches[0], context=8192)
    asked = {"what": "context per sequence", "requested": 8192, "effective": None}
    facts: dict[str, Any] = {"held": None, "compared": [], "asked": [asked], "warnings": []}
    ledger.note({"chat": facts})
    assert ledger.as_run(launch).context == 8192, "nobody knows better"
    ledger.note({"chat": {**facts, "asked": [{**asked, "effective": 2048}]}})
    assert ledger.as_run(launch).context == 2048


def test_groups_that_wait_for_their_turn_hold_no_threads(tmp_path: Path) -> None:
    """trio lends 40; a keeper that has none left writes no record and answers nobody."""
    kind = PlanningKind(1)
    kind.hold.clear()
    ledgers = [Ledger(tmp_path, f"group {number}") for number in range(50)]

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            for ledger in ledgers:
                nursery.start_soon(ledger.plan, SPEC, kind, tmp_path / "generation.lock")  # type: ignore[arg-type]
            await trio.testing.wait_all_tasks_blocked(0.05)
            assert trio.to_thread.current_default_thread_limiter().borrowed_tokens == 1
            kind.hold.set()

    trio.run(main)
    assert kind.asked == 50
    for ledger in ledgers:
        ledger.release()


def test_a_group_that_wants_no_plan_is_started_as_it_is_written_and_never_refused(tmp_path: Path) -> None:
    kind: Any = PlanningKind(500 * GIB)
    ledger, spec = Ledger(tmp_path, "chat"), evolve(SPEC, is_planned=False)
    assert trio.run(ledger.plan, spec, kind, tmp_path / "generation.lock") == spec
    assert ledger.planned is None
    fitting.refuse_what_does_not_fit(EngineSpec((spec,)), lambda _: kind)
    with pytest.raises(DoesNotFitError):
        trio.run(ledger.plan, SPEC, kind, tmp_path / "generation.lock")


def test_a_book_that_somebody_keeps_shut_keeps_nobody_from_starting(
    tmp_path: Path, book: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """He may be stopped in the middle of a plan, and an engine that could serve must not wait for that."""
    monkeypatch.setattr("supervisor.devices.reservations._take", _shut)
    ledger = Ledger(tmp_path, "chat")
    assert decide(ledger, PlanningKind(), tmp_path).launches[0].context == 1024
    assert ledger.trouble == "it is shut"


def _shut(*_: object) -> None:
    raise LockTimeoutError("it is shut")


def test_a_driver_that_says_nothing_is_no_machine_without_cards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It hangs, or its asker was killed: nothing is refused by that, nothing promised, and nothing decided."""
    monkeypatch.setattr("supervisor.devices.survey.survey", lambda: evolve(machine(), incomplete=True, reason="silent"))
    kind: Any = PlanningKind(500 * GIB)
    spec = evolve(SPEC, launches=(evolve(SPEC.launches[0], context=2048),))
    ledger = Ledger(tmp_path, "chat")
    assert decide(ledger, kind, tmp_path, spec) == spec
    assert (kind.asked, ledger.trouble) == (0, "silent")
    fitting.refuse_what_does_not_fit(EngineSpec((spec,)), lambda _: kind)
    with pytest.raises(EngineStartError, match="auto"):
        decide(Ledger(tmp_path, "other"), kind, tmp_path, SPEC)
    monkeypatch.setattr("supervisor.devices.reservations._take", _shut)
    assert decide(Ledger(tmp_path, "third"), kind, tmp_path, spec) == spec, "nor where the book is shut"
    assert kind.asked == 0


def test_system_memory_that_cannot_be_read_is_not_none_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing fits into 0 bytes: everything would be refused (exit status 6) where /proc/meminfo is not to be read."""
    seen = machine()
    blind = evolve(seen, host=evolve(seen.host, available=Figure.unknown("not to be read")))
    monkeypatch.setattr("supervisor.devices.survey.survey", lambda: blind)
    kind: Any = PlanningKind(GIB)
    ledger = Ledger(tmp_path, "chat")
    assert decide(ledger, kind, tmp_path, FIXED) == FIXED
    assert (kind.asked, ledger.trouble) == (0, "system memory: not to be read")
    fitting.refuse_what_does_not_fit(EngineSpec((FIXED,)), lambda _: kind)
