"""`queenright init`: write a commented configuration. It starts nothing and overwrites nothing."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from supervisor.config_find import FILE_NAME
from supervisor.config_text import TEMPLATE, TEMPLATE_MODELS
from supervisor.errors import QueenrightError, UsageError

if TYPE_CHECKING:
    import argparse

_NO_LINKS: Final = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})
"""What link(2) says on filesystems without hard links (FAT, some network and FUSE ones)."""


class Init:
    """The command, as the command line wants it."""

    help = f"write a commented {FILE_NAME}"

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add this command's arguments."""
        parser.add_argument(
            "path", nargs="?", type=Path, metavar="PATH", help=f"file or directory (default: ./{FILE_NAME})"
        )
        parser.add_argument("--force", action="store_true", help="overwrite a file that is there")
        parser.add_argument("--print", action="store_true", dest="to_stdout", help="print it, and write nothing")

    def run(self, args: argparse.Namespace) -> int:
        """Do it.

        Raises:
            UsageError: the file is there and `--force` was not given, or the path cannot be one for a file.
            QueenrightError: the file cannot be written.
        """
        if args.to_stdout:
            sys.stdout.write(TEMPLATE)
            return 0
        target = target_of(args.path)
        write(target, TEMPLATE, force=args.force)
        print(
            f"wrote {target}\n"
            "  Look it through. Then\n"
            f"  `queenright model pull {' '.join(TEMPLATE_MODELS)}` brings the models that it names, and\n"
            "  `queenright run` starts the engine."
        )
        return 0


COMMAND: Final = Init()


def target_of(path: Path | None) -> Path:
    """The file to write, absolute: `path`, or FILE_NAME in it where it is a directory; in the working directory where
    none is given. A symlink is followed, so that `--force` writes the file it stands for and leaves the link."""
    chosen = Path() if path is None else path
    return Path(os.path.realpath(chosen / FILE_NAME if os.path.isdir(chosen) else chosen))


def write(target: Path, text: str, *, force: bool) -> None:
    """Write `text` to `target` so that it is there whole or not at all, also when the power goes (fsync(2), rename(2)).

    Raises:
        UsageError: `target` is there and `force` is false, or it is something other than a file.
        QueenrightError: it cannot be written.
    """
    there = os.path.exists(target)
    if there and not os.path.isfile(target):
        raise UsageError(f"{target} is not a regular file", "Name a file, or a directory to put one into.")
    taken = UsageError(
        f"{target} exists and was left as it is", "`--force` overwrites it; `--print` shows the text only."
    )
    if there and not force:
        raise taken
    temporary = target.with_name(f".queenright-{secrets.token_hex(8)}.tmp")
    try:
        try:
            # Through os.open, not tempfile: the file gets the mode that the umask says, as any file one writes.
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
            with open(descriptor, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(descriptor)
                if there:
                    os.fchmod(descriptor, target.stat().st_mode & 0o777)
            if force:
                os.replace(temporary, target)
            else:
                _place(temporary, target)
        finally:
            temporary.unlink(missing_ok=True)
    except FileExistsError:
        raise taken from None
    except OSError as error:
        raise QueenrightError(
            f"{target} cannot be written: {error.strerror or error}",
            "Name another path: `queenright init PATH`; or take the text from `queenright init --print`.",
        ) from None
    _sync_directory(target.parent)


def _place(temporary: Path, target: Path) -> None:
    """Give the file its name, but only if nobody has that name by now (FileExistsError): rename(2) would overwrite."""
    try:
        os.link(temporary, target)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666))
        os.replace(temporary, target)


def _sync_directory(directory: Path) -> None:
    with contextlib.suppress(OSError):  # the file is there; not every filesystem lets a directory be opened and synced
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
