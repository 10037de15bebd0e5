"""What a place is made of: models, the fake's executable, and the launches of its configuration."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.support import FAKE_LLAMA_SERVER

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

CHAT, EMBED = "smollm2-135m", "minilm-l6"
"""The real models, of the catalog."""
ONE_THREAD = ("--threads", "1")  # the test machine has little else to give


@dataclass(frozen=True, slots=True)
class Kit:
    """What all tests of a session share: models, a llama-server, a cache, and which proxy runs."""

    root: Path
    chat: Path
    embed: Path
    server: Path | None
    """None is the one that is found without being named."""
    proxy: str
    """`built-in`, or the path of a llama-swap."""
    cache: Path
    title: str = "fake llama-server"
    """The server's name in a run's summary."""
    is_fake: bool = True
    """Whether the server takes knobs."""

    @property
    def proxy_title(self) -> str:
        """For a run's summary, as tests/proxy names it."""
        return self.proxy if self.proxy == "built-in" else f"llama-swap ({self.proxy})"


@dataclass(frozen=True, slots=True)
class Launch:
    """One server for `Place.configure`. Knobs are the fake's, with underscores."""

    role: str
    model: Path | str | None = None
    knobs: Mapping[str, object] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()
    idle_ttl_s: int = 0
    context: int | None = None
    sequences: int = 1
    pool: int = 0


def make_kit(root: Path) -> Kit:
    """Models and the fake's executable, in `root`. It is a script, which everybody who comes asks for its help: a Python
    less each time."""
    server, page = root / "fake-llama-server", root / "fake-llama-server.help"
    fake = [sys.executable, "-I", "-S", str(FAKE_LLAMA_SERVER)]
    with page.open("wb") as file:
        subprocess.run([*fake, "--help"], stdout=file, check=True)
    server.write_text(f'#!/bin/sh\n[ "$*" != --help ] || exec cat {page}\nexec {shlex.join(fake)} "$@"\n')
    server.chmod(0o755)
    chat, embed = root / "chat.gguf", root / "embed.gguf"
    write_model(chat, "llama")
    write_model(embed, "bert")
    return Kit(root, chat, embed, server, proxy(), root / "cache")


def proxy() -> str:
    """For `Kit.proxy`: the real llama-swap that the environment names, else the built-in one."""
    return os.environ.get("QUEENRIGHT_LLAMA_SWAP") or "built-in"


def write_model(path: Path, architecture: str) -> None:
    """A GGUF of a few hundred bytes, whole and valid."""
    import gguf
    import numpy as np

    writer = gguf.GGUFWriter(path, architecture)
    writer.add_context_length(4096)
    writer.add_block_count(1)
    writer.add_tensor("token_embd.weight", np.zeros((4, 32), np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
