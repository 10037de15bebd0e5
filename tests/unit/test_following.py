"""Reading what others append, over its being cut; and what stands in events.jsonl, in words."""

from __future__ import annotations

import ast
import time
from typing import TYPE_CHECKING

import pytest

from supervisor import logfiles
from supervisor.commands.events import _since, parsed
from supervisor.following import Follower
from supervisor.telling import WORDS, sentence
from tests.support import ROOT

if TYPE_CHECKING:
    from pathlib import Path


def test_no_line_is_lost_or_told_twice_when_the_file_is_cut(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    follower = Follower(path, 0)
    assert follower.take() == []
    with path.open("a") as file:
        file.write("one\ntw")
        file.flush()
        assert follower.take() == ["one"]
        file.write("o é\nthree\n")
        file.flush()
        assert logfiles.cap(path, limit=1)
        file.write("4\n")
        file.flush()
        assert follower.take() == ["two é", "three", "4"]
        assert follower.take() == []


EVENTS = [
    ({"what": "state", "group": "chat", "state": "rebuilding", "reason": "its proxy ended"}, "chat: rebuilding: its proxy ended"),
    (
        {"what": "ended", "group": "chat", "generation": "x", "cause": "OOM kill", "detail": "", "restart": True, "delay": 0.5},
        "chat: ended, OOM kill; started again in 0.5 s",
    ),
    (
        {"what": "stopped", "why": "the last member left", "groups": ["chat"], "took": "0.3 s", "clean": True, "killed": [], "swept": 0},
        "stopped chat in 0.3 s (the last member left)",
    ),
    (
        {"what": "ladder", "rung": "build", "reason": "no engine in the slot", "program": "lilbee", "pid": 7},
        "lilbee (pid 7): build: no engine in the slot",
    ),
    ({"what": "keep warm", "root": "/p", "keep": False}, "/p no longer wants it kept warm"),
    ({"what": "of the future", "x": 1}, "of the future: x 1"),
    ({"what": "state", "group": "chat"}, "state: group chat"),
]  # fmt: skip


@pytest.mark.parametrize(("event", "said"), EVENTS, ids=lambda value: str(value)[:20])
def test_an_event_is_told_in_words(event: dict[str, object], said: str) -> None:
    assert sentence({"at": 1.0, **event}) == said


def test_every_event_that_we_write_has_words() -> None:
    written = set()
    for path in (ROOT / "supervisor").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr in ("note", "_note")
            ):
                words = [each.value for each in node.args[:2] if isinstance(each, ast.Constant)]
                written |= {word for word in words if isinstance(word, str)}
    assert written <= WORDS.keys()
    assert len(written) > 8


def test_since_is_a_length_or_a_date_and_what_is_cut_is_left_out() -> None:
    assert _since("2h") == pytest.approx(time.time() - 7200, abs=60)
    assert _since("2026-01-31T08:00+00:00") == 1769846400
    assert parsed(['"at": 3}', '{"at": 5, "what": "held"}', "{}", '["at"]']) == [{"at": 5.0, "what": "held"}]
