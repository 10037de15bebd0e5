"""What holds for the warden's source: small, on its own, without a wall clock."""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
WARDEN = ROOT / "supervisor" / "warden.py"
STUB = ROOT / "supervisor" / "detach_stub.py"

NO_CODE = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER
}  # fmt: skip


def lines_of_code(source: str) -> int:
    """Lines that hold code: no blank ones, no comments, no docstrings."""
    code: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in NO_CODE:
            code.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            code.difference_update(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    return len(code)


def test_lines_of_code_are_counted_as_said() -> None:
    source = '"""Doc,\n\nlong."""\n\nimport os  # why\n\n# a comment\ndef f():\n    """Doc."""\n    return """not\n    a doc"""\n'
    assert lines_of_code(source) == 4


def test_the_warden_has_fewer_than_450_lines_of_code() -> None:
    """It was 400 before it held the gateway's listener (docs/adr/0006), 420 before it could take on a keeper that waits
    (docs/adr/0001), and 430 before it kept its own timers, which `sched` does at the price of `threading`, and told of an
    exit and its end in one piece."""
    assert lines_of_code(WARDEN.read_text(encoding="utf-8")) < 450


@pytest.mark.parametrize("path", [WARDEN, STUB], ids=lambda path: path.name)
def test_it_imports_the_standard_library_only(path: Path) -> None:
    modules: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            modules.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            modules.add(node.module or ".")
    assert {module.partition(".")[0] for module in modules} <= sys.stdlib_module_names


def test_the_wall_clock_decides_nothing_here() -> None:
    tree = ast.parse(WARDEN.read_text(encoding="utf-8"))
    used = {
        node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "time"
    }
    assert used <= {"monotonic", "monotonic_ns", "sleep"}
    assert not any(isinstance(node, ast.Name) and node.id == "datetime" for node in ast.walk(tree))
