"""docs/tutorial.md and README.md on a real engine: every command of them, in its order, and none may fail."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.engine.place import Place
from tests.pages import of_test
from tests.support import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.engine.kit import Kit

pytestmark = [pytest.mark.process, pytest.mark.engine]

THIS = "tests/engine/test_tutorial.py::test_every_command_does_what_it_is_there_for"
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
@pytest.mark.parametrize("page", ["docs/tutorial.md", "README.md"])
def test_every_command_does_what_it_is_there_for(learner: Place, page: str) -> None:
    port = str(free_port())
    environment = learner.environment
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
    said: dict[str, str] = {}
    for block in of_test(page, THIS):
        for written in block.commands or [block.text]:
            is_shell = block.language != "python"
            command = written.partition("  #")[0].replace(".venv/bin/", "").strip() if is_shell else written
            command = command.replace(PORT, port)
            if command == "queenright run":
                learner.run()
                continue
            done = subprocess.run(
                ["sh", "-c", command] if is_shell else [sys.executable, "-c", command],
                cwd=learner.home,
                env=environment,
                capture_output=True,
                text=True,
                timeout=120,
            )
            assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
            said[command] = done.stdout
            if command == "queenright init":
                text = learner.config.read_text(encoding="utf-8")
                learner.config.write_text(
                    text.replace(f'# listen = "127.0.0.1:{PORT}"', f'listen = "127.0.0.1:{port}"')
                )
    answers = [text for command, text in said.items() if "chat/completions" in command]
    assert len(answers) == 2
    under = next(command for command in said if " exec -- " in command)
    if page == "README.md":
        assert '"content"' in answers[0]
        assert answers[
            1
        ].strip()  # the Python program prints what it says, and how much that is, is the model's to choose
        assert '"embed"' in said[under]
    else:
        assert all('"content"' in answer for answer in answers)
        assert "killed by SIGKILL" in said["queenright events"]
        assert "http://127.0.0.1:" in said[under]
        assert "sh" in said[under].splitlines()[-1]
