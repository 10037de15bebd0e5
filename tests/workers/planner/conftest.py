"""Models that are headers only, made once for all tests here."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.workers.planner import headers
from workers.planner.model import Model, read_model

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("headers")


@pytest.fixture(scope="session")
def files(folder: Path) -> dict[str, Path]:
    return {
        "gpt-oss-20b": headers.gpt_oss(folder / "gpt-oss-20b.gguf", 24, 32),
        "gpt-oss-120b": headers.gpt_oss(folder / "gpt-oss-120b.gguf", 36, 128),
        "qwen3-4b": headers.qwen3(folder / "qwen3-4b.gguf"),
        "gemma3-1b": headers.gemma3(folder / "gemma3-1b.gguf"),
        "deepseek-v2-lite": headers.deepseek2(folder / "deepseek-v2-lite.gguf"),
        "qwen3-next": headers.qwen3next(folder / "qwen3-next.gguf"),
    }


@pytest.fixture(scope="session")
def model(files: dict[str, Path]) -> Callable[[str], Model]:
    known = {name: read_model(path) for name, path in files.items()}
    return known.__getitem__
