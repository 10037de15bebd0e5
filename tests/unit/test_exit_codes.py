"""docs/reference/exit-codes.md against the code: one table, in two places."""

from __future__ import annotations

import pickle
import pkgutil
import re
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path

import chaos
import supervisor
import workers
from supervisor.cli import CORE, ENTRY_POINTS
from supervisor.errors import ExitCode, QueenrightError

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "exit-codes.md"


def rows(heading: str) -> list[list[str]]:
    """The cells of the table under a heading, without its head."""
    section = PAGE.read_text().partition(f"# {heading}\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def classes() -> dict[str, type[QueenrightError]]:
    """Every error that a module of ours defines, by name."""
    for package in (supervisor, workers, chaos):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            import_module(module.name)
    found: list[type[QueenrightError]] = [QueenrightError]
    for kind in found:  # it grows meanwhile
        found += kind.__subclasses__()
    ours = ("supervisor.", "workers.", "chaos.")
    return {kind.__name__: kind for kind in found if kind.__module__.startswith(ours)}


def test_the_page_has_every_exit_code_with_its_number_and_a_meaning() -> None:
    table = rows("Exit codes")
    assert [(int(code), name.strip("`")) for code, name, _ in table] == [(code.value, code.name) for code in ExitCode]
    assert all(meaning.endswith(".") for _, _, meaning in table)


def test_every_error_has_the_exit_code_that_the_page_says() -> None:
    page = {
        name: int(code) for code, names in rows("Which error means which") for name in re.findall(r"`(\w+)`", names)
    }
    assert page == {name: int(kind.exit_code) for name, kind in classes().items()}


def test_the_page_has_every_command() -> None:
    added = {point.name for point in entry_points(group=ENTRY_POINTS)}
    assert {name.strip("`").split()[0] for name, _, _ in rows("Command by command")} == {*CORE, *added}


def test_every_error_survives_pickling_and_tells_the_same_as_data() -> None:
    for name, kind in classes().items():
        error = kind("the thing is wrong", "do this")
        again = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes
        assert type(again) is kind
        assert again.as_dict() == error.as_dict() == {
            "error": name,
            "what": "the thing is wrong",
            "next_step": "do this",
            "exit_code": int(kind.exit_code),
        }  # fmt: skip
        assert str(again) == "the thing is wrong\n  do this"
