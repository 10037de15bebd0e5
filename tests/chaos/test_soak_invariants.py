"""Every invariant of the soak can fail: for each there is a round that breaks it and no other, and one that it cannot judge."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaos.observer import Sighting
from chaos.soak import faults, invariants
from chaos.soak.seen import Ended, Round, Usage
from chaos.soak.verdicts import Judgement, Verdict, worst
from supervisor.identity import Identity

if TYPE_CHECKING:
    from collections.abc import Iterator


def who(pid: int) -> Identity:
    return Identity("boot", 1, pid, pid * 10)


WHOLE = Sighting(who(1), who(2), {"chat": who(3)}, {"chat": (who(4),)})
GREEN = Round(
    number=7,
    planned={"chat": 1},
    carriers={"chat": "talk", "embed": "embed"},
    sighting=WHOLE,
    marked=[(who(3), "g2"), (who(4), "g2")],
    current={"g2"},
    zombies=[],
    member_locks=[50, 51],
    front_ends=[51, 50],
    engines_beside=[],
    ended=[
        Ended("client", "chat", "complete", 0.1, first_byte=True),
        Ended("gateway", "chat", "refused", 9.0),
        Ended("client", "chat", "interrupted", 0.1, first_byte=True),
        Ended("gateway", "embed", "interrupted", 0.1, first_byte=True),
    ],
    killed={"talk", "keeper"},
    usage=None,
)

BREAKS: dict[str, list[dict[str, Any]]] = {
    "engine as planned": [
        {"sighting": WHOLE._replace(keeper=None)},
        {"sighting": WHOLE._replace(leaders={})},
        {"sighting": WHOLE._replace(servers={"chat": (who(4), who(5))})},
        {"sighting": WHOLE._replace(servers={**WHOLE.servers, "old": (who(5),)})},
        {"planned": {"chat": 1, "embed": 1}},
    ],
    "nothing outside the records": [{"marked": [*(GREEN.marked or []), (who(9), "g1")]}],
    "no zombie": [{"zombies": [12]}],
    "locks are members": [{"member_locks": [50, 51, 52]}, {"member_locks": [50]}],
    "one engine": [{"engines_beside": ["/s-private/1"]}],
    "requests end well": [
        {"ended": [Ended("client", "chat", "failed", 0.1, why="RuntimeError")]},
        {"ended": [Ended("client", "chat", "overdue", 180.0)]},
        {"ended": [Ended("gateway", "chat", "unreachable", 0.1)]},
        {"killed": {"warden"}, "ended": [Ended("client", "chat", "unreachable", 0.1)]},
        {"ended": [Ended("client", "chat", "interrupted", 0.1, first_byte=False)]},
        {"ended": [Ended("client", "embed", "interrupted", 0.1, first_byte=True)]},
        {"killed": {"embed"}, "ended": [Ended("gateway", "chat", "interrupted", 0.1, first_byte=True)]},
        {"killed": {"talk"}, "ended": [Ended("gateway", "chat", "interrupted", 0.1, first_byte=False)]},
    ],
}
UNSEEN: dict[str, dict[str, Any]] = {
    "engine as planned": {"sighting": None},
    "nothing outside the records": {"marked": None},
    "no zombie": {"zombies": None},
    "locks are members": {"member_locks": None},
}


def verdicts(seen: Round) -> dict[str, Verdict]:
    return {one.invariant: one.verdict for one in invariants.judge(seen)}


def test_a_good_round_is_green_and_each_invariant_has_a_round_that_breaks_it() -> None:
    assert set(verdicts(GREEN).values()) == {Verdict.HOLDS}
    assert BREAKS.keys() == invariants.EACH_ROUND.keys()


def test_who_finds_no_gateway_has_its_reason_only_where_the_warden_was_killed() -> None:
    seen = GREEN._replace(ended=[Ended("gateway", "chat", "unreachable", 0.1)], killed={"talk", "keeper", "warden"})
    assert verdicts(seen)["requests end well"] is Verdict.HOLDS


def test_a_gateway_that_was_killed_took_those_with_it_that_had_no_byte_yet() -> None:
    seen = GREEN._replace(ended=[Ended("gateway", "chat", "interrupted", 0.1, first_byte=False)], killed={"keeper"})
    assert verdicts(seen)["requests end well"] is Verdict.HOLDS


def each_break() -> Iterator[Any]:
    for name, changes in BREAKS.items():
        for number, change in enumerate(changes):
            yield pytest.param(name, change, id=f"{name} {number}")


@pytest.mark.parametrize(("name", "change"), list(each_break()))
def test_what_breaks_an_invariant_breaks_it_alone(
    name: str, change: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = GREEN._replace(**change)
    assert {other for other, verdict in verdicts(seen).items() if verdict is not Verdict.HOLDS} == {name}
    assert verdicts(seen)[name] is Verdict.BROKEN
    monkeypatch.delitem(invariants.EACH_ROUND, name)  # without it nothing else would have noticed
    assert worst(invariants.judge(seen)) is Verdict.HOLDS


@pytest.mark.parametrize(("name", "change"), list(UNSEEN.items()))
def test_what_could_not_be_looked_at_is_unknown_and_not_green(name: str, change: dict[str, Any]) -> None:
    seen = GREEN._replace(**change)
    assert verdicts(seen)[name] is Verdict.UNKNOWN
    assert worst(invariants.judge(seen)) is Verdict.UNKNOWN


def test_an_invariant_that_crashes_has_found_out_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(_: Round) -> tuple[Verdict, str]:
        raise ZeroDivisionError("a bug")

    monkeypatch.setitem(invariants.EACH_ROUND, "no zombie", crash)
    assert verdicts(GREEN)["no zombie"] is Verdict.UNKNOWN


def test_nothing_judged_is_not_green() -> None:
    assert worst([]) is Verdict.UNKNOWN
    both = [Judgement("a", Verdict.UNKNOWN), Judgement("b", Verdict.BROKEN), Judgement("c", Verdict.HOLDS)]
    assert worst(both) is Verdict.BROKEN


def history(growth: int, rounds: int = 60) -> list[dict[str, Usage] | None]:
    return [{"warden": Usage(100_000_000 + growth * n, 40, 5)} for n in range(rounds)]


@pytest.mark.parametrize(
    ("growth", "verdict"), [(0, Verdict.HOLDS), (5_000_000, Verdict.BROKEN), (100_000, Verdict.HOLDS)]
)
def test_a_leak_of_5_mb_a_round_is_found_and_noise_is_none__llama_cpp_23446(growth: int, verdict: Verdict) -> None:
    found = {one.invariant: one.verdict for one in invariants.flat(history(growth))}
    assert found == {
        "memory is flat": verdict, "descriptors is flat": Verdict.HOLDS, "threads is flat": Verdict.HOLDS,
    }  # fmt: skip


def test_a_short_run_is_not_judged_by_its_slope_and_one_that_was_not_measured_is_unknown() -> None:
    assert invariants.flat(history(5_000_000, 10)) == []
    assert {one.verdict for one in invariants.flat([None] * 60)} == {Verdict.UNKNOWN}


@given(st.integers(1, 7), st.lists(st.sampled_from(sorted(faults.FAULTS)), max_size=4))
def test_faults_come_in_turn_every_so_many_rounds(every: int, names: list[str]) -> None:
    turns = faults.schedule(names, every)
    found = [next(turns) for _ in range(every * 9)]
    wanted = [names[n % len(names)] for n in range(9)] if names else []
    assert [one for one in found if one is not None] == wanted
    assert all((one is not None) == ((n + 1) % every == 0) for n, one in enumerate(found)) or not names
