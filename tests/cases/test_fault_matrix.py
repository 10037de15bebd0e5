"""Every combination of SIGKILL at every moment: nothing is left that nobody owns (faults.py has the table).

A fault fires when its moment is seen, never after a pause. On the built-in proxy, or on the llama-swap that
QUEENRIGHT_LLAMA_SWAP names.
"""

from __future__ import annotations

import signal
import subprocess
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from supervisor import identity, locks
from supervisor.control import ControlError
from supervisor.identity import Identity, Liveness
from tests.cases.faults import CELLS, RULES, Cell, Stream, Then, When, Who, table
from tests.engine.kit import Launch
from tests.engine.place import TRACEBACK
from tests.engine.seen import Deaths, kill
from tests.fakes.llama_server import story
from tests.leak_check import MARKER
from tests.support import RAN, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.engine.fronts import Front
    from tests.engine.place import Place

PROMPT = "tell me of bees"
RATE = 40
TOKENS = 2 * RATE
GRACE_S = 1.5
KERNEL_S = 5.0
"""What a dead warden takes along is gone within 1 s (docs/concepts.md, "Processes"); this is on a busy machine."""
END_S = 15.0
"""For an engine that ends itself: a keeper's start, the member watch, the grace, the sweep, on a busy machine."""


RUNGS = {Then.REPAIRED: {"bind"}, Then.ENDS: {"build"}, Then.TAKEN: {"build", "take over"}}
"""How the next one comes to its engine. What a server forked itself outlives a warden, and is taken over from."""


@dataclass(frozen=True, slots=True)
class Cast:
    """Who plays in one cell, each exactly."""

    warden: Identity
    keeper: Identity
    proxy: Identity
    server: Identity

    def of(self, who: Who) -> Identity:
        """One of them."""
        found: Identity = getattr(self, who.value)
        return found

    @property
    def engine(self) -> list[Identity]:
        """All but the member."""
        return [self.warden, self.keeper, self.proxy, self.server]


@dataclass(slots=True)
class Moment:
    """The moment has come: who plays, and what is under way."""

    cast: Cast
    stream: int | None = None
    stop: subprocess.Popen[str] | None = None


KNOBS: dict[When, dict[str, object]] = {
    When.LOADING: {"load": 3},
    When.REBUILDING: {"load": 3},
    When.STREAMING: {"rate": RATE},
    When.STOPPING: {"term": "ignore"},
}


def whole(prompt: str, tokens: int) -> str:
    """The answer of a server that nobody kills."""
    return "".join(story(prompt, 0, tokens))


def cast_of(place: Place, starts: int) -> Cast:
    """Everybody, once the chat server was started so often."""

    def there() -> Cast | None:
        try:
            found = place.snapshot()
        except ControlError:
            return None
        proxy = found["groups"][0]["proxy"] if found["groups"] else None
        servers = place.started()
        if proxy is None or len(servers) != starts:
            return None
        pids = (found["warden"]["pid"], found["keeper"]["pid"], proxy["pid"])
        warden, keeper, leader = (identity.of(pid) for pid in pids)
        return Cast(warden, keeper, leader, servers[-1]) if warden and keeper and leader else None

    cast = place.until(there, within=30, what=f"the server was started {starts} times")
    assert cast is not None
    return cast


@contextmanager
def seam(place: Place, front: Front, when: When) -> Iterator[Moment]:
    """Come to a moment by what can be seen of it; at the end, end what was begun for it."""
    if when is When.LOADING:
        yield Moment(cast_of(place, 1))
        return
    front.do("ready")
    cast = cast_of(place, 1)
    if when is When.STREAMING:
        stream = front.begin("stream", role="chat", prompt=PROMPT, tokens=TOKENS)
        front.first(stream)
        yield Moment(cast, stream)
    elif when is When.REBUILDING:
        kill(cast.proxy)
        yield Moment(cast_of(place, 2))
    elif when is When.STOPPING:
        with subprocess.Popen(
            place.command("stop"),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=place.home,
            env=place.environment,
        ) as stop:
            place.until(lambda: is_stopping(place), within=30, what="the stop was obeyed")
            yield Moment(cast, stop=stop)
            said, _ = stop.communicate(timeout=30)
            assert stop.returncode == 0, said
            assert TRACEBACK not in said
    else:
        yield Moment(cast)


def is_stopping(place: Place) -> bool:
    """Whether the keeper says so."""
    try:
        return bool(place.snapshot()["state"] == "stopping")
    except ControlError:
        return False


def strike(who: tuple[Who, ...], front: Front, cast: Cast) -> None:
    """All at once, as far as one process can do that. By the third, the first may have taken it along."""
    for one in who:
        if one is Who.MEMBER:
            front.process.kill()
        else:
            identity.signal_exact(cast.of(one), signal.SIGKILL)
    if Who.MEMBER in who:
        front.process.wait(30)


def check_stream(front: Front, moment: Moment, wanted: Stream) -> None:
    """What the member saw of its stream."""
    if wanted is Stream.NONE:
        return
    assert moment.stream is not None
    answer = front.result(moment.stream)
    assert whole(PROMPT, TOKENS).startswith(answer["text"])
    assert answer["finished"] is (wanted is Stream.WHOLE)
    assert bool(answer["interrupted"]) is (wanted is Stream.CUT)


def check_repaired(place: Place, cell: Cell, cast: Cast) -> None:
    """Whole again. What was not killed and did not lose its parent is the same process. A proxy whose server was killed
    in a start may be either: the keeper that was there gives it up, one that comes takes it up and loads it again."""
    hit = bool({Who.PROXY, Who.SERVER}.intersection(cell.who))
    new = {Who.KEEPER: Who.KEEPER in cell.who, Who.SERVER: hit, Who.PROXY: Who.PROXY in cell.who}
    starting = cell.when in (When.LOADING, When.REBUILDING)
    if hit and not new[Who.PROXY] and (starting or place.kit.proxy != "built-in"):
        # llama-swap does not see a server's end while its grandchild has the pipe: then the watch has both replaced.
        del new[Who.PROXY]

    def others() -> bool:
        family = place.family()
        now = Cast(family.warden, family.keeper, family.proxies["chat"], family.servers["chat"])
        assert now.warden == cast.warden
        return {one: now.of(one) != cast.of(one) for one in new} == new

    wait_until(others, within=60, what=f"exactly these are new: {[one.value for one in new if new[one]]}")


def generations(place: Place) -> dict[str, list[Identity]]:
    """What lives of this place, by the generation in its environment; keepers left out."""
    found: dict[str, list[Identity]] = {}
    for who, generation in identity.with_marker("QUEENRIGHT_GENERATION"):
        if identity.marker(who.pid, MARKER) == place.marker.value and not generation.startswith("keeper."):
            found.setdefault(generation, []).append(who)
    return found


def check_gone(place: Place) -> None:
    """Nothing of the engine lives, by anybody's account."""
    assert [one for one in place.started() if identity.liveness(one) is not Liveness.DEAD] == []
    assert locks.is_held(place.slot.warden_lock) is False


def test_the_table_has_every_combination_at_every_moment() -> None:
    assert len(CELLS) == len(When) * (2 ** len(Who) - 1)
    assert {(cell.when, cell.who) for cell in CELLS.values()} == set(CELLS)
    RAN["cells of the fault matrix"] = {f"{len(CELLS)} in the table, {_ran} as tests"}


@pytest.mark.parametrize("index", range(len(RULES)))
def test_a_table_with_a_rule_too_few_or_too_many_is_refused(index: int) -> None:
    with pytest.raises(ValueError, match="0 rules for"):
        table(RULES[:index] + RULES[index + 1 :])
    with pytest.raises(ValueError, match="2 rules for"):
        table((*RULES, RULES[index]))


_ran = 0


@pytest.mark.process
@pytest.mark.long
@pytest.mark.parametrize("cell", CELLS.values(), ids=lambda cell: cell.title)
def test_whoever_is_killed_nothing_is_left_that_nobody_owns(place: Place, cell: Cell) -> None:
    global _ran
    _ran += 1
    RAN["cells of the fault matrix"] = {f"{len(CELLS)} in the table, {_ran} as tests"}
    # Each server has forked itself a child that left its session and has no death signal.
    place.configure({"chat": (Launch("chat", knobs={"fork": "sleep"} | KNOBS.get(cell.when, {})),)}, grace_s=GRACE_S)
    front = place.front("member")
    front.open(wait=False)
    with seam(place, front, cell.when) as moment, Deaths(moment.cast.engine) as deaths:
        strike(cell.who, front, moment.cast)
        check_stream(front, moment, cell.stream)
        if cell.then is Then.REPAIRED:
            check_repaired(place, cell, moment.cast)
        else:
            deaths.wait(within=KERNEL_S if cell.then is Then.TAKEN else END_S)
    may_come_back = cell.then is Then.TAKEN and Who.MEMBER not in cell.who
    if cell.then is not Then.REPAIRED and not may_come_back:
        starts = len(place.spawns())
        place.wait_empty()
        check_gone(place)
        assert len(place.spawns()) == starts
    if cell.then is Then.ENDS:
        assert generations(place) == {}, "while a warden lives, nothing escapes it"
    newcomer = place.front("newcomer")
    assert newcomer.open() in RUNGS[cell.then] | ({"bind"} if may_come_back else set())
    assert newcomer.ask("chat", "hello", 4) == whole("hello", 4)
    family = place.family()
    assert [one for one in place.started() if identity.liveness(one) is not Liveness.DEAD] == [family.servers["chat"]]
    assert generations(place).keys() == {place.group()["generation"]}, "what escaped is gone with the next step"
