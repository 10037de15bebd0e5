"""Whether what lies there is what the manifest says. Reads only, apart from the stamp of a file that was hashed."""

from __future__ import annotations

import hashlib
import os
import stat
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Final

from attrs import frozen

from workers.cache import write_whole
from workers.models import stamp_beside, stamp_of

if TYPE_CHECKING:
    from workers.payload.manifest import Item, Manifest
    from workers.progress import Progress

CHUNK: Final = 8 << 20


class Status(StrEnum):
    """What a look at one file or directory found."""

    OK = "ok"
    """Size and SHA-256 are right; by its stamp, unless this look hashed it."""
    UNHASHED = "size only"
    """The size is right, and nobody hashed it as it is now. No fault."""
    MISSING = "missing"
    UNREADABLE = "unreadable"
    NOT_A_FILE = "not a file"
    TRUNCATED = "truncated"
    STALE = "stale in place"
    """Another file than the one that was named: longer, or of the right size with another content."""
    CHANGED = "changed"
    """Written to since it was hashed, or while it was. Only a full look can say what it is now."""
    RETIRED = "retired"
    """It was put aside on purpose. No fault."""


GOOD: Final = frozenset({Status.OK, Status.UNHASHED, Status.RETIRED})


@frozen
class Finding:
    """What is known of `path` now, in one word and in one sentence."""

    path: Path
    status: Status
    detail: str

    @property
    def is_good(self) -> bool:
        """Whether an engine can start with it."""
        return self.status in GOOD


def look(item: Item, *, full: bool, progress: Progress) -> Finding:
    """Size and time of change by default; every byte with `full`. Never raises for what it finds."""
    try:
        return _look(item, full, progress)
    except FileNotFoundError:
        from workers.payload.trash import find

        aside = find(item.path)
        if aside is not None:
            return Finding(item.path, Status.RETIRED, f"in {aside.folder}, instead of it {aside.to}")
        return Finding(item.path, Status.MISSING, "there is no such file")
    except OSError as error:
        return Finding(item.path, Status.UNREADABLE, f"{error.strerror}")


def _look(item: Item, full: bool, progress: Progress) -> Finding:
    def found(status: Status, detail: str) -> Finding:
        return Finding(item.path, status, detail)

    before = item.path.stat()
    if not stat.S_ISREG(before.st_mode):
        return found(Status.NOT_A_FILE, "it is a directory or a device")
    if before.st_size != item.size:
        said = f"{before.st_size:,} bytes, and the manifest says {item.size:,}"
        return found(Status.TRUNCATED if before.st_size < item.size else Status.STALE, said)
    if not full:
        if not os.access(item.path, os.R_OK):
            return found(Status.UNREADABLE, "no permission to read it")
        return _quick(item, before)
    progress.begin(f"hashing {item.path.name}", item.size)
    try:
        digest = sha256_of(item.path, item.size, progress)
    finally:
        progress.end()
    after = item.path.stat()
    if _shape(after) != _shape(before):
        return found(Status.CHANGED, "it was written to while it was hashed")
    if digest != item.sha256:
        return found(Status.STALE, f"SHA-256 {digest}, and the manifest says {item.sha256}")
    with suppress(OSError):  # a read-only directory: then the next quick look knows the size only
        write_whole(stamp_beside(item.path), stamp_of(after, digest))
    return found(Status.OK, f"{item.size:,} bytes, SHA-256 right")


def _quick(item: Item, now: os.stat_result) -> Finding:
    try:
        stamped = stamp_beside(item.path).read_bytes()
    except OSError:
        return Finding(item.path, Status.UNHASHED, "its size is right; `--full` hashes it")
    if stamped == stamp_of(now, item.sha256):
        return Finding(item.path, Status.OK, f"{item.size:,} bytes, unchanged since it was hashed")
    return Finding(
        item.path, Status.CHANGED, "written to since it was hashed, or hashed for another manifest; use --full"
    )


def look_at_directory(path: Path) -> Finding:
    """One that a container is to mount: podman refuses a bind mount whose source is not there."""
    if not path.is_dir():
        status = Status.NOT_A_FILE if path.exists() else Status.MISSING
        return Finding(path, status, "it is no directory" if path.exists() else "there is no such directory")
    if not os.access(path, os.R_OK | os.X_OK):
        return Finding(path, Status.UNREADABLE, "no permission to look into it")
    return Finding(path, Status.OK, "a directory")


def verify(manifest: Manifest, items: tuple[Item, ...], *, full: bool, progress: Progress) -> list[Finding]:
    """Every item and every directory, in the manifest's order."""
    rows = [look(item, full=full, progress=progress) for item in items]
    return rows + [look_at_directory(path) for path in manifest.directories]


def sha256_of(path: Path, size: int, progress: Progress) -> str:
    """SHA-256 in hexadecimal, told on the way; of what is longer than `size` bytes, of the part that tells so: a file that
    somebody goes on writing to would have no end. Raises OSError."""
    digest, done = hashlib.sha256(), 0
    with path.open("rb") as file:
        while done <= size and (chunk := file.read(CHUNK)):
            digest.update(chunk)
            progress.at(done := done + len(chunk))
    return digest.hexdigest()


def _shape(status: os.stat_result) -> tuple[int, int, int]:
    return status.st_ino, status.st_size, status.st_mtime_ns
