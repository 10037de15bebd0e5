"""Where a command leaves what it found out: looked at before the minutes that it takes, not after them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from supervisor.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path


def folder(path: Path) -> Path:
    """This directory, made if it is not there. Raises UsageError for one that cannot be written into."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{path} cannot be made: {error.strerror}", "name another directory with --out") from error
    if not os.access(path, os.W_OK | os.X_OK):
        raise UsageError(f"{path} cannot be written into", "name another directory with --out")
    return path
