"""What buffers that grow with a setting really take: base + slope from boots that were measured, kept for the next plan.

Kept per (pin, model, device) in the cache, from which everything may go at any time: without it a plan is as good as the
first one was. A damaged file is none.
"""

from __future__ import annotations

import hashlib
import json
import math
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from workers.cache import cache_root, make_directory, write_whole

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

FOLDER: Final = "calibrations"
VERSION: Final = 1
BOOTS_KEPT: Final = 8
"""Different settings remembered for one buffer; the least recently measured go."""


class Growth(NamedTuple):
    """A buffer that grows linearly: bytes = base + slope * x."""

    base: float
    slope: float

    def at(self, x: float) -> int:
        """Bytes at this setting."""
        return round(self.base + self.slope * x)

    def ceiling(self, budget: int) -> int | None:
        """The largest whole x that stays within `budget` bytes; None where none does, or where it never grows."""
        if self.slope <= 0 or budget < self.base:
            return None
        return int((budget - self.base) // self.slope)


def fit(boots: dict[int, int]) -> Growth | None:
    """The line through measured boots ({x: bytes}), by least squares; None with fewer than two different x."""
    if len(boots) < 2:
        return None
    mean_x, mean_y = sum(boots) / len(boots), sum(boots.values()) / len(boots)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in boots.items()) / sum((x - mean_x) ** 2 for x in boots)
    return Growth(mean_y - slope * mean_x, slope)


def bound(boots: Mapping[int, int], x: int) -> int | None:
    """An upper bound at x of what grows convexly with it: the line between two boots around x, or the figure of the least one
    above it. None beyond the largest."""
    above = min((at for at in boots if at >= x), default=None)
    if above is None:
        return None
    below = max((at for at in boots if at <= x), default=None)
    if below is None or below == above:
        return boots[above]
    part = (x - below) / (above - below)
    return math.ceil(boots[below] + part * (boots[above] - boots[below]))


class Calibrations:
    """The boots that were measured with one pin, model and device. `device` is its UUID, or "host"."""

    def __init__(self, pin: str, model: str, device: str, root: Path | None = None) -> None:
        self._key = [pin, model, device]
        name = hashlib.sha256("\0".join(self._key).encode()).hexdigest()[:24]
        self.path = (root if root is not None else cache_root()) / FOLDER / f"{name}.json"

    def growth(self, buffer: str) -> Growth | None:
        """What is known of a buffer (`compute`, say); None before two boots of different settings."""
        return fit(self.boots(buffer))

    def boots(self, buffer: str) -> dict[int, int]:
        """{x: bytes}, the least recently measured first."""
        return {int(x): int(size) for x, size in self._read().get(buffer, [])}

    def all(self) -> dict[str, dict[int, int]]:
        """What is known of every buffer."""
        return {buffer: dict(boots) for buffer, boots in self._read().items()}

    def remember(self, buffer: str, x: int, size: int) -> None:
        """A boot was measured. That it cannot be written is no error: the next plan is modelled then."""
        known = self._read()
        if (x, size) in known.get(buffer, []):
            return
        boots = dict(known.get(buffer, []))
        boots.pop(x, None)
        known[buffer] = [*boots.items(), (x, size)][-BOOTS_KEPT:]
        with suppress(OSError):
            make_directory(self.path.parent)  # two groups of one keeper may write it at once, and two keepers
            write_whole(self.path, json.dumps({"version": VERSION, "key": self._key, "buffers": known}).encode())

    def _read(self) -> dict[str, list[tuple[int, int]]]:
        try:
            said = json.loads(self.path.read_text(encoding="utf-8"))
            if said["version"] != VERSION or said["key"] != self._key:
                return {}
            found = {str(name): [(int(x), int(size)) for x, size in boots] for name, boots in said["buffers"].items()}
        except (OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError):
            return {}
        # No buffer has less than nothing: a plan would be below its other lines.
        return found if all(min(boot) >= 0 for boots in found.values() for boot in boots) else {}
