"""No decision from the wall clock: where the time of day is counted with or compared, it is for people, and listed.

To note it down is fine: people want to read it. What a step of the clock does to a running engine is tested in
test_lilbee.py (W4); this looks at the text, and so at paths that no test runs.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

import pytest

from tests.support import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator, Set

WALL = frozenset(
    {"time", "time_ns", "localtime", "gmtime", "now", "utcnow", "today", "boot_time", "create_time", "getmtime"}
)
"""Calls of these names ask the time of day. `trio.current_time` and `time.monotonic` do not."""

NUMERIC = frozenset({"int", "float", "round", "abs", "min", "max"})

KNOWN = {
    "supervisor/commands/events.py::_since": "from which of the events, whose times are of the same clock, a person wants to read",
    "supervisor/holding.py::of": "until when a hold lasts, for the boots after this one",
    "supervisor/holding.py::left_s": "when a hold ends that was made in another boot: no other clock goes on over one",
    "workers/pins.py::_keep": "whether a file changed so lately that what is known of it is not kept: only work is lost",
}


def uses(source: str) -> Iterator[tuple[str, int]]:
    """(function, line) of each time of day that goes into a comparison or a calculation, in the same expression or by
    a name that it was given in the same function."""
    for function in ast.walk(ast.parse(source)):
        if not isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        names = {
            target.id
            for node in ast.walk(function)
            if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None and asks(node.value)
            for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
            if isinstance(target, ast.Name)
        }
        for node in ast.walk(function):
            if isinstance(node, (ast.Compare, ast.BinOp, ast.AugAssign)) and asks(node, names):
                yield function.name, node.lineno


def asks(node: ast.AST, names: Set[str] = frozenset()) -> bool:
    """Whether its value is the time of day, by a call or by one of these names, or is calculated from it; what is made
    of it as text or as a part of a record is not."""
    if isinstance(node, (ast.Dict, ast.JoinedStr)):
        return False
    if isinstance(node, ast.Name):
        return node.id in names
    if isinstance(node, ast.Call):
        if isinstance(node.func, ast.Attribute) and node.func.attr in WALL:
            return True
        if not (isinstance(node.func, ast.Name) and node.func.id in NUMERIC):
            return False
    return any(asks(child, names) for child in ast.iter_child_nodes(node))


@pytest.mark.long
def test_the_time_of_day_decides_nothing() -> None:
    found = {
        f"{path.relative_to(ROOT)}::{name}": line
        for package in ("supervisor", "workers")
        for path in sorted((ROOT / package).rglob("*.py"))
        for name, line in uses(path.read_text(encoding="utf-8"))
    }
    assert set(found) == set(KNOWN), found


@pytest.mark.parametrize(
    "text",
    [
        "deadline = time.time() + 5",
        "began = time.time()\n    return other - began",
        "return psutil.Process(1).create_time() == wanted",
        "if abs(time.time() - since) < 1:\n        pass",
    ],
)
def test_it_would_be_found(text: str) -> None:
    assert list(uses(f"def decide():\n    {text}\n"))


def test_what_is_only_noted_is_no_decision() -> None:
    assert not list(uses("def note():\n    return {'at': round(time.time(), 3)}\n"))
    assert not list(uses("def wait():\n    return time.monotonic() + 5\n"))
