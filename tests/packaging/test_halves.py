"""`make test` runs the tests in two halves at once: no failure of either is lost, and what is covered by either is counted."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.packaging.helpers import ROOT

if TYPE_CHECKING:
    from pathlib import Path

PROGRAM = ROOT / ".ci" / "halves.py"
TIMEOUT_S = 120
TESTS = {
    "tests/engine/test_engine.py": "def test_it():\n    import bees\n    bees.fly()\n",
    "tests/cases/test_cases.py": "import pytest\n\n@pytest.mark.long\ndef test_minutes():\n    assert False, 'not now'\n",
    "tests/unit/test_unit.py": "def test_it():\n    import bees\n    assert bees.rest() == 'honey'\n",
    "bees.py": "def fly():\n    return ''\n\ndef rest():\n    return 'wax'\n",
    "pyproject.toml": "[tool.pytest]\nmarkers = ['long']\npythonpath = ['.']\n[tool.coverage.run]\nsource = ['bees']\n",
}


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A project of two tests and a long one, of which the second half's fails."""
    for name, text in TESTS.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def run(clone: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, str(PROGRAM), *arguments]
    return subprocess.run(argv, cwd=clone, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)


def test_what_fails_in_the_half_that_is_not_watched_is_shown_and_ends_the_run_red(clone: Path) -> None:
    done = run(clone, "coverage")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "assert 'wax' == 'honey'" in done.stdout
    assert "FAILED tests/unit/test_unit.py::test_it" in done.stdout
    assert "not now" not in done.stdout
    *_, last = done.stdout.splitlines()
    assert last.startswith("both halves: 2 tests, 1 failed, 0 skipped, exit 0 and 1, in ")
    assert not list(clone.glob(".coverage.*"))
    assert re.search(r"^bees\.py +4 +0 +100%$", done.stdout, re.M), "what the first half runs and what the second"


def test_arguments_are_pytests_and_then_all_runs_as_one(clone: Path) -> None:
    done = run(clone, "short", "tests/engine", "-k", "it")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout
    assert "both halves" not in done.stdout
    assert "bees.py" not in done.stdout, "coverage takes as long again: it is measured where it is asked for"
