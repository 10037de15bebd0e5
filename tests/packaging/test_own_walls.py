"""Programs that run without our packages import the standard library only: lint-imports names a list, this all."""

from __future__ import annotations

import ast
import sys

import pytest

from tests.packaging.helpers import ROOT


@pytest.mark.parametrize("program", ["supervisor/warden.py", "supervisor/detach_stub.py", "workers/launcher.py"])
def test_program_imports_the_standard_library_only(program: str) -> None:
    """They are started by path with `-I -S`: anything else is not there."""
    imported = set[str]()
    for node in ast.walk(ast.parse((ROOT / program).read_text())):
        if isinstance(node, ast.Import):
            imported |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{program}:{node.lineno}: a relative import"
            imported.add((node.module or "").split(".")[0])
    assert imported <= sys.stdlib_module_names | {"__future__"}
