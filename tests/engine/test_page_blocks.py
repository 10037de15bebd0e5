"""Commands of the guides, as they stand there, on real processes: docs/guides/shell.md, payloads.md, watching.md,
own-binaries.md, systemd.md;
and the scrape of docs/reference/metrics.md."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.engine.fronts import PATIENCE
from tests.engine.guide import write_programs
from tests.engine.kit import Launch
from tests.pages import of_test
from tests.support import free_port, wait_until

if TYPE_CHECKING:
    from tests.engine.place import Place

pytestmark = [pytest.mark.process, pytest.mark.long]

GUIDES = "tests/engine/test_page_blocks.py::test_the_commands_of_the_guides_do_what_they_are_there_for"
UNITS = "tests/engine/test_page_blocks.py::test_the_units_are_where_their_manager_looks"
TMUX = "tests/engine/test_page_blocks.py::test_tmux_keeps_it_up_and_its_end_ends_it"


def environment(place: Place) -> dict[str, str]:
    """With `queenright` on PATH, as a reader has it."""
    found = place.environment
    return found | {"PATH": f"{Path(sys.executable).parent}:{found['PATH']}"}


def shell(place: Place, command: str) -> str:
    """What a command prints. It must not fail."""
    done = subprocess.run(
        ["sh", "-c", command],
        cwd=place.home,
        env=environment(place),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout


def files(place: Place) -> str:
    """The models of docs/guides/payloads.md, one of them stale in place, with a manifest and a source for each. The
    gateway's port."""
    models, origin = place.home / "models", place.home / "origin"
    models.mkdir()
    origin.mkdir()
    lines = []
    for name in ("chat", "old", "new"):
        (origin / f"{name}.gguf").write_bytes(place.kit.chat.read_bytes() + name.encode())
        shutil.copy(origin / f"{name}.gguf", models)
        content = (origin / f"{name}.gguf").read_bytes()
        lines += ["[[file]]", f'path = "models/{name}.gguf"', f"size = {len(content)}"]
        lines += [f'sha256 = "{hashlib.sha256(content).hexdigest()}"', f'source = "{origin}/{name}.gguf"']
    (place.home / "queenright.payload.toml").write_text("\n".join(lines) + "\n")
    port = str(free_port())
    place.configure(
        {"chat": (Launch("chat", "models/chat.gguf"),), "other": (Launch("other", "models/old.gguf"),)},
        gateway={"listen": f"127.0.0.1:{port}"},
    )
    return port


def test_the_commands_of_the_guides_do_what_they_are_there_for(place: Place) -> None:
    port = files(place)
    stat, start, full, retire = of_test("docs/guides/payloads.md", GUIDES)
    said = [shell(place, command) for command in stat.commands]
    assert int(said[0]) == (place.home / "models/chat.gguf").stat().st_size
    (start_command,) = start.commands
    running = subprocess.Popen(["sh", "-c", start_command], cwd=place.home, env=environment(place))
    try:
        place.family()
        for command in full.commands:
            shell(place, command)
        for command in retire.commands:
            shell(place, command)
        assert (place.home / "models/old.gguf").exists()
        assert "models/old.gguf" in place.config.read_text()
        (watch,) = of_test("docs/guides/watching.md", GUIDES)
        (watch_command,) = watch.commands
        with subprocess.Popen(
            ["sh", "-c", f"exec {watch_command}"],
            cwd=place.home,
            env=environment(place),
            stdout=subprocess.PIPE,
            text=True,
        ) as watching:
            assert watching.stdout is not None
            assert "running" in watching.stdout.readline()
            watching.terminate()
        (scrape,) = of_test("docs/reference/metrics.md", GUIDES)
        assert "\nqueenright_up{" in shell(place, scrape.text.replace("11411", port))
        (look,) = of_test("docs/guides/own-binaries.md", GUIDES)
        assert "engine: an engine is running" in shell(place, look.text)
        write_programs("shell.md", place.home)
        (ask,) = of_test("docs/guides/shell.md", GUIDES)
        for command in ask.commands:
            answer = json.loads(shell(place, command))
            assert answer["choices"][0]["message"]["content"]
    finally:
        shell(place, "queenright stop")
        running.wait(PATIENCE)


def test_the_units_are_where_their_manager_looks(place: Place) -> None:
    place.configure(gateway={"listen": "127.0.0.1:11411"})
    for block in of_test("docs/guides/systemd.md", UNITS):
        for command in block.commands:
            shell(place, command)
    folder = place.home / ".config" / "systemd" / "user"
    assert f'"{place.config}"' in (folder / "queenright.service").read_text()
    assert "\nListenStream=127.0.0.1:11411\n" in (folder / "queenright.socket").read_text()


@pytest.mark.skipif(not shutil.which("tmux"), reason="tmux is not installed")
def test_tmux_keeps_it_up_and_its_end_ends_it(place: Place) -> None:
    (place.home / "engines").mkdir()
    place.config = place.home / "engines" / "queenright.toml"
    place.configure()
    server = f"tmux -S {place.home}/tmux"  # a server of the test's own, and none of the user's settings
    (block,) = of_test("docs/guides/systemd.md", TMUX)
    start, look, interrupt, end = [command.replace("tmux", f"{server} -f /dev/null", 1) for command in block.commands]
    shell(place, start)
    try:
        place.family()
        wait_until(lambda: "chat: running" in shell(place, look), within=PATIENCE, what="the window shows it")
        shell(place, interrupt)
        place.wait_empty()
        wait_until(lambda: "everything is gone" in shell(place, look), within=PATIENCE, what="it says that it stopped")
    finally:
        shell(place, end)
