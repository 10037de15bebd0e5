"""How far a load is, as an operator sees it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

from tests.engine.kit import Launch, write_model
from tests.support import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.engine.place import Place

pytestmark = pytest.mark.process
SIZE = 8 << 20


def big_model(folder: Path) -> Path:
    """A whole model with so much behind it that a share of it can be seen."""
    path = folder / "big.gguf"
    write_model(path, "llama")
    with path.open("r+b") as file:
        file.truncate(SIZE)
    return path


def test_a_load_shows_how_far_it_is_whether_the_model_is_mapped_or_read(place: Place) -> None:
    model = big_model(place.home)
    mapped = Launch("chat", model, knobs={"load": 600, "map_model": 0.5})
    read = Launch("embed", model, knobs={"load": 600, "read_model": 0.25})
    blind = Launch("blind", model, knobs={"load": 600})
    place.configure({"chat": (mapped,), "embed": (read,), "blind": (blind,)})
    run = place.run(wait=False)
    run.wait_said("embed: starting")

    def loading(name: str) -> dict[str, Any] | None:
        (server,) = place.group(name)["servers"]
        found: dict[str, Any] | None = server["loading"]
        return found

    half = wait_until(lambda: loading("chat"), within=30, what="the mapped one is seen")
    quarter = wait_until(lambda: loading("embed"), within=30, what="the one that reads is seen")
    assert half is not None
    assert quarter is not None
    assert half["of"] == quarter["of"] == SIZE
    assert SIZE / 2 <= half["bytes"] < SIZE, "by pages that the kernel maps around those that are touched, too"
    assert SIZE / 4 <= quarter["bytes"] < SIZE
    assert abs(half["moved"] - time.time()) < 600
    assert loading("blind") is None, "what does not show is not made up"
    run.wait_said(f"chat: loading chat: {100 * half['bytes'] // SIZE} %, ")  # also of one that has stopped
    run.wait_said("embed: loading embed: ")
