"""A kind with a bug is its group's trouble: no keeper ends of it, and no other group has part in it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest
import trio
from attrs import evolve
from trio.testing import wait_all_tasks_blocked

from supervisor import budgets, kinds
from supervisor.containment import Contained, hold
from supervisor.contract import EngineSpec, State
from supervisor.devices import reservations
from supervisor.errors import ConfigError, EngineStartError, KindError
from supervisor.gateway.whereabouts import Whereabouts
from supervisor.kinds import Answer, Birth, Command, Planned, Planning, Preparing, ReadingBack
from supervisor.lifecycle import Event
from supervisor.slot import Slot
from supervisor.tree import Tree
from tests.unit import group_bench
from tests.unit.group_bench import SPEC, FakeKind, FakeWarden, jumping
from tests.unit.test_planning import machine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from supervisor.contract import GroupSpec
    from supervisor.gateway.upkeep import Keeper
    from supervisor.group import Group
    from supervisor.kinds import Kind
    from supervisor.procs import Procs

BIRTH = Birth("ab12", {"proxy": 1}, Path("/c.json"), "key", "generation-key", 1)

HANDS: dict[str, tuple[Any, ...]] = {
    "port_names": (SPEC,),
    "command": (SPEC, BIRTH),
    "load": (SPEC, BIRTH, [], lambda *_: None),
    "watch": (SPEC, BIRTH, lambda *_: None, lambda *_: None),
    "probe": (SPEC, BIRTH, "proxy"),
    "look_closer": (SPEC, BIRTH, "chat"),
    "canary": (SPEC, BIRTH, "chat"),
    "outside": (BIRTH,),
    "release": (BIRTH,),
    "lacks": (SPEC,),
    "prepare": (SPEC, lambda *_: None),
    "plan": (SPEC, None),
    "read_back": (SPEC, {}, BIRTH, {}, ""),
}
"""What a keeper asks of a kind, and with what."""
QUICK = ("port_names", "command", "lacks", "plan")


class Buggy(FakeKind):
    """Does what `does` says, by hand: an exception to raise, or something to give. What is not there is as of FakeKind."""

    def __init__(self, **does: Any) -> None:
        super().__init__()
        self.does = does
        for hand, todo in does.items():
            setattr(self, hand, self._quick(hand, todo) if hand in QUICK else self._slow(hand, todo))

    def _do(self, hand: str, todo: Any) -> Any:
        if isinstance(todo, BaseException):
            raise todo.with_traceback(None)  # else it would remember each time that it was raised
        if callable(todo):
            return todo()
        return todo

    def _quick(self, hand: str, todo: Any) -> Callable[..., Any]:
        return lambda *_: self._do(hand, todo)

    def _slow(self, hand: str, todo: Any) -> Callable[..., Any]:
        async def slow(*_: Any) -> Any:
            await trio.lowlevel.checkpoint()
            return self._do(hand, todo)

        return slow


def whole(**does: Any) -> Buggy:
    """With what only some kinds can."""
    return Buggy(**{"lacks": False, "prepare": None, "plan": None, "read_back": {}, **does})


async def ask(kind: Kind, hand: str) -> Any:
    found = getattr(kind, hand)(*HANDS[hand])
    return found if hand in QUICK else await found


def test_all_that_a_keeper_asks_is_here() -> None:
    protocols = (kinds.Kind, Preparing, Planning, ReadingBack)
    hands = {name for one in protocols for name, what in vars(one).items() if callable(what) and name[0] != "_"}
    assert hands - {"resolve", "looked_at"} == set(HANDS)  # these two are a front end's


@jumping
async def test_whatever_a_hand_raises_is_one_error_that_names_it() -> None:
    said: list[str] = []
    for hand in HANDS:
        for error in (ZeroDivisionError("division by zero"), SystemExit(2), TypeError("a")):
            with pytest.raises(KindError) as raised:
                await ask(Contained(whole(**{hand: error}), said.append), hand)
            assert raised.value.what.startswith(
                f"the engine kind fake has a bug: its {hand} raised {type(error).__name__}"
            )
            assert raised.value.next_step
    assert len(said) == 3 * len(HANDS)
    where = re.compile(
        r"keeper: prepare of the engine kind fake: SystemExit: 2\n(.*\n)+ .*test_containment\.py:\d+ in _do: raise"
    )
    assert any(where.match(one) for one in said)


@jumping
async def test_what_a_hand_may_raise_stays_what_it_is() -> None:
    for hand in HANDS:
        for error in (EngineStartError("not today"), ConfigError("wrong"), FileNotFoundError("none")):
            with pytest.raises(type(error)) as raised:
                await ask(Contained(whole(**{hand: error}), pytest.fail), hand)
            assert raised.value is error
        group = ExceptionGroup("of a nursery", [ExceptionGroup("of another", [EngineStartError("not today")])])
        with pytest.raises(EngineStartError, match="not today"):
            await ask(Contained(whole(**{hand: group}), pytest.fail), hand)


@jumping
async def test_what_a_question_may_raise_is_no_bug_and_fills_no_log() -> None:
    """A server that broke off, in the words of whatever library asked it."""

    class BrokenOffError(Exception):
        pass

    for hand in ("probe", "look_closer", "canary", "outside", "release", "read_back"):
        for error, words in (
            (BrokenOffError("the answer is not HTTP"), "the answer is not HTTP"),
            (BrokenOffError(), "BrokenOffError"),
        ):
            with pytest.raises(KindError) as raised:
                await ask(Contained(whole(**{hand: error}), pytest.fail), hand)
            assert raised.value.what == words
    for hand in ("load", "watch", "prepare", "plan"):
        with pytest.raises(KindError, match=f"its {hand} raised BrokenOffError"):
            await ask(Contained(whole(**{hand: BrokenOffError()}), lambda _: None), hand)


@jumping
async def test_a_cancellation_goes_through_also_in_a_group_with_a_bug() -> None:
    class Messy(FakeKind):
        async def load(self, *_: Any) -> None:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(trio.sleep_forever)
                try:
                    await trio.sleep_forever()
                finally:
                    raise ValueError("in the middle of it")

    said: list[str] = []
    with trio.move_on_after(1) as scope:
        await Contained(Messy(), said.append).load(SPEC, BIRTH, [], lambda *_: None)
    assert scope.cancelled_caught
    assert "in the middle of it" in said[0]


READING: dict[str, Any] = {"held": {}, "compared": [], "asked": [], "warnings": []}
GARBAGE: dict[str, list[Any]] = {
    "port_names": [(), ("proxy", "proxy"), (1,), None],
    "command": [
        None,
        Command((), {}),
        Command(("/bin/x", 1), {}),  # type: ignore[arg-type]
        Command(("/bin/x\0",), {}),
        Command(("/bin/x",), {"A": 1}),  # type: ignore[dict-item]
        Command(("/bin/x",), {"A=B": ""}),
        Command(("/bin/x",), {}, {"/c": ""}),  # type: ignore[dict-item]
        Command(("/bin/x",), {}, workdir="here"),
        Command(("/bin/x",), {}, undo=(Path("/bin/rm"),)),  # type: ignore[arg-type]
    ],
    "watch": [None],
    "probe": [True, "answers"],
    "canary": [None],
    "plan": [None, Planned(SPEC, {"host": "1G"}), Planned(SPEC, {}, {"chat": {"binds": Path("/")}})],  # type: ignore[dict-item]
    "read_back": [
        None,
        {"chat": None},
        {"chat": {"held": None}},
        {"chat": READING | {"warnings": 5}},
        {"chat": READING | {"warnings": [{}]}},
        {"chat": READING | {"asked": [{"what": "context per sequence", "effective": "all"}]}},
        {"chat": READING | {"compared": [{"what": "weights", "planned": None, "verdict": "absent"}]}},
        {"chat": READING | {"compared": [{"what": "weights", "planned": 1, "verdict": []}]}},
    ],
}


@jumping
async def test_what_a_hand_gives_is_what_it_says_or_an_error() -> None:
    for hand, given in GARBAGE.items():
        for one in given:
            with pytest.raises(KindError, match=f"its {hand} (gave|raised) "):
                await ask(Contained(whole(**{hand: one}), lambda _: None), hand)


@jumping
async def test_what_a_hand_reports_is_what_it_says_or_an_error() -> None:
    class Talking(FakeKind):
        async def load(self, spec: GroupSpec, birth: Birth, roles: Any, report: Any) -> None:
            report("chat", "ready")

        async def watch(self, spec: GroupSpec, birth: Birth, report: Any, activity: Any) -> None:
            activity("chat", None, 0)

        def lacks(self, spec: GroupSpec) -> bool:
            return True

        async def prepare(self, spec: GroupSpec, report: Any) -> None:
            report("half of it")

    heard: list[object] = []
    kind = Contained(Talking(), lambda _: None)
    for hand, arguments in (
        ("load", (SPEC, BIRTH, [], heard.append)),
        ("watch", (SPEC, BIRTH, heard.append, heard.append)),
        ("prepare", (SPEC, heard.append)),
    ):
        with pytest.raises(KindError, match=hand):
            await getattr(kind, hand)(*arguments)
    assert heard == []


def test_it_can_do_what_its_kind_can_and_no_more() -> None:
    for kind in (FakeKind(), whole()):
        contained = Contained(kind, pytest.fail)
        for what in (Preparing, Planning, ReadingBack):
            assert isinstance(contained, what) == isinstance(kind, what)
    for name in ("command", "attached", "llama-swap"):
        contained = Contained(kinds.find(name), pytest.fail)
        for what in (Preparing, Planning, ReadingBack):
            assert isinstance(contained, what) == isinstance(kinds.find(name), what)


def test_a_kind_that_does_not_load_is_an_error_that_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = tmp_path / "mine-1.dist-info"
    info.mkdir()
    (info / "entry_points.txt").write_text("[queenright.workers]\nmine = mine_kind:KIND\nother = mine_kind:NONE\n")
    (tmp_path / "mine_kind.py").write_text("import no_such_module_anywhere\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr("sys.dont_write_bytecode", True)
    with pytest.raises(ConfigError, match=r"'mine' cannot be loaded: ModuleNotFoundError: .*no_such_module_anywhere"):
        kinds.find("mine")
    (tmp_path / "mine_kind.py").write_text("KIND = 1\n")
    with pytest.raises(ConfigError, match="'other' cannot be loaded: AttributeError"):
        kinds.find("other")
    monkeypatch.delitem(__import__("sys").modules, "mine_kind", raising=False)


# --- in a keeper's tree ---------------------------------------------------------------------------------------------------


@pytest.fixture
def slot(tmp_path: Path) -> Iterator[Slot]:
    with pytest.MonkeyPatch.context() as patched:
        group_bench.prepare(patched)
        patched.setenv(reservations.VARIABLE, str(tmp_path / "book"))
        patched.setattr("supervisor.devices.survey.survey", machine)
        made = Slot(tmp_path / "slot")
        made.prepare()
        yield made


WEB = evolve(SPEC, name="web", kind="other")


class Two:
    """A tree of two groups: `chat`, of the kind that is under test, and `web`, which has nothing to do with it."""

    def __init__(self, slot: Slot, kind: Kind | None, warden: FakeWarden | None = None) -> None:
        self.kind, self.warden = kind, warden or FakeWarden()
        self.tree = Tree(
            EngineSpec((SPEC, WEB)), slot, self._find, cast("Procs", self.warden),
            tell=lambda *_: None, tell_end=lambda _: None, changed=trio.lowlevel.checkpoint,
        )  # fmt: skip

    def _find(self, name: str) -> Kind:
        if name == "other":
            return FakeKind()
        if self.kind is None:
            raise ConfigError("there is no engine kind 'fake'", "install it")
        return self.kind

    @property
    def chat(self) -> Group:
        return self.tree.groups["chat"]

    def is_well_otherwise(self) -> bool:
        return self.tree.groups["web"].state is State.RUNNING

    async def live(self, look: Callable[[], None], seconds: float = 30.0) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.tree.run)
            await trio.sleep(seconds)
            await wait_all_tasks_blocked()
            look()
            nursery.cancel_scope.cancel()


BUG = ZeroDivisionError("division by zero")


@jumping
@pytest.mark.parametrize("hand", ["port_names", "command", "load", "plan"])
async def test_a_bug_that_keeps_a_group_from_starting_is_given_up_with_its_cause(slot: Slot, hand: str) -> None:
    two = Two(slot, whole(**{hand: BUG}) if hand == "plan" else Buggy(**{hand: BUG}))

    def look() -> None:
        assert two.is_well_otherwise()
        assert two.chat.state is State.FAILED
        assert f"its {hand} raised ZeroDivisionError: division by zero" in two.chat.describe()["reason"]
        assert two.chat.past.history.doomed == budgets.DOOMED_TRIES

    await two.live(look)


@jumping
async def test_a_bug_in_what_fetches_is_tried_again_as_what_fails_otherwise_is(slot: Slot) -> None:
    two = Two(slot, Buggy(lacks=True, prepare=BUG))

    def look() -> None:
        assert two.is_well_otherwise()
        assert two.chat.state is State.FETCHING
        assert "its prepare raised ZeroDivisionError: division by zero; it is tried again" in two.chat.reason
        assert two.chat.past.history.doomed == 0

    await two.live(look)


@jumping
@pytest.mark.parametrize("hand", ["watch", "probe", "look_closer", "canary", "outside", "read_back"])
async def test_a_bug_in_looking_ends_nothing_that_serves(slot: Slot, hand: str) -> None:
    two = Two(slot, whole(**{hand: BUG, "plan": lambda: Planned(SPEC, {})}))

    def look() -> None:
        assert two.is_well_otherwise()
        assert two.chat.state is State.RUNNING
        assert two.chat.past.history.restarts == 0
        said = two.chat.describe()["unwatched"]
        assert (said is not None) == (hand == "watch")
        assert said is None or "its watch raised ZeroDivisionError" in said

    await two.live(look)


@jumping
async def test_a_watch_that_broke_off_is_begun_again_and_not_in_a_tight_loop(slot: Slot) -> None:
    tries: list[float] = []

    def watch() -> None:
        tries.append(trio.current_time())
        raise BUG

    two = Two(slot, Buggy(watch=watch))
    await two.live(lambda: None, 300)
    assert 0.5 <= tries[1] - tries[0] <= 1
    assert 30 <= tries[-1] - tries[-2] <= 37.5
    assert len(tries) < 20


@jumping
async def test_what_is_owed_is_not_known_while_nobody_watches(slot: Slot) -> None:
    class Owing(FakeKind):
        async def watch(self, spec: GroupSpec, birth: Birth, report: Any, activity: Any) -> None:
            if not self.asked or len(self.watching) == 0:
                self.watching.append(birth.generation)
                for launch in spec.launches:
                    activity(launch.role, 1, 0)
                await trio.sleep(3)
                raise BUG
            await trio.sleep_forever()

    two = Two(slot, Owing())

    def look() -> None:
        assert two.chat.in_flight is None
        assert two.chat.state is State.RUNNING
        assert two.chat.describe()["servers"][0]["health"]["verdict"] not in ("stalled", "wedged")

    await two.live(look)


@jumping
async def test_a_stop_ends_a_group_whose_kind_can_do_nothing(slot: Slot) -> None:
    for kind in (Buggy(release=BUG, probe=BUG, watch=BUG), Buggy(command=BUG), Buggy(lacks=True, prepare=BUG)):
        two = Two(slot, kind)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(two.tree.run)
            await trio.sleep(5)
            for group in two.tree.groups.values():
                group.post(Event.STOP, reason="told to")
            await trio.sleep(10)
            assert {group.state for group in two.tree.groups.values()} <= {State.DOWN, State.FAILED}
            assert two.tree.is_at_rest
            assert not two.warden.living
            nursery.cancel_scope.cancel()


@jumping
async def test_a_kind_that_is_not_there_any_more_starts_nothing_and_is_named(slot: Slot) -> None:
    two = Two(slot, None)

    def look() -> None:
        assert two.is_well_otherwise()
        assert two.chat.state is State.FAILED
        assert "there is no engine kind 'fake'" in two.chat.reason
        assert not Whereabouts(cast("Keeper", two)).has_proxy("chat"), "and who asks for it hears that"

    await two.live(look)


@jumping
async def test_a_retry_finds_a_kind_that_is_there_again(slot: Slot) -> None:
    two = Two(slot, None)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(two.tree.run)
        await trio.sleep(30)
        two.kind = FakeKind()  # its package was installed again
        assert two.tree.retry(["chat"]) == ["chat"], "it was given up"
        await trio.sleep(5)
        assert two.chat.state is State.RUNNING
        nursery.cancel_scope.cancel()


@jumping
async def test_what_runs_of_a_kind_that_is_not_there_any_more_runs_on(slot: Slot) -> None:
    two = Two(slot, FakeKind())
    await two.live(lambda: None, 5)
    after = Two(slot, None, two.warden.next_keepers())

    def look() -> None:
        assert after.is_well_otherwise()
        assert after.chat.state is State.RUNNING
        assert not after.warden.kills
        assert "there is no engine kind 'fake'" in after.chat.describe()["unwatched"]
        assert Whereabouts(cast("Keeper", after)).has_proxy("chat"), "requests find it"
        after.chat.stop("told to")

    await after.live(look)


def test_one_that_is_not_there_answers_what_needs_no_kind() -> None:
    kind = hold("gone", lambda name: kinds.find("no such kind"), lambda _: None)

    async def look() -> None:
        assert await kind.probe(SPEC, BIRTH, "proxy") is Answer.UNKNOWN
        await kind.load(SPEC, BIRTH, [], lambda *_: None)
        await kind.release(BIRTH)
        for hand in ("port_names", "command", "watch"):
            with pytest.raises(KindError, match="no engine kind 'no such kind'"):
                await ask(kind, hand)

    trio.run(look)
