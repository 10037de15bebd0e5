"""Every invariant of the soak can fail: for each there is a round that breaks it and no other, and one that it cannot judge."""

from __future__ import annotations

import os
import signal
from math import inf
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaos import interrupting
from chaos.interrupting import interruptible
from chaos.observer import Sighting
from chaos.soak import faults, invariants
from chaos.soak.seen import Counted, Ended, Execution, Kill, Round, Usage, own_memory, usage_of
from chaos.soak.soak import Soak
from chaos.soak.verdicts import Judgement, Verdict, worst
from supervisor.identity import Identity
from supervisor.slot import Slot

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def who(pid: int) -> Identity:
    return Identity("boot", 1, pid, pid * 10)


def request(outcome: str = "complete", way: str = "client", role: str = "chat", **facts: Any) -> Ended:
    """One that was under way at 100 s, for a second, with its first byte after half of it."""
    known = {"id": "r1", "kind": "chat", "began": 100.0, "first_s": 0.5, "deadline_s": 60.0, "text": "bees"}
    first = facts.pop("first_byte", True)
    facts = {**known, **({} if first else {"first_s": None, "text": ""}), **facts}
    return Ended(way, role, outcome, facts.pop("seconds", 1.0), first_byte=first, **facts)


def killed(*touched: str, at: float = 100.2, until: float = 103.0) -> Kill:
    return Kill(at, until, 7, "proxy", (3,), frozenset(touched))


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
        request(),
        request("refused", "gateway", first_byte=False, seconds=60.2, id="r2"),
        request("interrupted", id="r3"),
        request("interrupted", "gateway", "embed", kind="embeddings", id="r4"),
        request("interrupted", "gateway", "embed", first_byte=False, id="r5"),
    ],
    kills=[killed("talk", "keeper")],
    usage=None,
    open=[("r6", -20.0)],
    served={"r1": [Execution(100.1, 4, 12)], "r3": [Execution(100.1, 4), Execution(100.4, 5)]},
    keeps_receipts=True,
    controls={("chat", 0): "bees"},
    ledger=[Counted("complete", 3, 4, 4)],
    promises=["chat"],
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
    "one promise a group": [{"promises": ["chat", "chat"]}, {"promises": ["old"]}],
    "requests end well": [
        {"ended": [request("failed", why="RuntimeError")]},
        {"ended": [request("overdue")]},
        {"ended": [request("unreachable", "gateway", first_byte=False)]},
        {"kills": [killed("warden")], "ended": [request("unreachable", first_byte=False)]},
        {"ended": [request("interrupted", first_byte=False)]},
        {"ended": [request("interrupted", role="embed")]},
        {"kills": [killed("embed")], "ended": [request("interrupted", "gateway")]},
        {"kills": [killed("talk")], "ended": [request("interrupted", "gateway", first_byte=False)]},
        {"kills": [killed("talk", at=101.5)], "ended": [request("interrupted")]},
        {"kills": [killed("talk", at=90.0, until=99.0)], "ended": [request("interrupted")]},
    ],
    "within the deadline": [
        {"ended": [request(first_s=70.0, seconds=80.0)]},
        {"ended": [request("refused", first_byte=False, seconds=70.0)]},
    ],
    "no request lost": [{"open": [("r6", 0.1)]}, {"open": [("r6", inf)]}],
    "answers have receipts": [{"served": {}}, {"served": {"r1": [Execution(100.1, 4)]}}],
    "served once": [
        {"strays": ["r9, which nobody asked"]},
        {"kills": [], "ended": [request()], "served": {"r1": [Execution(100.1, 4, 12), Execution(100.2, 4, 12)]}},
        {"served": {"r1": [Execution(100.1, 4, 12), Execution(100.2, 5), Execution(100.3, 6)]}},
        {"served": {"r1": [Execution(100.1, 4, 12), Execution(100.6, 5)]}},
    ],
    "texts as the control": [
        {"ended": [request(text="bees bees")]},
        {"ended": [request(text="be")]},
        {"ended": [request("interrupted", text="wasps")]},
    ],
    "ledger reconciles": [{"ledger": [Counted("complete", 3, 2, 4)]}, {"ledger": [Counted("refused", 0, 1, 0)]}],
}
UNSEEN: dict[str, dict[str, Any]] = {
    "engine as planned": {"sighting": None},
    "nothing outside the records": {"marked": None},
    "no zombie": {"zombies": None},
    "locks are members": {"member_locks": None},
    "one promise a group": {"promises": None},
    "ledger reconciles": {"ledger": None},
}


def verdicts(seen: Round) -> dict[str, Verdict]:
    return {one.invariant: one.verdict for one in invariants.judge(seen)}


def test_a_good_round_is_green_and_each_invariant_has_a_round_that_breaks_it() -> None:
    assert set(verdicts(GREEN).values()) == {Verdict.HOLDS}
    assert BREAKS.keys() == invariants.EACH_ROUND.keys()


def test_who_finds_no_gateway_has_its_reason_only_where_the_warden_was_killed() -> None:
    seen = GREEN._replace(
        ended=[request("unreachable", "gateway", first_byte=False)], kills=[killed("talk", "keeper", "warden")]
    )
    assert verdicts(seen)["requests end well"] is Verdict.HOLDS


def test_a_gateway_that_was_killed_took_those_with_it_that_had_no_byte_yet() -> None:
    seen = GREEN._replace(ended=[request("interrupted", "gateway", first_byte=False)], kills=[killed("keeper")])
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


def test_receipts_that_cannot_be_read_are_unknown_and_where_none_are_kept_nothing_is_said() -> None:
    found = verdicts(GREEN._replace(served=None))
    assert {name for name, one in found.items() if one is Verdict.UNKNOWN} == {"answers have receipts", "served once"}
    found = verdicts(GREEN._replace(served={}, keeps_receipts=False, controls={}))
    assert invariants.EACH_ROUND.keys() - found.keys() == {
        "answers have receipts",
        "served once",
        "texts as the control",
    }
    assert set(found.values()) == {Verdict.HOLDS}


def test_counts_that_were_held_against_nothing_are_not_judged() -> None:
    """Without a gateway, or at the first reading of a keeper's life: that was green."""
    assert "ledger reconciles" not in verdicts(GREEN._replace(ledger=[]))


def test_memory_that_cannot_be_read_is_unknown_and_not_0(monkeypatch: pytest.MonkeyPatch) -> None:
    """A figure of 0 in every round is as flat as any."""
    me = who(os.getpid())
    assert usage_of([me]) is not None
    monkeypatch.setattr("chaos.soak.seen.own_memory", lambda pid: own_memory(2**30))
    assert usage_of([me]) is None


def test_a_leftover_that_nobody_could_look_for_is_not_nothing_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    soak = Soak(Slot(tmp_path), tmp_path / "queenright.toml", [])
    assert soak._nothing_left().verdict is Verdict.HOLDS
    monkeypatch.setattr(soak._gatherer, "marked", lambda: None)
    assert soak._nothing_left().verdict is Verdict.UNKNOWN


def test_a_second_ctrl_c_does_not_cut_the_healing_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A terminal that is closed sends SIGHUP, and its shell SIGTERM after it."""
    soak, healed = Soak(Slot(tmp_path), tmp_path / "queenright.toml", []), []

    def heal() -> None:
        signal.raise_signal(signal.SIGTERM)
        healed.append(True)

    monkeypatch.setattr(soak.load, "start", lambda: signal.raise_signal(signal.SIGINT))
    soak._undo.callback(heal)
    with interruptible(), pytest.raises(KeyboardInterrupt):
        soak.run(1)
    assert healed == [True]
    assert soak.verdict is not Verdict.HOLDS
    assert capfd.readouterr().err == interrupting.WORD.decode(), "seconds without a word, or two of them"


@pytest.mark.parametrize("error", [KeyboardInterrupt(), ProcessLookupError("gone")])
def test_a_run_that_was_cut_short_is_not_green(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    """All rounds until then held, and the report said that the run did."""

    def start() -> None:
        soak.ends.append(Judgement("a round", Verdict.HOLDS))
        raise error

    soak = Soak(Slot(tmp_path), tmp_path / "queenright.toml", [])
    monkeypatch.setattr(soak.load, "start", start)
    monkeypatch.setattr(soak, "_end", lambda: None)
    with pytest.raises(type(error)):
        soak.run(25)
    assert soak.verdict is Verdict.UNKNOWN
    assert soak.ends[-1].seen.startswith("0 of 25: ")


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
