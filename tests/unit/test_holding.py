"""Holds as files: whose, for how long, and by which clock."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
import trio

from supervisor import acts, hold_watch, holding, identity, locks, records
from supervisor.errors import UsageError
from supervisor.holding import Term
from supervisor.slot import Slot
from tests.unit.group_bench import jumping

if TYPE_CHECKING:
    from pathlib import Path

HOUR = 3600.0


@pytest.fixture
def slot(tmp_path: Path) -> Slot:
    slot = Slot(tmp_path / "slot")
    slot.prepare()
    return slot


def test_a_group_is_held_by_itself_and_the_first_hold_stays(slot: Slot) -> None:
    holding.place(slot, "ann", "benchmark", "chat")
    assert holding.place(slot, "bob", "mine", "chat").who == "ann"
    assert not holding.is_held(slot)
    assert {name: hold.reason for name, hold in holding.on_groups(slot).items()} == {"chat": "benchmark"}
    holding.place(slot, "bob", "driver")
    assert holding.is_held(slot)
    assert holding.lift(slot) is not None
    assert list(holding.on_groups(slot)) == ["chat"]
    assert holding.lift(slot, "chat") is not None
    assert holding.on_groups(slot) == {}


def test_a_hold_whose_time_is_over_is_none_and_the_next_one_takes_its_place(slot: Slot) -> None:
    hold = holding.place(slot, "ann", "benchmark", for_s=HOUR)
    assert " until " in hold.describe()
    assert holding.find(slot) == hold
    assert hold.term is not None
    over = hold._replace(term=hold.term._replace(at=hold.term.at - 2 * HOUR))
    records.write(slot.hold_record, over.plain(), version=holding.HOLD_VERSION)
    assert not holding.is_held(slot)
    assert holding.find(slot) is None
    assert holding.over(slot) == [""]
    assert holding.place(slot, "bob", "mine").who == "bob"
    assert holding.over(slot) == []


@pytest.mark.parametrize("step", [-10 * HOUR, 10 * HOUR])
def test_a_step_of_the_clock_neither_ends_nor_lengthens_a_hold(step: float, monkeypatch: pytest.MonkeyPatch) -> None:
    term, now = Term.of(HOUR), time.time()
    monkeypatch.setattr(time, "time", lambda: now + step)
    assert 0 < term.left_s <= HOUR


def test_over_a_reboot_the_time_of_day_is_all_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    term = Term.of(HOUR)
    monkeypatch.setattr(identity, "boot_id", lambda: "the next one")
    assert HOUR - 60 < term.left_s <= HOUR
    monkeypatch.setattr(time, "time", lambda: term.until + 1)
    assert term.left_s < 0


@pytest.mark.parametrize("text", ["", "{", '{"version": 1, "data": {"who": "a", "term": {"until": "x"}}}'])
def test_what_cannot_be_read_is_a_hold_and_never_over(slot: Slot, text: str) -> None:
    slot.hold_record.write_text(text)
    slot.hold_record_of("chat").write_text(text)
    assert holding.is_held(slot)
    assert list(holding.on_groups(slot)) == ["chat"]
    assert holding.over(slot) == []


def test_one_of_before_there_were_terms_is_read(slot: Slot) -> None:
    facts = {"who": "ann", "reason": "driver", "since": 1.0}
    records.write(slot.hold_record, facts, version=holding.HOLD_VERSION)
    assert holding.find(slot) == holding.SlotHold("ann", "driver", 1.0)


# --- in a keeper --------------------------------------------------------------------------------------------------------


class Keeper:
    """What of one is watched and acted on."""

    def __init__(self, slot: Slot, *held_groups: str) -> None:
        self.slot, self.stopping = slot, ""
        self.asked: list[list[str]] = []
        self.tree = SimpleNamespace(
            held="",
            held_groups=dict.fromkeys(held_groups, "why"),
            hold=self.asked.append,
            hold_groups=self.asked.append,
        )

    async def changed(self) -> None:
        await trio.sleep_forever()

    async def act(self, op: str, question: dict[str, Any]) -> None:
        assert op == "release"
        self.asked.append(question["groups"])
        for name in question["groups"]:
            self.tree.held_groups.pop(name, None)


def let_end(slot: Slot, group: str) -> None:
    """A hold of that group is there, and its time is over."""
    hold = holding.place(slot, "ann", "benchmark", group, for_s=HOUR)
    assert hold.term is not None
    over = hold._replace(term=hold.term._replace(at=hold.term.at - 2 * HOUR))
    records.write(slot.hold_record_of(group), over.plain(), version=holding.HOLD_VERSION)


@jumping
async def watch_for_a_while(keeper: Keeper, seconds: float) -> None:
    with trio.move_on_after(seconds):
        await hold_watch.run(cast("hold_watch.Keeper", keeper))


def test_what_is_over_is_released_and_what_is_not_stays(slot: Slot) -> None:
    let_end(slot, "chat")
    holding.place(slot, "ann", "benchmark", "embed", for_s=HOUR)
    keeper = Keeper(slot, "chat", "embed")
    watch_for_a_while(keeper, 10)
    assert keeper.asked == [["chat"]]
    assert slot.held_groups() == ["embed"]


def test_no_hold_is_taken_away_while_somebody_may_be_writing_the_next_one(slot: Slot) -> None:
    """It would be another one by the time its file goes, and the keeper would hold for good what nothing says."""
    let_end(slot, "chat")
    keeper = Keeper(slot, "chat")
    with locks.acquire(slot.build_lock, timeout=1.0):
        watch_for_a_while(keeper, 10)
        assert not keeper.asked
        holding.place(slot, "bob", "another", "chat", for_s=HOUR)
    watch_for_a_while(keeper, 10)
    assert not keeper.asked
    assert holding.on_groups(slot)["chat"].who == "bob"


def test_a_hold_that_takes_the_place_of_one_that_is_over_stays(slot: Slot, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was written between the look and the lock."""
    let_end(slot, "chat")
    take = locks.try_acquire

    def late(path: Path) -> locks.Hold | None:
        holding.place(slot, "bob", "another", "chat", for_s=HOUR)
        return take(path)

    monkeypatch.setattr(locks, "try_acquire", late)
    keeper = Keeper(slot, "chat")
    watch_for_a_while(keeper, 10)
    assert not keeper.asked
    assert holding.on_groups(slot)["chat"].who == "bob"


def test_a_file_that_cannot_be_taken_away_is_told_once(slot: Slot, monkeypatch: pytest.MonkeyPatch) -> None:
    let_end(slot, "chat")
    holding.place(slot, "ann", "benchmark", "embed")
    keeper = Keeper(slot, "chat", "embed")

    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(holding, "lift", refuse)
    watch_for_a_while(keeper, 60)
    assert keeper.asked == [["chat"]]


@pytest.mark.parametrize("groups", [["chat"], []])
@pytest.mark.parametrize("why_not", ["released before it was told", "its time is over already"])
def test_a_keeper_holds_nothing_that_no_file_says(slot: Slot, groups: list[str], why_not: str) -> None:
    """Nothing would ever end it: a hold is released by who takes its file away."""
    if why_not.startswith("its time"):
        let_end(slot, groups[0] if groups else "")
    keeper = Keeper(slot)
    with pytest.raises(UsageError, match="is over already"):
        acts.hold(cast("acts.Keeper", keeper), {"groups": groups, "why": "held by ann"})
    assert keeper.asked == []
