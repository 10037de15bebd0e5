"""Kinds with bugs in a real engine: each is its group's trouble, and the keeper goes on."""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.engine.test_command import DUMMY
from tests.support import wait_until

if TYPE_CHECKING:
    from tests.engine.place import Place

pytestmark = [pytest.mark.engine]

BUGGY_KEEPER = Path(__file__).with_name("buggy_keeper.py")


def broke_off(place: Place, name: str) -> bool:
    return bool(place.group(name)["unwatched"])


@pytest.mark.long
def test_a_bug_in_a_kind_is_its_groups_trouble_and_no_keeper_ends_of_it(place: Place) -> None:
    """It ended the keeper, and the next one, and the one after that."""
    words = [sys.executable, "-I", "-S", "-E", str(DUMMY), "--port", "{port}", "--events", str(place.home / "events")]
    lines = ["[groups.web]", 'kind = "command"', "[groups.web.options]", f"argv = {json.dumps(words)}"]
    lines += ['health = "/health"', "[[groups.web.launches]]", 'role = "web"', 'model = "dummy"']
    place.config.write_text(place.config.read_text() + "\n".join(lines) + "\n")
    place.front().open(wait=False, keeper=[str(BUGGY_KEEPER), "command:command,llama-swap:watch"])
    keeper = place.until(lambda: place.snapshot()["keeper"], within=60, what="a keeper")
    web = place.wait_state("failed", "web")
    assert "the engine kind command has a bug: its command raised ZeroDivisionError: division by zero" in web["reason"]
    for name in ("chat", "embed"):
        place.wait_state("running", name)
        wait_until(partial(broke_off, place, name), within=30, what="its watch broke off")
    chat = place.group("chat")
    assert "its watch raised ZeroDivisionError" in chat["unwatched"]
    assert (chat["restarts"], chat["state"]) == (0, "running")
    said = place.cli("logs", "keeper").stdout
    assert "keeper: command of the engine kind command: ZeroDivisionError" in said
    assert "buggy_keeper.py" in said
    shown = place.cli("status").stdout
    assert "the watch over its servers broke off" in shown
    after = place.snapshot()
    assert (after["keeper"]["pid"], after["warden"]["keeper_crashes"]) == (keeper["pid"], 0)
