"""When a front end that has left its engine may believe that the memory is free, or that it stays in use."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from supervisor import control, departing, locks, membership
from supervisor.contract import Lifetime
from supervisor.control import ControlError
from supervisor.errors import LockTimeoutError
from supervisor.slot import Slot

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def slot(tmp_path: Path) -> Slot:
    slot = Slot(tmp_path / "slot")
    slot.prepare()
    return slot


@pytest.fixture
def says(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the keeper says; a test changes it."""
    facts: dict[str, Any] = {"state": "running", "lifetime": "members", "warm": []}

    def ask(*_: object, **__: object) -> dict[str, Any]:
        if not facts:
            raise ControlError("silent")
        return facts

    monkeypatch.setattr(control, "ask", ask)
    return facts


def test_an_engine_that_is_gone_is_not_waited_for(slot: Slot, says: dict[str, Any]) -> None:
    departing.wait_settled(slot, 0)
    departing.wait_settled(Slot(slot.path / "never"), 0)
    assert says


def test_it_waits_until_the_warden_is_gone(slot: Slot, says: dict[str, Any]) -> None:
    hold = locks.acquire(slot.warden_lock, timeout=0)
    threading.Timer(0.1, hold.release).start()
    departing.wait_settled(slot, 20)
    assert locks.is_held(slot.warden_lock) is False
    assert says


@pytest.mark.parametrize("changed", [{}, {"state": "stopping"}, {"state": "stopping", "warm": ["/x"]}, None])
def test_an_engine_that_does_not_end_is_an_error(
    slot: Slot, says: dict[str, Any], changed: dict[str, Any] | None
) -> None:
    if changed is None:
        says.clear()  # silent
    else:
        says.update(changed)
    with locks.acquire(slot.warden_lock, timeout=0), pytest.raises(LockTimeoutError, match="not gone within"):
        departing.wait_settled(slot, 0.05)


@pytest.mark.parametrize("changed", [{"lifetime": Lifetime.RUN.value}, {"warm": ["/x"]}])
def test_an_engine_that_stays_is_not_waited_for(slot: Slot, says: dict[str, Any], changed: dict[str, Any]) -> None:
    says.update(changed)
    with locks.acquire(slot.warden_lock, timeout=0):
        departing.wait_settled(slot, 0)


def test_an_engine_that_others_use_is_not_waited_for(slot: Slot, says: dict[str, Any]) -> None:
    with locks.acquire(slot.warden_lock, timeout=0), membership.join(slot, program="other"):
        departing.wait_settled(slot, 0)
    assert says
