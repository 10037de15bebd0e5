"""What is outside a generation's processes: its command is run until it succeeds, by whoever finds it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from supervisor import leftovers, undoing
from supervisor.slot import Slot

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.process


@pytest.fixture
def slot(tmp_path: Path) -> Slot:
    slot = Slot(tmp_path / "slot")
    slot.prepare()
    return slot


def leave(slot: Slot, script: str, generation: str = "ab12") -> Path:
    path = slot.generation_undo("web", generation)
    path.write_text(undoing.text_of([sys.executable, "-I", "-S", "-c", script], {"WHO": "us"}))
    return path


def test_one_that_succeeds_is_run_once_with_its_environment(slot: Slot, tmp_path: Path) -> None:
    script = f"import os; open({str(tmp_path / 'did')!r}, 'a').write(os.environ['WHO'])"
    path = leave(slot, script)
    keys = slot.generation_config("web", "ab12").with_suffix(".keys")
    keys.write_text("sesame\n")
    assert slot.undone() == [("web", "ab12")]
    assert leftovers.end_outside(slot) == (1, [])
    assert not keys.exists()
    assert leftovers.end_outside(slot) == (0, [])
    assert not path.exists()
    assert (tmp_path / "did").read_text() == "us"


def test_one_that_fails_stays_and_says_its_last_words(slot: Slot) -> None:
    path = leave(slot, "import sys; sys.exit('the engine is away')")
    assert "the engine is away" in undoing.undo(path)
    assert leftovers.clear(slot) == 0
    done, (trouble,) = leftovers.end_outside(slot)
    assert done == 0
    assert "web: what is left outside cannot be ended: the engine is away" in trouble
    assert slot.undone() == [("web", "ab12")]


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"argv": ["/none/such"], "environment": {}}', '{"argv": 1, "environment": 2}']
)
def test_one_that_cannot_be_read_or_run_stays_and_harms_nobody(text: str, slot: Slot) -> None:
    path = slot.generation_undo("web", "ab12")
    path.write_text(text)
    assert undoing.undo(path)
    assert path.exists()


def test_what_was_never_there_is_undone(slot: Slot) -> None:
    assert undoing.undo(slot.generation_undo("web", "ab12")) == ""
