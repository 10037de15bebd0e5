"""The prober: real processes in /proc, a scripted kind, a clock that jumps."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import signal
import subprocess
import sys
import types
from typing import TYPE_CHECKING, Any, cast

import pytest
import trio

from supervisor import budgets, identity, ports
from supervisor.health import Limits, Verdict
from supervisor.kinds import PROXY, Answer, Kind, ServerState
from supervisor.ports import Owner, Ownership
from supervisor.probing import Prober, Subject
from tests.support import wait_until
from tests.unit.group_bench import SPEC, jumping

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

    from supervisor.life import Life

pytestmark = pytest.mark.process

ROLE = SPEC.launches[0].role


class ScriptedKind:
    """Answers as it is told. `answers` gives each subject's; a callable may wait, or raise."""

    def __init__(self) -> None:
        self.answers: dict[str, Answer | Callable[[], Awaitable[Answer]]] = {}
        self.closer: Callable[[], Awaitable[str | None]] | None = None
        self.canaries: Answer | Callable[[], Awaitable[Answer]] = Answer.ANSWERED
        self.asked: list[tuple[str, str, float]] = []
        self.at_once = self.most_at_once = 0

    def times(self, question: str, subject: str) -> list[float]:
        return [at for asked, of, at in self.asked if (asked, of) == (question, subject)]

    async def probe(self, spec: object, birth: object, subject: str) -> Answer:
        self.asked.append(("probe", subject, trio.current_time()))
        return await say(self.answers.get(subject, Answer.ANSWERED))

    async def look_closer(self, spec: object, birth: object, role: str) -> str | None:
        self.asked.append(("closer", role, trio.current_time()))
        return await self.closer() if self.closer else None

    async def canary(self, spec: object, birth: object, role: str) -> Answer:
        self.asked.append(("canary", role, trio.current_time()))
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            return await say(self.canaries)
        finally:
            self.at_once -= 1


async def say(what: Answer | Callable[[], Awaitable[Answer]]) -> Answer:
    await trio.lowlevel.checkpoint()
    return await what() if callable(what) else what


async def silence() -> Any:
    await trio.sleep_forever()


async def the_same() -> str:
    return "n_decoded=3"


async def no_descriptor() -> Any:
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


class Watch:
    """A prober over one real process, which plays both proxy and server."""

    def __init__(self, pid: int, limits: Limits | None = None) -> None:
        self.kind = ScriptedKind()
        self.up = True
        self.told: list[str] = []
        self.somebody_must_go = trio.Event()
        self.changes = 0
        self.servers = {launch.role: ServerState.READY for launch in SPEC.launches}
        birth = types.SimpleNamespace(ports={ROLE: 1, PROXY: 2, "draft": 3})
        life = types.SimpleNamespace(
            pid=pid, birth=birth, servers=self.servers, family=lambda: [pid], each=lambda: iter([pid])
        )
        self.prober = Prober(
            SPEC,
            cast("Kind", self.kind),
            cast("Life", life),
            is_up=lambda: self.up,
            tell=self.tell,
            changed=self.note_change,
            limits=limits,
        )

    def tell(self, reason: str) -> None:
        self.told.append(reason)
        self.somebody_must_go.set()

    def note_change(self) -> None:
        self.changes += 1

    def verdict(self, name: str = ROLE) -> Verdict:
        return self.prober.subjects[name].judgement.verdict

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.prober.run)
            yield
            nursery.cancel_scope.cancel()


@pytest.fixture
def sleeper() -> Iterator[int]:
    """A process that sleeps."""
    process = subprocess.Popen([sys.executable, "-I", "-S", "-c", "import time; time.sleep(600)"])
    wait_until(lambda: identity.state_of(process.pid) == "S")
    yield process.pid
    process.kill()
    process.wait()


@pytest.fixture(autouse=True)
def _of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "owned_by", lambda port, pids: Ownership(Owner.OURS, next(iter(pids), None)))


@jumping
async def test_what_is_well_is_asked_once_a_second_and_nothing_else_is_asked(sleeper: int) -> None:
    watch = Watch(sleeper)
    async with watch.running():
        watch.prober.note_activity(ROLE, 0, 0)
        await trio.sleep(100.5)
    assert {question for question, _, _ in watch.kind.asked} == {"probe"}
    for subject in (PROXY, ROLE, "draft"):
        assert len(watch.kind.times("probe", subject)) == 101
    assert watch.told == []
    assert watch.verdict() is Verdict.HEALTHY


@jumping
async def test_nobody_is_asked_before_the_group_is_up_nor_while_unloaded(sleeper: int) -> None:
    watch = Watch(sleeper)
    watch.up = False
    async with watch.running():
        await trio.sleep(60)
        assert watch.kind.asked == []
        watch.up = True
        watch.servers[ROLE] = ServerState.UNLOADED
        await trio.sleep(60)
    assert watch.kind.times("probe", ROLE) == []
    assert watch.kind.times("probe", PROXY)
    assert watch.prober.describe(ROLE) is None
    assert watch.told == []


@jumping
@pytest.mark.parametrize("up", [True, False], ids=["while it runs", "while it starts"])
async def test_a_stopped_process_is_told_of_once_and_in_time(sleeper: int, up: bool) -> None:
    watch = Watch(sleeper)
    watch.up = up
    async with watch.running():
        await trio.sleep(10)
        os.kill(sleeper, signal.SIGSTOP)
        await trio.to_thread.run_sync(lambda: wait_until(lambda: identity.state_of(sleeper) == "T"))
        began = trio.current_time()
        await watch.somebody_must_go.wait()
        assert trio.current_time() - began < budgets.HANG_NOTICED
        await trio.sleep(30)
    os.kill(sleeper, signal.SIGCONT)
    (reason,) = watch.told
    assert "is hung: it is stopped" in reason


@jumping
async def test_three_silent_probes_tell(sleeper: int) -> None:
    watch = Watch(sleeper)
    async with watch.running():
        await trio.sleep(10)
        watch.kind.answers[ROLE] = silence
        await trio.sleep(12)
    (reason,) = watch.told
    assert reason.startswith(f"the {ROLE} server is hung: no answer to 3 probes")


@jumping
async def test_a_silent_server_delays_nobody_elses_look(sleeper: int) -> None:
    watch = Watch(sleeper, Limits(misses=1000))
    watch.kind.answers[ROLE] = silence
    async with watch.running():
        await trio.sleep(30.5)
    assert len(watch.kind.times("probe", PROXY)) == 31


@jumping
@pytest.mark.parametrize("failure", [no_descriptor, Answer.UNKNOWN], ids=["EMFILE", "unknown"])
async def test_our_own_error_is_no_failure_of_what_is_probed(sleeper: int, failure: Any) -> None:
    watch = Watch(sleeper)
    async with watch.running():
        watch.prober.note_activity(ROLE, 1, 0)
        watch.kind.answers = dict.fromkeys((PROXY, ROLE, "draft"), failure)
        watch.kind.closer = no_descriptor
        watch.kind.canaries = failure
        await trio.sleep(400)
    assert watch.told == []


@jumping
async def test_a_process_that_cannot_be_read_is_not_dead() -> None:
    watch = Watch(2**22 + 7)  # above what Linux gives
    watch.kind.answers = dict.fromkeys((PROXY, ROLE, "draft"), silence)
    async with watch.running():
        await trio.sleep(400)
    assert watch.told == []
    assert watch.verdict() is Verdict.BUSY


@jumping
async def test_a_wedge_is_asked_for_by_one_canary_at_a_time_and_closer_looks_are_rare(sleeper: int) -> None:
    watch = Watch(sleeper)
    watch.kind.canaries = silence
    watch.kind.closer = the_same
    async with watch.running():
        watch.prober.note_activity(ROLE, 2, 5)
        began = trio.current_time()
        await watch.somebody_must_go.wait()
        took = trio.current_time() - began
    assert watch.told[0].startswith(f"the {ROLE} server is wedged: 2 requests in flight")
    assert budgets.WEDGE_LIMIT <= took <= budgets.WEDGE_LIMIT + 5
    assert watch.kind.most_at_once == 1
    assert watch.kind.times("canary", ROLE)[0] - began >= budgets.WEDGE_LIMIT / 2
    looks = watch.kind.times("closer", ROLE)
    assert looks[0] - began >= budgets.STALL_SHOWN
    assert all(b - a >= budgets.CLOSER_INTERVAL for a, b in itertools.pairwise(looks))
    assert not watch.kind.times("canary", "draft")
    assert not watch.kind.times("canary", PROXY)
    assert not watch.kind.times("closer", PROXY)


@jumping
@pytest.mark.parametrize("life", ["canary", "closer", "bytes"])
async def test_whoever_serves_is_left_alone(sleeper: int, life: str) -> None:
    """A request that is never answered, beside other work that is done: not a wedge."""
    watch = Watch(sleeper)
    made = 0

    async def counts() -> str:
        nonlocal made
        made += life == "closer"
        return str(made)

    watch.kind.closer = counts
    watch.kind.canaries = Answer.ANSWERED if life == "canary" else silence
    async with watch.running():
        for second in range(300):
            watch.prober.note_activity(ROLE, 1, second // 20 if life == "bytes" else 0)
            await trio.sleep(1)
    assert watch.told == []


@jumping
async def test_a_server_that_is_unloaded_while_it_is_asked_is_not_silent(sleeper: int) -> None:
    watch = Watch(sleeper, Limits(observations=1, misses=1))

    async def unloaded() -> Answer:
        watch.servers[ROLE] = ServerState.UNLOADED
        return Answer.REFUSED

    watch.kind.answers[ROLE] = unloaded
    async with watch.running():
        await trio.sleep(30)
    assert watch.told == []


@jumping
async def test_a_change_of_verdict_is_told_and_no_other(sleeper: int) -> None:
    watch = Watch(sleeper)
    async with watch.running():
        await trio.sleep(20)
        before = watch.changes
        await trio.sleep(200)
        assert watch.changes == before
        watch.prober.note_activity(ROLE, 1, 0)
        await trio.sleep(8)
        assert watch.changes == before + 1
        assert watch.prober.describe(ROLE) == {
            "verdict": "stalled",
            "evidence": watch.prober.subjects[ROLE].judgement.reason,
            "in_flight": 1,
        }


def test_a_process_that_sleeps_does_not_compute(sleeper: int) -> None:
    subject = Subject(ROLE, Limits())
    subject.pid = sleeper
    assert subject.look(0.0, False) == (False, None)
    assert subject.look(1.0, False) == (False, False)


def test_a_process_that_takes_cpu_time_computes() -> None:
    burner = subprocess.Popen([sys.executable, "-I", "-S", "-c", "while True: pass"])
    try:
        subject = Subject(ROLE, Limits())
        subject.pid = burner.pid
        assert subject.look(0.0, False) == (False, None)
        began = identity.usage_of(burner.pid)
        assert began is not None
        wait_until(lambda: (now := identity.usage_of(burner.pid)) and now.cpu_ticks > began.cpu_ticks + 5)
        assert subject.look(1.0, False) == (False, True)
    finally:
        burner.kill()
        burner.wait()


def test_what_waits_for_a_processor_computes_though_it_got_none(sleeper: int, monkeypatch: pytest.MonkeyPatch) -> None:
    subject = Subject(ROLE, Limits())
    subject.pid = sleeper
    subject.look(0.0, True)
    assert subject.look(1.0, True) == (False, False)
    monkeypatch.setattr(identity, "waits_for_a_turn", lambda pid: True)
    assert subject.look(2.0, True) == (False, True)
