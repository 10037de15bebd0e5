"""The blocks of the pages that somebody could type or run, and what is said of each.

A comment that no reader sees stands right before such a block. It names the test that runs it, or says why none does:

    <!-- run: tests/engine/test_tutorial.py::test_every_command_does_what_it_is_there_for -->
    <!-- not run: it needs a GPU -->
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from tests.support import ROOT

if TYPE_CHECKING:
    from pathlib import Path

RUNNABLE = ("console", "sh", "python")
"""Of the languages of blocks: those that a reader types or runs. `console` has a `$ ` before each command."""

_BLOCK = re.compile(
    r"(?:^<!-- (?P<how>run|not run): (?P<said>[^>]+) -->\n\n?)?^```(?P<language>\w*)\n(?P<text>.*?)^```$", re.M | re.S
)


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block."""

    page: str
    """From the top of the repository."""
    line: int
    language: str
    text: str
    test: str | None
    """The test that runs it."""
    why_not: str | None
    """Or why there is none."""

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.page}:{self.line}"

    @property
    def commands(self) -> list[str]:
        """As a shell is given them, one after the other: a line that ends in a backslash goes on in the next one. A script is
        none of these, nor is a program in Python."""
        if self.text.startswith("#!") or self.language == "python":
            return []
        text = self.text.replace("\\\n", " ")
        if self.language == "console":
            return [line.removeprefix("$ ") for line in text.splitlines() if line.startswith("$ ")]
        return [line for line in text.splitlines() if line.strip() and not line.startswith("#")]


def pages() -> list[Path]:
    """All that people read."""
    return sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


@cache
def blocks(page: str) -> tuple[Block, ...]:
    """Every fenced block of a page, named from the top of the repository."""
    text = (ROOT / page).read_text(encoding="utf-8")
    found = []
    for match in _BLOCK.finditer(text):
        line = text.count("\n", 0, match.start("language")) + 1
        said = {match["how"]: (match["said"] or "").strip()}
        found.append(Block(page, line, match["language"], match["text"], said.get("run"), said.get("not run")))
    return tuple(found)


def of_test(page: str, test: str) -> list[Block]:
    """The blocks of a page that name a test (`tests/...::test_...`), in their order."""
    found = [block for block in blocks(page) if block.test == test]
    assert found, f"no block of {page} names {test}"
    return found
