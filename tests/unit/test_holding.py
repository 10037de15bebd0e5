"""Holds as files: whose, for how long, and by which clock."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from supervisor import holding, identity, records
from supervisor.holding import Term
from supervisor.slot import Slot

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
