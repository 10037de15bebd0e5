"""How a kind is found."""

from __future__ import annotations

import sys
from importlib.metadata import entry_points
from typing import TYPE_CHECKING

import pytest

from supervisor import kinds
from supervisor.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path


def test_the_quick_look_says_what_the_standard_library_says() -> None:
    known = {point.name: point.value for point in entry_points(group=kinds.ENTRY_POINTS)}
    assert known
    assert kinds._quick_look() == known


def test_what_no_package_ought_to_hold_hinders_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    places = {
        "a-1.dist-info": "[console_scripts]\nx = y:z\n\n[queenright.workers]\nmine = some.module:KIND\n\n[other]\nnot = a:b\n",
        "b-1.dist-info": "\xff",
        "c-1.dist-info": "[queenright.workers]\nwithout a value\n",
    }
    for name, text in places.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "entry_points.txt").write_text(text, encoding="latin-1")
    (tmp_path / "d-1.dist-info").mkdir()
    monkeypatch.setattr(sys, "path", [str(tmp_path), str(tmp_path / "none")])
    assert kinds._quick_look() == {"mine": "some.module:KIND"}


def test_a_kind_that_nobody_has_is_refused_with_those_there_are() -> None:
    with pytest.raises(ConfigError, match="no engine kind 'comand'") as raised:
        kinds.find("comand")
    assert "did you mean 'command'?" in raised.value.next_step
    assert kinds.find("command").name == "command"
