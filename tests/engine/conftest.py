"""Fixtures of the engine tests. After every test another process looks for what is left of its engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.engine.kit import Kit, make_kit
from tests.engine.place import Place

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def kit(tmp_path_factory: pytest.TempPathFactory) -> Kit:
    """Models and the fake llama-server, made once."""
    return make_kit(tmp_path_factory.mktemp("engine-kit"))


@pytest.fixture
def place(kit: Kit) -> Iterator[Place]:
    """A slot of the test's own, checked at its end for anything left behind."""
    place = Place(kit)
    place.configure()
    try:
        yield place
    finally:
        place.close()
