"""Every test of the client leaves no thread behind; an exception in a script's thread fails its test."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from tests.client.asking import use_world

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def no_thread_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    left = [thread.name for thread in threading.enumerate() if thread not in before]
    left = [name for name in left if not name.startswith("Trio thread")]  # trio keeps its workers for 10 s
    assert not left, left


@pytest.fixture(params=["threads", "trio"])
def both_worlds(request: pytest.FixtureRequest) -> Iterator[None]:
    """Run the test with either client."""
    use_world(request.param)
    yield
    use_world("threads")
