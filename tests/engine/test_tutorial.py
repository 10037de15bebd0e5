"""docs/tutorial.md on a real engine: every command of it, in its order, and none may fail."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.engine.place import Place
from tests.support import ROOT, free_port

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.engine.kit import Kit

pytestmark = [pytest.mark.process, pytest.mark.engine]

PAGE = ROOT / "docs" / "tutorial.md"
PORT = "11411"
"""As the page has it. A test's engine listens elsewhere: somebody may be using that one."""


@pytest.fixture
def learner(real_kit: Kit) -> Iterator[Place]:
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    place = Place(real_kit)
    place.use_slot(place.home / ".local" / "state" / "queenright" / "slot")  # where a user's is
    try:
        yield place
    finally:
        place.close()


@pytest.mark.long
def test_every_command_of_the_tutorial_does_what_it_is_there_for(learner: Place) -> None:
    port = str(free_port())
    commands = re.findall(r"^\$ (.*)$", PAGE.read_text(encoding="utf-8").replace(PORT, port), flags=re.MULTILINE)
    home = learner.config.parent
    environment = learner.environment
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
    said: dict[str, str] = {}
    for command in commands:
        if command == "queenright run":
            learner.run()
            continue
        done = subprocess.run(
            ["sh", "-c", command], cwd=home, env=environment, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        said[command] = done.stdout
        if command == "queenright init":
            text = learner.config.read_text(encoding="utf-8")
            learner.config.write_text(text.replace('# listen = "127.0.0.1:11411"', f'listen = "127.0.0.1:{port}"'))
    answers = [text for command, text in said.items() if "chat/completions" in command]
    assert len(answers) == 2
    assert all('"content"' in answer for answer in answers)
    assert "killed by SIGKILL" in said["queenright events"]
    assert "http://127.0.0.1:" in said[commands[-2]]
    assert "sh" in said[commands[-2]].splitlines()[-1]
