"""The wheel holds our three packages and nothing else, and works where nothing else is."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from typing import TYPE_CHECKING

import pytest

from tests.packaging.helpers import LOCK, ROOT, Environment, assert_queenright_works

if TYPE_CHECKING:
    from pathlib import Path


def test_wheel_holds_our_three_packages_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/", 1)[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"supervisor", "workers", "chaos"}
    for package in ("supervisor", "workers", "chaos"):
        assert f"{package}/py.typed" in names
    argv = [sys.executable, "-m", "check_wheel_contents", "--config", str(ROOT / "pyproject.toml"), str(wheel)]
    checked = subprocess.run(argv, check=False, capture_output=True, text=True, timeout=60)
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.long
def test_wheel_works_in_an_empty_environment(wheel: Path, tmp_path: Path) -> None:
    environment = Environment(tmp_path / "venv")
    environment.install("--no-deps", "--require-hashes", "-r", str(LOCK / "runtime.txt"))
    environment.install("--no-deps", str(wheel))
    environment.pip("check")  # the lock holds all that the wheel asks for
    assert_queenright_works(environment, tmp_path / "slot")
