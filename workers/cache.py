"""The user's cache: where models and fingerprints live, and how a file gets into it whole or not at all."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

CACHE_VARIABLE: Final = "QUEENRIGHT_CACHE"
"""Environment variable that moves the cache. Everything in the cache can be made again; nothing else reads it."""

DIRECTORY_MODE: Final = 0o755
FILE_MODE: Final = 0o644


def cache_root() -> Path:
    """The cache directory, absolute. It need not exist.

    `$QUEENRIGHT_CACHE`, else the platform's own place (`$XDG_CACHE_HOME/queenright` on Linux).
    """
    named = os.environ.get(CACHE_VARIABLE, "").strip()
    if named:
        return Path(os.path.expanduser(named)).absolute()  # pathlib's raises for an unknown ~user
    usual = os.path.expanduser("~/.cache")
    if sys.platform == "linux" and not os.environ.get("XDG_CACHE_HOME") and usual.startswith("/"):
        return Path(usual, "queenright")  # what platformdirs says, without the 20 ms that its import takes
    import platformdirs

    return platformdirs.user_cache_path("queenright", appauthor=False).absolute()


def make_directory(path: Path) -> None:
    """`path` and its missing parents, mode 0755 whatever the umask (only what is made here is changed).

    Raises OSError.
    """
    for directory in [*reversed(path.parents), path]:
        try:
            directory.mkdir(mode=DIRECTORY_MODE)
        except FileExistsError:
            continue
        except OSError:
            if directory.is_dir():  # a read-only or foreign parent that is there already is no obstacle
                continue
            raise
        directory.chmod(DIRECTORY_MODE)
    if not path.is_dir():
        raise NotADirectoryError(20, "Not a directory", str(path))


def sync_directory(path: Path) -> None:
    """Make a rename in `path` survive a power cut (fsync(2): the file's own fsync does not cover its name)."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def install(temporary: Path, target: Path) -> None:
    """Put the finished file `temporary` (same filesystem) in the place of `target`: fsync, mode 0644, rename.

    Raises OSError; `target` is then what it was.
    """
    descriptor = os.open(temporary, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fchmod(descriptor, FILE_MODE)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    temporary.replace(target)
    sync_directory(target.parent)


def write_whole(target: Path, content: bytes) -> None:
    """Replace `target` with `content` atomically. A reader sees the old file or the new one. Raises OSError."""
    import tempfile

    descriptor, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    temporary = Path(name)
    try:
        with open(descriptor, "wb") as file:
            file.write(content)
        install(temporary, target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
