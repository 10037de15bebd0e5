"""When an engine that lives by its members is stopped."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio

from supervisor import last_out, locks, membership
from supervisor.errors import SlotError
from supervisor.slot import Slot
from tests.unit.group_bench import jumping

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


@pytest.fixture
def slot(tmp_path: Path) -> Slot:
    slot = Slot(tmp_path / "slot")
    slot.prepare()
    return slot


async def looks_until_it_stops(slot: Slot, monkeypatch: pytest.MonkeyPatch, used: Iterable[object]) -> int:
    """How often it counted, when each count finds what is told."""
    counts, left, stops = 0, iter(used), []

    def is_used(_: Slot) -> bool:
        nonlocal counts
        counts += 1
        found = next(left)
        if isinstance(found, Exception):
            raise found
        return bool(found)

    monkeypatch.setattr(membership, "is_used", is_used)
    with trio.fail_after(60):
        await last_out.watch(slot, lambda: False, lambda: stops.append("now"), lambda: None)
    assert stops == ["now"]
    return counts


@jumping
async def test_it_counts_again_once_nobody_can_join_any_more(slot: Slot, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody may have joined between the first count and the lock."""
    assert await looks_until_it_stops(slot, monkeypatch, [False, True, False, False]) == 4


@jumping
async def test_what_cannot_be_counted_is_used(slot: Slot, monkeypatch: pytest.MonkeyPatch) -> None:
    unknown = SlotError("members cannot be read")
    assert await looks_until_it_stops(slot, monkeypatch, [unknown, False, unknown, False, False]) == 5


@jumping
async def test_nothing_is_decided_while_somebody_else_decides(slot: Slot, monkeypatch: pytest.MonkeyPatch) -> None:
    hold = locks.acquire(slot.build_lock, timeout=0)
    async with trio.open_nursery() as nursery:

        async def let_go() -> None:
            await trio.sleep(10)
            hold.release()

        nursery.start_soon(let_go)
        began = trio.current_time()
        await looks_until_it_stops(slot, monkeypatch, iter(lambda: False, True))
        assert trio.current_time() - began >= 10
