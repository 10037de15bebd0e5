"""docs/reference/commands.md and limits.md are made of the code. QUEENRIGHT_WRITE_PAGES=1 writes them anew."""

from __future__ import annotations

import ast
import itertools
import os
import sys
from typing import TYPE_CHECKING

import pytest

from supervisor import budgets, cli
from tests.support import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable

REFERENCE = ROOT / "docs" / "reference"
WIDTH = "100"


def commands(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> str:
    """What each command says of itself."""
    if sys.version_info[:2] != (3, 11):
        pytest.skip("argparse lays its help out as Python 3.11 does; the page is made with that")
    monkeypatch.setenv("COLUMNS", WIDTH)
    monkeypatch.setattr("os.get_terminal_size", lambda *_: os.terminal_size((int(WIDTH), 24)))
    lines = ["# Commands", "", "What `--help` says of each; a test keeps this page equal to it.", ""]
    for name in [*cli.CORE, *sorted(cli._added())]:
        capsys.readouterr()
        if name == "version":
            lines += ["## queenright version", "", cli.CORE[name][0].upper() + cli.CORE[name][1:] + ".", ""]
            continue
        with pytest.raises(SystemExit) as left:
            cli.main([name, "--help"])
        assert left.value.code == 0
        said = capsys.readouterr().out.rstrip()
        lines += [f"## queenright {name}", "", *(f"    {line}".rstrip() for line in said.splitlines()), ""]
    return "\n".join(lines)


def limits(*_: object) -> str:
    """Every constant of budgets.py with its reason, in its sections."""
    source = (ROOT / "supervisor" / "budgets.py").read_text(encoding="utf-8")
    headings = {
        number: line.strip("# -") for number, line in enumerate(source.splitlines(), 1) if line.startswith("# ---")
    }
    lines = [
        "# Time limits",
        "",
        "Every limit of the core, in seconds unless it says otherwise, with its reason (`supervisor/budgets.py`). They are",
        "constants: what you can change stands in the [configuration](configuration.md). A test keeps this page equal to the",
        "code, and the inequalities between them are checked at every start.",
    ]
    body = ast.parse(source).body
    for node, after in itertools.pairwise(body):
        passed = [number for number in headings if number < node.lineno]
        for number in passed:
            lines += ["", f"## {headings.pop(number).capitalize()}"]
        if not (isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)):
            continue
        name = node.target.id
        assert isinstance(after, ast.Expr), f"{name} has no reason"
        assert isinstance(after.value, ast.Constant), f"{name} has no reason"
        value = getattr(budgets, name)
        shown = ", ".join(f"{one:g}" for one in value) if isinstance(value, tuple) else f"{value:,}"
        lines += ["", f"`{name}` = {shown}", *(f": {' '.join(str(after.value.value).split())}",)]
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize(("page", "made"), [("commands.md", commands), ("limits.md", limits)])
def test_the_page_is_what_the_code_says(
    page: str,
    made: Callable[[pytest.CaptureFixture[str], pytest.MonkeyPatch], str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = made(capsys, monkeypatch)
    path = REFERENCE / page
    if os.environ.get("QUEENRIGHT_WRITE_PAGES"):
        path.write_text(text, encoding="utf-8")
    assert path.read_text(encoding="utf-8") == text, "QUEENRIGHT_WRITE_PAGES=1 writes it anew"
