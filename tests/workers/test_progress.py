"""How long steps tell of themselves."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from workers import progress
from workers.progress import Bar, Lines, Silent, for_stream

if TYPE_CHECKING:
    import pytest


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def go_through(teller: progress.Progress) -> None:
    teller.begin("fetching [x]", 2_000_000)
    teller.at(1_000_000)
    teller.end()
    teller.end()
    teller.note("done [y]")


def test_lines_say_bytes_and_seconds_where_there_is_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "LINE_EVERY", 0.0)
    stream = io.StringIO()
    teller = for_stream(stream)
    assert isinstance(teller, Lines)
    go_through(teller)
    lines = stream.getvalue().splitlines()
    assert lines[0] == "fetching [x] (2.0 MB)"
    assert lines[1].startswith("fetching [x]: 1.0 MB of 2.0 MB, ")
    assert lines[-1] == "done [y]"


def test_no_line_says_that_more_came_than_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "LINE_EVERY", 0.0)
    stream = io.StringIO()
    teller = Lines(stream)
    teller.begin("fetching x", 2_000_000)
    teller.at(4_100_000)
    assert "2.0 MB of 2.0 MB" in stream.getvalue()


def test_a_terminal_gets_a_bar() -> None:
    stream = Terminal()
    teller = for_stream(stream)
    assert isinstance(teller, Bar)
    go_through(teller)
    assert "fetching [x]" in stream.getvalue()
    assert "done [y]" in stream.getvalue()


def test_silence_is_silent(capsys: pytest.CaptureFixture[str]) -> None:
    go_through(Silent())
    assert capsys.readouterr() == ("", "")
