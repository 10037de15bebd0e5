"""What the packaging tests share: environments made by venv and filled by pip, and commands run in them."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
import venv
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
LOCK = ROOT / ".ci" / "lock"

# A download of some 40 MB over a slow line; commands of ours take well under a second.
INSTALL_TIMEOUT_S = 240
COMMAND_TIMEOUT_S = 30


def project() -> dict[str, Any]:
    """pyproject.toml, parsed."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


class Environment:
    """A virtual environment of a test's own, with no package in it.

    `extra_site` is a site-packages folder that it can import from too: dependencies are installed once for several
    environments, while what a test is about is installed into each.
    """

    def __init__(self, path: Path, *, extra_site: Path | None = None) -> None:
        venv.create(path, with_pip=False, symlinks=True)
        self.path = path
        self.bin = path / "bin"
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        self.site = path / "lib" / version / "site-packages"
        if extra_site is not None:
            (self.site / "dependencies.pth").write_text(f"{extra_site}\n")

    def pip(self, *arguments: str) -> None:
        """Run pip on this environment; fail the test with pip's own words when it fails."""
        argv = [sys.executable, "-m", "pip", "--python", str(self.bin / "python"), *arguments]
        done = subprocess.run(
            argv, check=False, capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S, cwd=self.path
        )
        assert done.returncode == 0, f"{' '.join(argv)}\n{done.stdout}{done.stderr}"

    def install(self, *arguments: str) -> None:
        self.pip("install", "-qq", "--disable-pip-version-check", "--no-input", "--no-warn-script-location", *arguments)

    def run(self, command: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run one of its commands as a user would, from a folder with nothing of ours in it."""
        inherited = {
            name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "COV", "QUEEN"))
        }
        home = self.path / "home"
        home.mkdir(exist_ok=True)
        return subprocess.run(
            [str(self.bin / command), *arguments],
            check=False,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=COMMAND_TIMEOUT_S,
            cwd=home,
            env=inherited | {"HOME": str(home)} | environment,
        )


def assert_queenright_works(environment: Environment, slot: Path) -> None:
    """`version` and, on an empty slot, `status` answer from an installed wheel as the exit code table says."""
    version = environment.run("queenright", "version")
    assert version.returncode == 0, version.stdout + version.stderr
    assert "queenright" in version.stdout.lower() or version.stdout.strip()[:1].isdigit(), version.stdout
    status = environment.run("queenright", "status", QUEENRIGHT_SLOT=str(slot))
    assert status.returncode == 4, status.stdout + status.stderr  # NO_ENGINE
    for done in (version, status):
        assert "Traceback" not in done.stdout + done.stderr
