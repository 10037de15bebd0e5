"""The soak on fakes: green where all is well, red for each fault that is planted into what it looks at."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from chaos import observer
from chaos.soak import faults, report
from chaos.soak.soak import Soak
from chaos.soak.telling import as_data
from chaos.soak.verdicts import Verdict
from supervisor import holding, identity, membership, resolving
from supervisor.contract import GENERATION_VARIABLE
from supervisor.identity import Liveness
from tests.engine.kit import CHAT, EMBED, ONE_THREAD, Launch
from tests.engine.place import Place
from tests.support import free_port

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from chaos.soak.faults import Hit
    from chaos.soak.seen import Round
    from supervisor.identity import Identity
    from tests.engine.kit import Kit

pytestmark = pytest.mark.process


@pytest.fixture
def real_soaked(real_kit: Kit, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """The same of a real engine."""
    chat = Launch("chat", CHAT, arguments=ONE_THREAD, context=1024, sequences=2)
    embed = Launch("embed", EMBED, arguments=("--embeddings", *ONE_THREAD), context=512)
    with soaking(real_kit, monkeypatch) as place:
        place.configure({"chat": (chat,), "embed": (embed,)}, gateway={"listen": f"127.0.0.1:{free_port()}"})
        yield place


@pytest.fixture
def soaked(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """A place whose front ends the soak starts."""
    knobs: dict[str, object] = {
        "orders": 1,
        "rate": 60,
        "think": 0.05,
    }  # so that a fault meets requests, and they leave some CPU to others
    with soaking(kit, monkeypatch) as place:
        knobs |= {"served_file": place.home / "served"}
        launches = {"chat": (Launch("chat", knobs=knobs),), "embed": (Launch("embed", kit.embed, knobs=knobs),)}
        place.configure(launches, gateway={"listen": f"127.0.0.1:{free_port()}"}, wedge_limit_s=4)
        yield place


@contextmanager
def soaking(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """A place of which everything that the soak starts carries the test's mark."""
    place = Place(kit)
    for name, value in place.environment.items():
        monkeypatch.setenv(name, value)
    try:
        yield place
    finally:
        place.close()


def soak_of(place: Place, **options: Any) -> Soak:
    groups = resolving.resolve(resolving.load(place.config)).groups
    return Soak(place.slot, place.config, groups, **{"streams": 3, "every": 1, **options})


def said(soak: Soak) -> dict[str, list[str]]:
    """What was not green, with what was seen."""
    found: dict[str, list[str]] = {}
    for one in [*(one for told in soak.rounds for one in told.judgements), *soak.ends]:
        if one.verdict is not Verdict.HOLDS:
            found.setdefault(one.invariant, []).append(one.seen)
    return found


@pytest.mark.long
def test_rounds_with_kills_are_green_and_leave_nothing(soaked: Place) -> None:
    soak = soak_of(soaked)
    assert soak.run(3) is Verdict.HOLDS, said(soak)
    assert [told.fault for told in soak.rounds] == list(faults.DEFAULT)
    assert all(told.recovery_s for told in soak.rounds)
    assert sum(told.outcomes.get("complete", 0) for told in soak.rounds) > 3
    assert soak.load._fresh["gateway", "chat"] > 0  # it was asked, too
    page = report.page(as_data(soak, command="queenright soak"))
    assert page.count("<svg") >= 2
    assert "http" not in page  # it needs nothing but itself
    assert soaked.slot.path.exists()
    soaked.wait_empty()


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_every_fault_over_60_rounds_is_green(soaked: Place) -> None:
    soak = soak_of(soaked, every=2, names=list(faults.FAULTS), receipts=[soaked.home / "served"])
    assert soak.run(60) is Verdict.HOLDS, said(soak)
    skipped = {told.skipped.partition(":")[0] for told in soak.rounds if told.skipped}
    assert {told.fault for told in soak.rounds} | skipped == {"", *faults.FAULTS}
    assert skipped <= {"oom kill"}  # it takes a control group that may be divided; a fake does all else


@pytest.mark.long
@pytest.mark.engine
@pytest.mark.timeout(1800)
def test_each_fault_once_on_a_real_engine_is_green(real_soaked: Place) -> None:
    soak = soak_of(real_soaked, every=1, names=list(faults.FAULTS))
    assert soak.run(len(faults.FAULTS)) is Verdict.HOLDS, said(soak)
    assert len(soak.rounds) == len(faults.FAULTS) == 25
    skipped = {told.skipped.partition(":")[0] for told in soak.rounds if told.skipped}
    assert {"wedge", "black hole"} <= skipped <= {"wedge", "black hole", "oom kill"}
    assert {told.fault for told in soak.rounds} == {"", *faults.FAULTS} - skipped


@pytest.mark.long
@pytest.mark.parametrize("name", ["stopped server", "ignored term", "port thief"])
def test_an_interrupted_soak_heals_the_fault_that_is_on(
    soaked: Place, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    soak = soak_of(soaked, every=1, names=[name])
    engine: set[Identity] = set()

    def interrupt(_: Hit) -> None:
        engine.update(observer.look(soaked.slot).everything)
        raise KeyboardInterrupt

    monkeypatch.setattr(soak, "_recovered", interrupt)  # what it waits for while a fault is on
    with pytest.raises(KeyboardInterrupt):
        soak.run(1)
    assert all(identity.liveness(one) is Liveness.DEAD for one in engine)
    assert not holding.is_held(soaked.slot)
    soaked.wait_empty()


@contextmanager
def a_lock(place: Place) -> Iterator[Callable[[Round], Round]]:
    """A membership lock of somebody who is none of the soak's front ends."""
    place.slot.prepare()
    with membership.join(place.slot, program="stuck"):
        yield lambda seen: seen


@contextmanager
def a_lost_request(_: Place) -> Iterator[Callable[[Round], Round]]:
    """A request that ended in nothing."""
    yield lambda seen: seen._replace(ended=[seen.ended[0]._replace(outcome="failed", why="lost"), *seen.ended])


PLANTED = {"locks are members": a_lock, "requests end well": a_lost_request}


@pytest.mark.long
@pytest.mark.parametrize("invariant", PLANTED)
def test_what_is_planted_turns_the_run_red(soaked: Place, invariant: str) -> None:
    with PLANTED[invariant](soaked) as plant:
        soak = soak_of(soaked, every=9, plant=plant)
        assert soak.run(1) is Verdict.BROKEN
    assert invariant in said(soak)


def a_process(mark: str) -> subprocess.Popen[bytes]:
    """It carries the mark of a generation, and ends with its standard input."""
    program = "import sys; sys.stdin.read()"
    environment = {**os.environ, GENERATION_VARIABLE: mark}
    return subprocess.Popen([sys.executable, "-S", "-c", program], stdin=subprocess.PIPE, env=environment)


@pytest.mark.long
@pytest.mark.parametrize(("over", "invariant"), [(False, "engine as planned"), (True, "nothing outside the records")])
def test_a_process_too_many_turns_the_run_red(soaked: Place, over: bool, invariant: str) -> None:
    """A duplicate, as a supervisor leaves it that starts a server twice; and an orphan, of a generation that is over."""
    started: list[subprocess.Popen[bytes]] = []
    soak = soak_of(soaked, every=1, names=["proxy"])
    marks: list[str] = []

    def plant() -> None:
        now = next(generation for group, generation in soaked.slot.generations() if group == "chat")
        marks.append(now)
        if not started and (not over or marks[0] != now):
            started.append(a_process(marks[0]))

    soak.before_a_look = plant
    try:
        assert soak.run(6 if over else 1) is Verdict.BROKEN
        assert started
        assert invariant in said(soak)
    finally:
        for one in started:
            one.communicate()


def test_the_command_says_what_it_would_do_and_refuses_what_is_not_there(place: Place) -> None:
    done = place.cli("soak", "--dry-run", "--rounds", "4", "--every", "2", "--faults", "proxy,keeper")
    assert (done.returncode, done.stdout.split()) == (0, ["1", "2", "proxy", "3", "4", "keeper"])
    assert place.cli("soak", "--faults", "meteor").returncode == 2
    assert place.cli("soak", "compare", "a").returncode == 2
    place.assert_never_started()
