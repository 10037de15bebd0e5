"""Directories that must be there before an engine starts: a container engine refuses a bind mount without its source."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from supervisor.errors import PayloadError
from workers.cache import make_directory

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


def make(paths: Iterable[Path]) -> None:
    """Make those that are missing, empty. Raises PayloadError for one that cannot be made or looked into."""
    for path in paths:
        try:
            make_directory(path)
        except OSError as error:
            raise PayloadError(
                f"the directory {path} cannot be made: {error.strerror or error}", "make it, or correct its path"
            ) from None
        if not os.access(path, os.R_OK | os.X_OK):
            raise PayloadError(
                f"the directory {path} cannot be read", f"check its owner and permissions: ls -ld {path}"
            )
