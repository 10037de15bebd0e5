"""What a kind's hand gave, looked at by type, so that nothing of it can end a keeper later (`containment`). Pure."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from supervisor.kinds import Command

if TYPE_CHECKING:
    from collections.abc import Mapping


def wrong_with(given: object) -> str:
    """Why nothing can be started by this; "" where it can, as far as that can be told before."""
    if not isinstance(given, Command):
        return "no command"
    if not given.argv or not all(_is_word(word) for word in (*given.argv, *given.undo)):
        return "words that are none"
    around = given.environment
    if "" in around or not all(_is_word(one) for item in around.items() for one in item) or "=" in "".join(around):
        return "variables that are none"
    files: Mapping[Any, Any] = given.files
    if not all(isinstance(path, Path) and isinstance(text, str) for path, text in files.items()):
        return "files that are none"
    return "" if _is_word(given.workdir) and given.workdir.startswith("/") else "a directory that is none"


def _is_word(word: object) -> bool:
    """Whether execve(2) can be given it."""
    return isinstance(word, str) and "\0" not in word


def is_plain(data: object) -> bool:
    """Whether it is a table of tables that a status can show."""
    try:
        plain = json.loads(json.dumps(data))
    except (TypeError, ValueError, RecursionError):
        return False
    return isinstance(plain, dict) and all(isinstance(one, dict) for one in plain.values())


_ROWS: Final[Mapping[str, Mapping[str, Any]]] = {
    "compared": {"what": str, "planned": int | None, "verdict": str},
    "asked": {"what": str, "effective": int | None},
}
"""Lists of a reading, and what the keeper goes by in each of their rows."""


def is_reading(one: Mapping[str, Any]) -> bool:
    """Whether it has what the keeper goes by in what was found of a server's memory."""
    warnings = one.get("warnings")
    if "held" not in one or not isinstance(warnings, list) or not all(isinstance(text, str) for text in warnings):
        return False
    return all(
        isinstance(one.get(name), list) and all(_is_row(row, of) for row in one[name]) for name, of in _ROWS.items()
    )


def _is_row(row: object, of: Mapping[str, Any]) -> bool:
    """What is `absent` was planned, in bytes."""
    if not isinstance(row, dict) or not all(name in row and isinstance(row[name], kind) for name, kind in of.items()):
        return False
    return row.get("verdict") != "absent" or isinstance(row["planned"], int)
