"""Front ends as processes: what they say is kept, and what they did not say is explained by how they ended."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import pytest

from chaos import driving
from chaos.driving import Driven
from chaos.observer import NotObservedError

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.process

PATIENCE_S = 30.0

PLAYED = """
import json, sys
def say(**facts): print(json.dumps(facts), flush=True)
say(what="open", how="build")
for line in sys.stdin:
    order = json.loads(line)
    if order["do"] == "leave":
        sys.exit(3)
    if order["do"] == "be deaf":
        while True: sys.stdin.buffer.raw.read(1) or __import__("signal").pause()
    if order["do"] == "fail":
        say(error="SlotError", what="/the/slot is a file", next_step="")
        sys.exit(1)
    for number in (1, 2):
        say(what="answer", id=number, outcome="complete")
"""
"""In the place of frontend.py, which would need an engine."""


@pytest.fixture
def played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "played.py"
    path.write_text(PLAYED)
    monkeypatch.setattr(driving, "FRONT_END", path)
    return tmp_path / "unused.toml"


def test_what_it_says_is_kept_and_found_by_its_facts(played: Path) -> None:
    front = Driven(played, "bee")
    assert front.hear("open", PATIENCE_S)["how"] == "build"
    assert os.getpgid(front.process.pid) == front.process.pid, "a Ctrl-C would end it with a traceback on the terminal"
    front.tell(do="ask")
    assert front.hear("answer", PATIENCE_S, id=2)["outcome"] == "complete"
    assert front.hear("answer", PATIENCE_S, id=1)["outcome"] == "complete"  # said before, and still there
    assert [line["id"] for line in front.answers()] == [1, 2]
    with pytest.raises(NotObservedError, match=r"^front end bee did not say 'answer' within 0\.01 s$"):
        front.hear("answer", 0.01, id=3)
    assert front.leave() == 3
    front.kill()


def test_one_that_ended_is_quoted(played: Path) -> None:
    front = Driven(played, "bee")
    front.tell(do="fail")
    began = time.monotonic()
    with pytest.raises(NotObservedError, match=r"'answer' within 30 s; it ended: SlotError: /the/slot is a file$"):
        front.hear("answer", PATIENCE_S)
    assert time.monotonic() - began < PATIENCE_S  # it is not waited for
    front.tell(do="ask")  # nobody is there to hear it
    front.kill()


def test_one_that_was_killed_ended_without_a_word(played: Path) -> None:
    front = Driven(played, "bee")
    front.hear("open", PATIENCE_S)
    front.kill()
    with pytest.raises(NotObservedError, match=r"'answer' within 30 s; it ended: without a word$"):
        front.hear("answer", PATIENCE_S)


def test_one_that_does_not_leave_is_named(played: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    front = Driven(played, "bee")
    front.tell(do="be deaf")
    monkeypatch.setattr(driving, "LEAVE_LIMIT", 0.1)
    with pytest.raises(NotObservedError, match="front end bee did not leave"):
        front.leave()
    monkeypatch.undo()
    front.kill()


def test_a_real_front_end_that_is_refused_says_why(tmp_path: Path) -> None:
    front = Driven(tmp_path / "missing.toml", "bee")
    with pytest.raises(NotObservedError, match=r"it ended: ConfigError: .*missing\.toml"):
        front.hear("open", PATIENCE_S)
    assert front.leave() != 0
    front.kill()
