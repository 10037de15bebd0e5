"""The arithmetic of the bench: paired ratios, their median, and how sure it is. Pure: it is given what was measured.

A time by itself says nothing on a machine that does other things as well, so every time is taken beside another one in
the same run (A B A B ...), and what counts is the ratio within each pair: what slows both is gone from it. The
interval is the percentile bootstrap of the median (Efron 1979), with a fixed seed: the same times, the same interval.
"""

from __future__ import annotations

import random
from statistics import median
from typing import TYPE_CHECKING, Final

from attrs import frozen

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

SEED: Final = 1
RESAMPLES: Final = 2000
"""More changes an end of the interval by less than the third digit that is shown."""
COVERED: Final = 0.95

RATIO: Final = "x"
MEBIBYTES: Final = "MiB"
MILLISECONDS: Final = "ms"
RATE: Final = "tokens/s"
PERCENT: Final = "%"
"""Of one core."""


@frozen
class Figure:
    """One line of the result.

    `value` is the median, `low` and `high` the ends of its 95 % interval, all in `unit`: RATIO, or MEBIBYTES or PERCENT
    where there is nothing to compare with. `ours` and `base` are what was measured, in seconds for a ratio, in the order of
    the pairs; without a comparison `base` is empty. `goal` is the most that `value` should be.
    """

    cell: str
    name: str
    against: str
    unit: str
    value: float
    low: float
    high: float
    goal: float | None
    ours: tuple[float, ...]
    base: tuple[float, ...]

    @property
    def verdict(self) -> str:
        """`met` or `missed`, and whether the interval has the goal inside; "" without a goal."""
        if self.goal is None:
            return ""
        word = "met" if self.value <= self.goal else "missed"
        return f"{word}, but not surely" if self.low <= self.goal < self.high else word


def in_turn(
    ours: Callable[[], float], base: Callable[[], float], pairs: int, tell: Callable[[int], None]
) -> list[tuple[float, float]]:
    """Measure A B A B ... `tell` hears how many pairs are done."""
    found = []
    for number in range(1, pairs + 1):
        found.append((ours(), base()))
        tell(number)
    return found


def ratio_figure(
    cell: str, name: str, against: str, pairs: Sequence[tuple[float, float]], *, goal: float | None = None
) -> Figure:
    """The figure of (ours, base) pairs of seconds. Raises ValueError without a pair, or for a base of nothing."""
    ratios = paired_ratios(pairs)
    low, high = interval(ratios)
    ours, base = zip(*pairs, strict=True)
    return Figure(cell, name, against, RATIO, median(ratios), low, high, goal, ours, base)


def amount(cell: str, name: str, unit: str, values: Sequence[float], *, goal: float | None = None) -> Figure:
    """The figure of something that is compared with nothing. Raises ValueError without a value."""
    low, high = interval(values)
    return Figure(cell, name, "", unit, median(values), low, high, goal, tuple(values), ())


def paired_ratios(pairs: Sequence[tuple[float, float]]) -> list[float]:
    """Ours through base, pair by pair. Raises ValueError for a base that is not above 0."""
    if any(base <= 0 for _, base in pairs):
        raise ValueError("a time of nothing cannot be compared with")
    return [ours / base for ours, base in pairs]


def interval(values: Sequence[float], *, seed: int = SEED, resamples: int = RESAMPLES) -> tuple[float, float]:
    """Both ends of the 95 % percentile bootstrap interval of the median. Raises ValueError without a value."""
    if not values:
        raise ValueError("nothing was measured")
    source = random.Random(seed)
    medians = sorted(median(source.choices(values, k=len(values))) for _ in range(resamples))
    cut = round((1 - COVERED) / 2 * (resamples - 1))
    return medians[cut], medians[-1 - cut]
