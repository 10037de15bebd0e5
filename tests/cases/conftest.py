"""The engine tests' kit and place, and one engine that stands for as long as a module's tests only look at it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.engine.conftest import kit, place
from tests.engine.kit import Kit, Launch
from tests.engine.place import Place

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["kit", "place"]


@pytest.fixture(scope="module")
def standing(kit: Kit) -> Iterator[Place]:
    """A place whose engine runs, with one member (`fronts[0]`). Its chat server writes 256 KiB to its log for every
    request and takes a second to die. Tests leave it as they found it."""
    place = Place(kit)
    chat = Launch("chat", knobs={"log_bytes": 1 << 18, "term": 1.0})
    place.configure({"chat": (chat,), "embed": (Launch("embed", kit.embed),)})
    try:
        place.member("standing")
        yield place
    finally:
        place.close()
