"""The wheel under test, and an environment with what it depends on: each made once per run."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.packaging.helpers import INSTALL_TIMEOUT_S, LOCK, ROOT, Environment

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from this checkout by the backend that the lock holds."""
    out = tmp_path_factory.mktemp("dist")
    argv = [sys.executable, "-m", "pip", "wheel", "-qq", "--no-deps", "--no-build-isolation", "-w", str(out), str(ROOT)]
    done = subprocess.run(argv, check=False, capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S, cwd=out)
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = out.glob("queenright-*.whl")
    return built


@pytest.fixture(scope="session")
def dependencies(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """An environment with the locked dependencies and nothing else."""
    environment = Environment(tmp_path_factory.mktemp("dependencies") / "venv")
    environment.install("--no-deps", "--require-hashes", "-r", str(LOCK / "runtime.txt"))
    return environment
