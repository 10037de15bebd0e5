"""Catalog, locate and resolve: cheap questions about models, and the answers to wrong ones."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from supervisor.errors import ModelError
from tests.workers.wheels import CONTENT, tiny_model
from workers import models

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("QUEENRIGHT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch, cache: Path) -> Path:
    """The tiny model, as a pull leaves it."""
    model = tiny_model()
    monkeypatch.setattr(models, "_CATALOG", (model,))
    path = cache / "models" / model.file
    path.parent.mkdir(parents=True)
    path.write_bytes(CONTENT)
    models.stamp_path(model).write_bytes(models.stamp_of(path.stat(), model.sha256))
    return path


def test_the_catalog_has_a_chat_and_an_embedding_model_fully_pinned() -> None:
    assert [(model.name, model.role) for model in models.catalog()] == [
        ("smollm2-135m", "chat"),
        ("minilm-l6", "embed"),
    ]
    for model in models.catalog():
        for digest in (model.sha256, *(source.sha256 for source in model.sources)):
            assert len(bytes.fromhex(digest)) == 32


def test_a_pulled_model_is_found_by_its_stamp(tiny: Path) -> None:
    assert models.locate("tiny") == tiny
    assert models.resolve("tiny") == tiny


def test_a_model_that_changed_since_it_was_hashed_is_not_taken(tiny: Path) -> None:
    os.truncate(tiny, 5)
    assert models.locate("tiny") is None


def test_a_stamp_of_another_content_is_not_taken(tiny: Path) -> None:
    models.stamp_path(tiny_model()).write_bytes(models.stamp_of(tiny.stat(), "0" * 64))
    assert models.locate("tiny") is None
    models.stamp_path(tiny_model()).write_bytes(b"garbage")
    assert models.locate("tiny") is None


def test_a_known_model_that_is_not_here_says_how_to_get_it() -> None:
    with pytest.raises(ModelError, match="queenright model pull smollm2-135m"):
        models.resolve("smollm2-135m")


def test_a_misspelt_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(ModelError, match=r"did you mean smollm2-135m\?") as caught:
        models.resolve("smollm-135M")
    assert "minilm-l6" in caught.value.next_step
    with pytest.raises(ModelError, match="no model 'zzz'"):
        models.locate("zzz")


def test_paths_are_resolved_against_the_base(tmp_path: Path) -> None:
    (tmp_path / "my.gguf").write_bytes(b"GGUF")
    assert models.resolve("my.gguf", tmp_path) == tmp_path / "my.gguf"
    assert models.resolve(str(tmp_path / "my.gguf")) == tmp_path / "my.gguf"
    for bad, why in (
        ("other.gguf", "does not exist"),
        ("~nobody-at-all/x.gguf", "does not exist"),
        ("./", "directory"),
    ):
        with pytest.raises(ModelError, match=why):
            models.resolve(bad, tmp_path)


@pytest.mark.process
def test_asking_for_a_model_imports_nothing_heavy() -> None:
    code = (
        "import sys; from workers import commands, models; models.locate('minilm-l6');"
        "print(sorted({'numpy', 'gguf', 'rich', 'httpx', 'trio', 'filelock'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
