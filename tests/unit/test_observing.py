"""What one process sees of a slot: who else uses it, and who holds it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from supervisor import holding, membership
from supervisor.contract import EngineSpec, GroupSpec, LaunchSpec
from supervisor.errors import HeldError, LockTimeoutError, SlotError, UnkillableError
from supervisor.identity import Identity
from supervisor.ladder import Decision, Rung
from supervisor.observing import View
from supervisor.slot import Slot

if TYPE_CHECKING:
    from pathlib import Path

WANTED = EngineSpec((GroupSpec("chat", "llama-swap", (LaunchSpec("chat", "m", "/m.gguf", 4096, 1),), "p"),))


@pytest.fixture
def slot(tmp_path: Path) -> Slot:
    made = Slot(tmp_path / "slot")
    made.prepare()
    return made


def test_an_empty_slot_is_built_in_unless_somebody_holds_it(slot: Slot) -> None:
    view = View(slot, WANTED)
    assert view.decide().rung is Rung.BUILD
    holding.place(slot, "ann", "a benchmark")
    decision = view.decide()
    assert decision.rung is Rung.HELD
    assert decision.reason.startswith("held by ann: a benchmark since 2")
    slot.hold_record.write_text("{")
    assert view.decide().rung is Rung.HELD  # unknown is not released
    slot.hold_record.unlink()
    assert view.decide().rung is Rung.BUILD


def test_only_the_handle_that_was_given_is_not_somebody_elses_use(slot: Slot) -> None:
    """A thread of ours may use the engine for something else: its handle counts like a stranger's."""
    with membership.join(slot, program="x") as own:
        assert View(slot, WANTED).others() == 1
        assert View(slot, WANTED, own=own).others() == 0
        with membership.join(slot, program="another thread"):
            assert View(slot, WANTED, own=own).others() == 1
        elsewhere = Slot(slot.path.with_name("elsewhere"))
        elsewhere.prepare()
        assert View(elsewhere, WANTED, own=own).others() == 0
    assert View(slot, WANTED, own=own).others() == 0


def test_members_that_cannot_be_counted_are_not_none(slot: Slot, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreadable(_: Slot) -> int:
        raise SlotError("it cannot be read")

    monkeypatch.setattr(membership, "count", unreadable)
    assert View(slot, WANTED).others() is None


def test_each_wait_in_vain_ends_with_its_own_error(slot: Slot) -> None:
    view = View(slot, WANTED)
    held = view.failure(Decision(Rung.HELD, "held by ann"), 15.0)
    assert isinstance(held, HeldError)
    assert "queenright release" in held.next_step
    silent = Decision(Rung.WAIT, "the engine's keeper does not answer yet")
    assert view.failure(silent, 15.0).what == "the engine's keeper does not answer yet, for 15 s"
    view.silence.saw(Identity("boot", 1, 7, 100), "D", began=0.0, now=2.0)
    timeout = view.failure(silent, 15.0)
    assert isinstance(timeout, LockTimeoutError)
    assert timeout.what.endswith("for 15 s (its warden, pid 7, is in state D)")
    view.unkillable = True
    stuck = view.failure(Decision(Rung.WAIT, "cannot be killed: pid 7"), 15.0)
    assert isinstance(stuck, UnkillableError)
    assert "pid 7" in stuck.what
