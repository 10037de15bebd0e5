"""Wheels that are installed here, as their installer recorded them (packaging.python.org, "Recording installed projects").

importlib.metadata says the same and more. Importing it takes a tenth of what a front end does before its engine begins to
start, most of that for the mail and zip files that metadata may be read from (measured: docs/reference/bench.md).
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

INFO: Final = ".dist-info"


class Wheel(NamedTuple):
    """One that is installed. `info` is the directory of what is recorded of it."""

    name: str
    version: str
    info: Path

    def files(self) -> Iterator[Path]:
        """All that it lists, whether it is there or not; what has a comma in its name does not come whole. None where the list
        cannot be read."""
        with suppress(OSError, ValueError):
            for line in (self.info / "RECORD").read_text(encoding="utf-8").splitlines():
                yield Path(os.path.normpath(self.info.parent / line.rsplit(",", 2)[0]))


def find(name: str) -> Wheel | None:
    """The one of that name that an import would take: names are compared as installers do (PEP 503)."""
    wanted = _plain(name)
    for place in sys.path:
        with suppress(OSError, ValueError):
            for entry in os.listdir(place or "."):
                if entry.endswith(INFO):
                    stem, _, version = entry.removesuffix(INFO).rpartition("-")
                    if _plain(stem) == wanted:
                        return Wheel(name, version, Path(place, entry).absolute())
    return None


def _plain(name: str) -> str:
    return name.lower().replace("-", "_").replace(".", "_")
