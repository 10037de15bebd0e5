"""The gateway's counts beside its callers': equal but for what is under way, and per keeper's life."""

from __future__ import annotations

import pytest

from chaos.soak.ledger import Ledger, read
from chaos.soak.seen import Counted, Ended


def page(start: float, **counts: int) -> str:
    lines = [f'queenright_gateway_requests_total{{group="chat",outcome="{name}"}} {n}.0' for name, n in counts.items()]
    return "\n".join(["# HELP x", f"queenright_keeper_start_time_seconds {start}", *lines, ""])


def ended(at: float, outcome: str = "complete", way: str = "gateway") -> Ended:
    return Ended(way, "chat", outcome, 0.5, began=at - 0.5, first_byte=True)


def row(found: list[Counted] | None, outcome: str = "complete") -> Counted:
    assert found
    return next(one for one in found if one.outcome == outcome)


def test_a_page_is_read_over_its_groups_and_another_is_none() -> None:
    text = page(1.5, answered=3) + 'queenright_gateway_requests_total{group="embed",outcome="answered"} 4.0\n'
    assert read(text) == (1.5, {"answered": 7})
    assert read("<html>") is None


@pytest.mark.parametrize(("counted", "holds"), [(1, False), (2, True), (3, True), (4, True), (5, False)])
def test_what_is_counted_is_what_its_callers_had_but_for_the_last_and_what_is_under_way(
    counted: int, holds: bool
) -> None:
    ledger = Ledger()
    assert ledger.reckon(page(1.0, answered=10), 100.0, 100.1, 0) == []
    ledger.note([ended(101.0), ended(102.0), ended(109.5), ended(109.0, way="client")])
    found = row(ledger.reckon(page(1.0, answered=10 + counted), 110.0, 110.1, 1))
    assert (found.least, found.counted, found.most) == (2, counted, 4)
    assert (found.least <= found.counted <= found.most) is holds


def test_each_keepers_life_has_a_base_of_its_own() -> None:
    ledger = Ledger()
    ledger.reckon(page(1.0, answered=10), 100.0, 100.1, 0)
    ledger.note([ended(105.0), ended(106.0, "interrupted")])
    assert ledger.reckon(page(2.0, answered=1), 110.0, 110.1, 0) == []  # what the killed one counted is lost with it
    ledger.note([ended(115.0)])
    found = ledger.reckon(page(2.0, answered=2), 120.0, 120.1, 0)
    assert row(found) == Counted("complete", 1, 1, 1)
    assert row(found, "interrupted") == Counted("interrupted", 0, 0, 0)


def test_a_refusal_may_go_uncounted_and_what_nobody_was_told_may_not_be_counted() -> None:
    ledger = Ledger()
    ledger.reckon(page(1.0), 100.0, 100.1, 0)
    ledger.note([ended(102.0, "refused")])
    found = ledger.reckon(page(1.0, error=1), 110.0, 110.1, 0)
    assert row(found, "refused") == Counted("refused", 0, 0, 1)
    assert row(found, "failed") == Counted("failed", 0, 1, 0)
