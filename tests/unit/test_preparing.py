"""What a group does while its files are fetched: a state of its own, and no failure of the engine."""

from __future__ import annotations

import errno
from collections import deque
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
import trio
from attrs import evolve
from trio.testing import wait_all_tasks_blocked

from supervisor import advice, screen
from supervisor.contract import State
from supervisor.errors import DiskFullError, PayloadError, WrongPayloadError
from supervisor.kinds import Preparation, Preparing
from supervisor.lifecycle import Event
from supervisor.narration import Narrator
from supervisor.slot import Slot
from tests.unit import group_bench
from tests.unit.group_bench import SPEC, Bench, FakeKind, FakeWarden, jumping

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from supervisor.contract import GroupSpec

WITH_FILES = evolve(SPEC, payload=("chat.gguf",), manifest="/m/queenright.payload.toml")
AWAY = PayloadError("http://models.example/chat.gguf cannot be fetched: HTTP 503", "check the network")


class Fetching(FakeKind):
    """Each preparation takes the next of `todo`: an exception, or a number of bytes of 100 that come before it goes on with
    `go_on`; without one nothing is lacking."""

    def __init__(self, *todo: Exception | int) -> None:
        super().__init__()
        self.todo = deque(todo)
        self.go_on = trio.Event()
        self.prepared: list[float] = []
        self.cancelled = 0
        self.tell: Callable[[Preparation], None] = lambda _: None

    def lacks(self, spec: GroupSpec) -> bool:
        return bool(self.todo)

    async def prepare(self, spec: GroupSpec, report: Callable[[Preparation], None]) -> None:
        self.prepared.append(trio.current_time())
        self.tell = report
        await trio.lowlevel.checkpoint()
        todo = self.todo.popleft() if self.todo else None
        if isinstance(todo, Exception):
            raise todo
        if todo is not None:
            report(Preparation("fetching chat.gguf from http://models.example/chat.gguf", todo, 100))
            try:
                await self.go_on.wait()
            except trio.Cancelled:
                self.cancelled += 1
                raise


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Fetching], Bench]:
    group_bench.prepare(monkeypatch)
    slot = Slot(tmp_path / "slot")
    slot.prepare()
    return lambda kind: Bench(slot, FakeWarden(), kind, WITH_FILES)


def test_a_kind_that_fetches_is_seen_as_one() -> None:
    assert isinstance(Fetching(), Preparing)
    assert not isinstance(FakeKind(), Preparing)


@jumping
async def test_what_is_lacking_is_fetched_before_anything_is_started(make: Callable[[Fetching], Bench]) -> None:
    kind = Fetching(43)
    bench = make(kind)
    async with bench.alive():
        assert bench.state() is State.FETCHING
        assert not bench.warden.spawned
        assert not bench.group.is_settled
        facts = bench.group.describe()
        assert facts["reason"] == "fetching chat.gguf from http://models.example/chat.gguf"
        assert (facts["fetching"]["bytes"], facts["fetching"]["of"], facts["fetching"]["trouble"]) == (43, 100, None)
        assert bench.group.fetch.how_far == "43 %, 0.0 of 0.0 MiB"
        await bench.happen(kind.go_on.set)
        assert bench.state() is State.RUNNING
        assert (bench.group.reason, bench.group.describe()["fetching"]) == ("", None)
        assert bench.heard[-3:] == [State.FETCHING, State.STARTING, State.RUNNING]
        assert not bench.ends
        assert bench.group.past.history.failures == bench.group.past.history.restarts == 0


@jumping
async def test_where_nothing_is_lacking_the_state_never_shows(make: Callable[[Fetching], Bench]) -> None:
    bench = make(Fetching())
    async with bench.alive():
        assert bench.state() is State.RUNNING
        assert State.FETCHING not in bench.heard


@jumping
@pytest.mark.parametrize("error", [AWAY, DiskFullError("no room for chat.gguf", "make room")])
async def test_what_does_not_come_is_tried_again_and_is_no_failure_of_the_engine(
    make: Callable[[Fetching], Bench], error: PayloadError
) -> None:
    kind = Fetching(*[error] * 40)
    bench = make(kind)
    async with bench.alive():
        await bench.pass_time(0.2)
        assert bench.state() is State.FETCHING
        assert bench.group.reason == f"{error.what}; it is tried again by itself: {error.next_step}"
        facts = bench.group.describe()
        assert facts["fetching"]["trouble"] == type(error).__name__
        snapshot = {"groups": [facts], "state": "fetching", "reason": "", "members": []}
        assert [trouble.kind for trouble in advice.troubles(snapshot, 0.0)] == ["payload"]
        heard = len(bench.heard)
        await bench.pass_time(1800)
        assert bench.state() is State.RUNNING
        assert len(kind.prepared) == 41
        pauses = [after - before for before, after in zip(kind.prepared, kind.prepared[1:], strict=False)]
        assert 30 <= pauses[-1] <= 37.5
        assert not bench.ends
        assert bench.group.past.history.failures == 0
        assert heard <= 3  # said once, however often it is tried


@jumping
async def test_a_try_that_only_repeats_what_was_done_is_no_progress(
    make: Callable[[Fetching], Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stale file is hashed at each try, and a fetch goes on where it was: neither brings a byte from a source that is
    away. Nor does the wall clock say whether one came."""
    wall = iter(range(10**9, 0, -1000))
    monkeypatch.setattr("supervisor.preparing.time", SimpleNamespace(time=lambda: float(next(wall))))

    class Repeating(Fetching):
        comes = 0

        async def prepare(self, spec: GroupSpec, report: Callable[[Preparation], None]) -> None:
            self.prepared.append(trio.current_time())
            for what, done in (("hashing", 0), ("hashing", 50), ("fetching", 0), ("fetching", 40 + self.comes)):
                report(Preparation(what, done, 100))
                await trio.lowlevel.checkpoint()
            raise AWAY

    kind = Repeating()
    bench = make(kind)
    async with bench.alive():
        await bench.pass_time(600)
        assert len(kind.prepared) < 40
        pauses = [after - before for before, after in zip(kind.prepared, kind.prepared[1:], strict=False)]
        assert 30 <= pauses[-1] <= 37.5
        assert bench.group.reason.startswith(AWAY.what)
        kind.comes, tries = 1, len(kind.prepared)  # one byte: it is tried again at once
        await bench.pass_time(40)
        assert len(kind.prepared) > tries + 3


@jumping
async def test_what_the_system_refuses_is_tried_again_and_ends_no_keeper(make: Callable[[Fetching], Bench]) -> None:
    bench = make(Fetching(*[OSError(errno.EIO, "Input/output error", "/m")] * 4))
    async with bench.alive():
        await bench.pass_time(0.2)
        assert bench.state() is State.FETCHING
        assert bench.group.reason.startswith("what it reads: [Errno 5] Input/output error: '/m'; it is tried again")
        await bench.pass_time(60)
        assert bench.state() is State.RUNNING


@jumping
async def test_what_cannot_be_had_is_given_up_and_no_engine_is_blamed(make: Callable[[Fetching], Bench]) -> None:
    bench = make(Fetching(WrongPayloadError("it is another file", "correct the manifest")))
    async with bench.alive():
        assert bench.state() is State.FAILED
        assert bench.group.reason == "it is another file: correct the manifest"
        assert not bench.ends
        assert not bench.warden.spawned
        assert bench.group.retry()
        await wait_all_tasks_blocked()
        assert bench.state() is State.RUNNING


@jumping
async def test_what_was_given_up_stays_so_for_the_next_keeper(make: Callable[[Fetching], Bench]) -> None:
    bench = make(Fetching(WrongPayloadError("it is another file", "correct the manifest")))
    async with bench.alive():
        pass
    other = Bench(bench.slot, bench.warden.next_keepers(), Fetching(), WITH_FILES)
    async with other.alive():
        assert other.state() is State.FAILED


@jumping
@pytest.mark.parametrize("waits", [False, True])
async def test_a_stop_in_the_middle_ends_it_at_once(make: Callable[[Fetching], Bench], waits: bool) -> None:
    kind = Fetching(AWAY, AWAY) if waits else Fetching(43)
    bench = make(kind)
    async with bench.alive():
        if waits:
            await bench.pass_time(0.1)
        began = trio.current_time()
        await bench.tell(Event.STOP, "told to")
        assert bench.state() is State.DOWN
        assert trio.current_time() == began
        assert bench.group.is_at_rest
        assert kind.cancelled == (not waits)
        assert bench.group.describe()["fetching"] is None
        await bench.pass_time(600)
        assert not bench.warden.spawned
        await bench.tell(Event.WANTED)
        if not waits:
            kind.go_on.set()
        await bench.pass_time(1)
        assert bench.state() is State.RUNNING


@jumping
@pytest.mark.parametrize("order", ["stop first", "error first"])
async def test_a_stop_and_an_error_that_ends_it_in_the_same_moment(
    make: Callable[[Fetching], Bench], order: str
) -> None:
    class Both(Fetching):
        async def prepare(self, spec: GroupSpec, report: Callable[[Preparation], None]) -> None:
            report(Preparation("fetching", 1, 100))
            with trio.CancelScope(shield=True):
                await self.go_on.wait()
            raise WrongPayloadError("another file")

    kind = Both()
    bench = make(kind)
    async with bench.alive():
        assert bench.state() is State.FETCHING
        if order == "stop first":
            await bench.tell(Event.STOP, "told to")
            assert bench.state() is State.STOPPING
            await bench.happen(kind.go_on.set)
        else:
            kind.go_on.set()
            await bench.tell(Event.STOP, "told to")
        assert bench.state() is State.DOWN


@jumping
async def test_a_hold_in_the_middle_is_one(make: Callable[[Fetching], Bench]) -> None:
    kind = Fetching(43)
    bench = make(kind)
    async with bench.alive():
        await bench.happen(bench.group.hold, "held by a test")
        assert bench.state() is State.HELD
        await bench.happen(kind.go_on.set)
        await bench.happen(bench.group.release)
        assert bench.state() is State.RUNNING


@jumping
async def test_a_hold_right_after_a_start_is_one_too(make: Callable[[Fetching], Bench]) -> None:
    """The stop is there before what fetches has begun, or just after: as the scheduler has it."""
    kind = Fetching(*range(20))
    bench = make(kind)

    def released_and_held() -> None:
        bench.group.release()
        bench.group.hold("again")

    async with bench.alive():
        await bench.happen(bench.group.hold, "held by a test")
        for _ in range(12):
            await bench.happen(released_and_held)
            assert bench.state() is State.HELD
        assert not bench.warden.spawned


@jumping
async def test_what_a_kind_still_reports_after_its_end_is_not_heard(make: Callable[[Fetching], Bench]) -> None:
    kind = Fetching(43)
    bench = make(kind)
    async with bench.alive():
        late = kind.tell
        await bench.tell(Event.STOP, "told to")
        await bench.happen(late, Preparation("fetching chat.gguf", 44, 100))
        assert bench.state() is State.DOWN
        assert bench.group.describe()["fetching"] is None


@jumping
async def test_other_names_while_it_fetches_are_what_is_fetched(make: Callable[[Fetching], Bench]) -> None:
    """Whoever corrects them does so because the first ones do not come."""
    kind = Fetching(43)
    bench = make(kind)
    async with bench.alive():
        assert bench.state() is State.FETCHING
        await bench.happen(bench.group.reshape, evolve(WITH_FILES, queue_limit=7), bench.kind, "configured")
        assert (bench.state(), kind.cancelled) == (State.FETCHING, 0), "what it fetches is the same"
        other = evolve(WITH_FILES, payload=("other",))
        await bench.happen(bench.group.reshape, other, bench.kind, "configured")
        assert (bench.state(), kind.cancelled) == (State.RUNNING, 1)
        assert bench.group.spec.payload == ("other",)


@jumping
async def test_a_file_that_is_lost_while_it_runs_is_fetched_before_the_rebuild(
    make: Callable[[Fetching], Bench],
) -> None:
    kind = Fetching()
    bench = make(kind)
    async with bench.alive():
        kind.todo.append(1)
        await bench.happen(bench.warden.die, bench.warden.last)
        assert bench.state() is State.FETCHING
        await bench.happen(kind.go_on.set)
        assert bench.state() is State.RUNNING
        assert len(bench.warden.spawned) == 2


@jumping
async def test_a_change_of_the_names_alone_restarts_nothing(make: Callable[[Fetching], Bench]) -> None:
    bench = make(Fetching())
    async with bench.alive():
        await bench.happen(bench.group.reshape, evolve(WITH_FILES, payload=("other",)), bench.kind, "configured")
        assert bench.state() is State.RUNNING
        assert len(bench.warden.spawned) == 1
        assert bench.group.spec.payload == ("other",)


def test_the_screen_and_a_watch_say_how_far_it_is() -> None:
    group = {
        "name": "chat", "state": "fetching", "reason": "fetching chat.gguf", "since": 0.0, "proxy": None, "servers": [],
        "restarts": 0, "reloads": 0,
        "fetching": {"what": "fetching chat.gguf", "bytes": 43 << 20, "of": 100 << 20, "moved": 9.0, "trouble": None},
    }  # fmt: skip
    snapshot = {
        "state": "fetching", "reason": "", "slot": "/s", "keeper": None, "warden": None, "groups": [group], "members": [],
        "lifetime": "run", "warm": [],
    }  # fmt: skip
    assert "fetching chat.gguf: 43 %, 43.0 of 100.0 MiB" in screen.plain(snapshot, 10.0)
    assert "43.0 of 100.0 MiB, nothing for 20 s" in screen.plain(snapshot, 29.0)
    after = {**snapshot, "groups": [{**group, "fetching": {**group["fetching"], "bytes": 44 << 20}}]}  # type: ignore[dict-item]
    assert screen.news(snapshot, after) == ["group chat: fetching 44 %: chat.gguf"]


def test_events_have_a_line_for_each_tenth(tmp_path: Path) -> None:
    slot = Slot(tmp_path / "slot")
    slot.prepare()
    said: list[str] = []

    class Console:
        def say(self, text: str) -> None:
            said.append(text)

    narrator = Narrator(slot, Console())  # type: ignore[arg-type]
    for done in (0, 1, 9, 10, 11, 55, 100):
        narrator.see_fetch("chat", {"what": "fetching a", "bytes": done << 20, "of": 100 << 20})
    narrator.say_all()
    assert [line.partition(",")[0] for line in said] == [f"chat: fetching a: {n} %" for n in (10, 55, 100)]
    assert slot.events.read_text().count('"fetch"') == 3
