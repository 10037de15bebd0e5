"""What a front end imports before an engine begins to start: each library is CPU time that the first group waits for."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.engine.kit import make_kit

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

HEAVY = {"filelock", "httpx", "importlib.metadata", "psutil", "rich", "trio"}

TELL = """
import os, sys
before = set(sys.modules)  # site-packages may import things of their own (coverage, setuptools)
def tell(*_):
    print(*set(sys.modules) - before, flush=True)
    os._exit(0)
"""
RUN = """
from supervisor import cli
os.execve = tell  # by which it becomes the warden
sys.exit(cli.main(["run", "--config", sys.argv[1]]))
"""
MEMBER = """
from pathlib import Path
from supervisor import wardens
from supervisor.client import open_engine
wardens.start_detached = tell
open_engine(Path(sys.argv[1]))
"""


def command_group(slot: Path) -> str:
    """Of a kind that plans nothing."""
    return (
        f'[engine]\nslot = {json.dumps(str(slot))}\n[groups.g]\nkind = "command"\n[groups.g.options]\n'
        'argv = ["/bin/sleep", "{{port}}"]\n[[groups.g.launches]]\nrole = "r"\nmodel = "m"\n'
    )


def planned_groups(slot: Path) -> str:
    """Of the kind that is planned before anything is started, and that has binaries and models to look at."""
    kit = make_kit(slot.parent)
    words = {name: json.dumps(str(path)) for name, path in (("slot", slot), ("server", kit.server), ("chat", kit.chat))}
    return (
        '[engine]\nslot = {slot}\nllama_server = {server}\nllama_swap = "built-in"\n'
        '[[groups.g.launches]]\nrole = "chat"\nmodel = {chat}\n'
    ).format_map(words)


@pytest.mark.process
@pytest.mark.parametrize("front", [RUN, MEMBER], ids=["run", "member"])
@pytest.mark.parametrize("groups", [command_group, planned_groups])
def test_a_front_end_imports_no_library_that_it_needs_not(
    tmp_path: Path, front: str, groups: Callable[[Path], str]
) -> None:
    config = tmp_path / "queenright.toml"
    config.write_text(groups(tmp_path / "slot"))
    own = {
        "QUEENRIGHT_CACHE": str(tmp_path / "cache"),
        "QUEENRIGHT_RESERVATIONS": str(tmp_path / "book"),
        "QUEENRIGHT_ESTIMATOR": "none",  # of a model of some bytes there is none
    }
    done = subprocess.run(
        [sys.executable, "-P", "-c", TELL + front, str(config)],
        capture_output=True, text=True, check=False, cwd=tmp_path, env=os.environ | own,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    brought = set(done.stdout.split())
    assert not HEAVY & brought
    assert ("supervisor.fitting" in brought) is (front is RUN and groups is planned_groups), "the case is no case"


NOT_YET = {"cattrs", "email", "filelock", "httpcore", "httpx", "hypercorn", "prometheus_client", "starlette", "workers"}
"""What some group, a record or the gateway needs later."""


@pytest.mark.process
def test_a_keeper_begins_with_trio_and_little_else() -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-c", f"{TELL}import supervisor.keeper\ntell()"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    brought = set(done.stdout.split())
    assert "supervisor.tree" in brought
    assert not (HEAVY - {"trio"} | NOT_YET) & brought


BLOCKED = """
import json, os, signal, sys
from supervisor import cli
def become(*_):
    print(json.dumps([int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, ())]), flush=True)
    os._exit(0)
os.execve = become
sys.exit(cli.main(["run", "--config", sys.argv[1]]))
"""


@pytest.mark.process
def test_a_ctrl_c_is_kept_for_the_warden_until_it_can_hear_it(tmp_path: Path) -> None:
    config = tmp_path / "queenright.toml"
    config.write_text(command_group(tmp_path / "slot"))
    done = subprocess.run(
        [sys.executable, "-P", "-c", BLOCKED, str(config)],
        capture_output=True, text=True, check=True, cwd=tmp_path,
    )  # fmt: skip
    assert {signal.SIGINT, signal.SIGTERM, signal.SIGHUP} <= set(json.loads(done.stdout))
