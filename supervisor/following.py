"""A log that others append to, read as it grows, over its being cut: copied to `<name>.1` and truncated (`logfiles.cap`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


class Follower:
    """Whole lines from byte `at` on. What was written between two looks before a cut is read from the copy; what the cut
    itself loses is lost here, too."""

    def __init__(self, path: Path, at: int) -> None:
        self._path, self._at = path, at
        self._half = b""

    def take(self) -> list[str]:
        """Lines that are new since the last time. Never raises for a file that is not there."""
        data = b""
        try:
            with self._path.open("rb") as file:
                if file.seek(0, 2) < self._at:
                    data, self._at = self._before_the_cut(), 0
                file.seek(self._at)
                data += file.read()
                self._at = file.tell()
        except OSError:
            pass
        *lines, self._half = (self._half + data).split(b"\n")
        return [line.decode("utf-8", "replace") for line in lines]

    def _before_the_cut(self) -> bytes:
        """What stood behind our place when the file was copied. Nothing where the copy is shorter: then it is not known."""
        try:
            with self._path.with_name(f"{self._path.name}.1").open("rb") as copy:
                copy.seek(self._at)
                return copy.read()
        except OSError:
            return b""
