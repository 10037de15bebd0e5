"""What `queenright run` imports before it becomes the warden: each library is CPU time that the first group waits for."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

HEAVY = {"filelock", "httpx", "psutil", "rich", "trio"}

SCRIPT = """
import json, os, sys
from supervisor import cli
def become(program, argv, environment):
    print(json.dumps(sorted(sys.modules)), flush=True)
    os._exit(0)
os.execve = become
sys.exit(cli.main(["run", "--config", sys.argv[1]]))
"""


@pytest.mark.process
def test_run_imports_no_library_that_its_groups_need_not(tmp_path: Path) -> None:
    config = tmp_path / "queenright.toml"
    config.write_text(
        f'[engine]\nslot = {json.dumps(str(tmp_path / "slot"))}\n[groups.g]\nkind = "command"\n[groups.g.options]\n'
        'argv = ["/bin/sleep", "{{port}}"]\n[[groups.g.launches]]\nrole = "r"\nmodel = "m"\n'
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", SCRIPT, str(config)], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert HEAVY & set(json.loads(done.stdout)) == set()
