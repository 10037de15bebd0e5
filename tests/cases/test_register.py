"""Every case of the field has its test, or says what it waits for; and every promise to members has one."""

from __future__ import annotations

import ast
import re
from functools import cache

import pytest

from tests.cases.register import GROUPS, Held, Later
from tests.support import ROOT

GUARANTEES = ROOT / "docs" / "guarantees.md"
CASES = [(group, name) for group, (_, cases) in GROUPS.items() for name in cases]


@cache
def names_in(path: str) -> frozenset[str]:
    """The names of a file's tests, from its text alone."""
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, functions) and node.name[:5] == "test_")


def is_there(test: str) -> bool:
    """Whether `path::name` names a test."""
    path, _, name = test.partition("::")
    return (ROOT / path).is_file() and name in names_in(path)


@pytest.mark.parametrize("group", GROUPS)
def test_no_case_is_missing(group: str) -> None:
    count, cases = GROUPS[group]
    assert len(cases) == count


@pytest.mark.parametrize(("group", "name"), CASES)
def test_every_case_has_tests_that_exist_or_says_what_it_waits_for(group: str, name: str) -> None:
    case = GROUPS[group][1][name]
    if isinstance(case, Later):
        assert case.needs
        assert case.why
    else:
        assert isinstance(case, Held)
        assert case.where
        assert [test for test in case.where if not is_there(test)] == []


def test_every_guarantee_names_tests_that_exist() -> None:
    text = GUARANTEES.read_text(encoding="utf-8")
    promises = [line for line in re.sub(r"\n  +", " ", text).splitlines() if line.startswith("* ")]
    assert len(promises) > 30
    for promise in promises:
        linked = re.findall(r"\[`([\w/]+)::(\w+)`\]\(\.\./([\w/]+\.py)\)", promise)
        assert linked, f"no test holds this: {promise}"
        for module, name, path in linked:
            assert path == f"tests/{module}.py", promise
            assert is_there(f"{path}::{name}"), promise
