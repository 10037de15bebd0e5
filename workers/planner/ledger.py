"""The account of a launch: what takes how many bytes, where, and how that is known; and whether it goes in.

What is decided is read off this table, so the table adds up to the decision by construction.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from attrs import frozen

from workers.planner.shapes import HOST, Known

if TYPE_CHECKING:
    from collections.abc import Iterable


@frozen
class Line:
    """One item. `place` is HOST or a card's key; `why` is how it was worked out, in a few words. A transient one is
    needed at once with the rest at its peak, and is not held."""

    what: str
    bytes: int
    place: str
    how: Known
    why: str = ""
    transient: bool = False


class Budget(NamedTuple):
    """What a place has: `free` now, of which `reserve` is left alone."""

    place: str
    name: str
    total: int
    free: int
    reserve: int
    source: str = ""

    @property
    def usable(self) -> int:
        """Bytes that a plan may take."""
        return max(0, self.free - self.reserve)


@frozen
class Account:
    """The lines of a launch against the budgets of a machine."""

    lines: tuple[Line, ...]
    budgets: tuple[Budget, ...]

    def needed(self, place: str) -> int:
        """Bytes of all lines there."""
        return sum(line.bytes for line in self.lines if line.place == place)

    def left(self, budget: Budget) -> int:
        """Bytes that remain of a budget; below 0 where it does not fit."""
        return budget.usable - self.needed(budget.place)

    @property
    def total(self) -> int:
        """Bytes of all lines, everywhere."""
        return sum(line.bytes for line in self.lines)

    @property
    def fits(self) -> bool:
        """Whether every place has room for its lines."""
        return all(self.left(budget) >= 0 for budget in self.budgets)

    @property
    def cards_fit(self) -> bool:
        """The same, of the cards alone."""
        return all(self.left(budget) >= 0 for budget in self.budgets if budget.place != HOST)

    @property
    def tightest(self) -> Budget:
        """The place with the least room left."""
        return min(self.budgets, key=self.left)

    def largest(self, place: str) -> Line:
        """The largest line of a place."""
        return max((line for line in self.lines if line.place == place), key=lambda line: line.bytes)


def summed(lines: Iterable[Line]) -> tuple[Line, ...]:
    """Lines of the same name, place and source as one; those of nothing left out."""
    merged: dict[tuple[str, str, Known, str, bool], int] = {}
    for line in lines:
        key = (line.what, line.place, line.how, line.why, line.transient)
        merged[key] = merged.get(key, 0) + line.bytes
    return tuple(
        Line(what, size, place, how, why, transient)
        for (what, place, how, why, transient), size in merged.items()
        if size
    )
