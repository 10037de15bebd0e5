"""What a program says of itself, asked as seldom as it may be."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from supervisor.config_shape import EngineConfig, GroupConfig, LaunchConfig
from supervisor.errors import EngineBinaryError
from tests.workers.planner import headers
from tests.workers.test_flag_check import HELP
from workers import own_words
from workers.llama_swap import KIND

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.process


def test_a_script_is_asked_once_for_all_that_is_looked_at_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two groups with three questions each, as of a doctor."""
    monkeypatch.setattr(own_words, "STILL", 600.0)  # the machine may be busy
    server, asked = tmp_path / "llama-server", tmp_path / "asked"
    server.write_text(f"#!/bin/sh\necho once >> {asked}\ncat <<'END'\n{HELP}END\n")
    server.chmod(0o755)
    model = str(headers.qwen3(tmp_path / "model.gguf", layers=1))
    engine = EngineConfig(llama_server=server, llama_swap="built-in")
    for name in ("a", "b"):
        group = GroupConfig(name, (LaunchConfig("chat", model, arguments=("--threads", "2")),))
        assert "--threads" in KIND.resolve(group, engine).launches[0].arguments
        list(KIND.advise(group, engine))
    assert asked.read_text() == "once\n"


def test_and_again_a_moment_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_words, "STILL", 0.0)
    server = tmp_path / "llama-server"
    for text in ("one", "another"):
        server.write_text(f"#!/bin/sh\necho {text}\n")
        server.chmod(0o755)
        assert own_words.help_of([str(server)]) == f"{text}\n"
    server.unlink()
    with pytest.raises(EngineBinaryError, match="does not run"):
        own_words.help_of([str(server)])
