"""What a process's use of an engine comes to when a rebuild fails. The engine is a slot with nothing in it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from supervisor.errors import EngineStartError
from supervisor.slot import Slot
from supervisor.tenure import Tenure
from tests.support import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def tenure(tmp_path: Path) -> Iterator[Tenure]:
    """One whose engine cannot be built."""
    slot = Slot(tmp_path / "slot")
    slot.prepare()

    def again(_: object) -> Any:
        raise EngineStartError(f"attempt {made.attempts} failed")

    membership = SimpleNamespace(slot=slot, leave=lambda: None)
    made = Tenure(cast("Any", SimpleNamespace(membership=membership)), again)
    yield made
    made.leave()


def test_who_waited_hears_of_the_failure_and_who_comes_later_has_it_tried_again(tenure: Tenure) -> None:
    began = tenure.attempts
    tenure.need(began)

    wait_until(lambda: tenure._failure is not None, what="it was tried")
    with pytest.raises(EngineStartError, match="attempt 1 failed"):
        tenure.need(began)
    later = tenure.attempts
    tenure.need(later)  # nothing was tried since it came
    wait_until(lambda: tenure.attempts > later, what="it is tried again")
