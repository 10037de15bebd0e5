"""Engines that keep one pool of positions for all conversations, and an arena that grows with the longest answer.

The arithmetic behind docs/guides/reading-the-ledger.md: a pool and a linear arena in a budget that a "reserve" only
shapes. Sizes are bytes; positions and tokens are counts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import frozen

if TYPE_CHECKING:
    from collections.abc import Sequence


@frozen
class Linear:
    """A buffer of `base` bytes and `slope` bytes for each unit of the setting that it grows with."""

    base: float
    slope: float

    def at(self, setting: int) -> float:
        """Bytes for a setting."""
        return self.base + self.slope * setting

    def most(self, room: float) -> int:
        """The largest setting that `room` bytes allow; 0 where not even the base goes in."""
        return max(0, int((room - self.base) / self.slope))


def fit_linear(boots: Sequence[tuple[int, float]]) -> Linear:
    """Base and slope from recorded boots (setting, bytes), by least squares. Two of different settings at least, else
    ValueError: one says nothing of a slope."""
    count = len(boots)
    mean_x = sum(x for x, _ in boots) / count if count else 0.0
    mean_y = sum(y for _, y in boots) / count if count else 0.0
    spread = sum((x - mean_x) ** 2 for x, _ in boots)
    if not spread:
        raise ValueError("a slope needs two boots with different settings")
    slope = sum((x - mean_x) * (y - mean_y) for x, y in boots) / spread
    return Linear(mean_y - slope * mean_x, slope)


@frozen
class Pooled:
    """One such engine. `fixed` is what it needs whatever the settings (a vision tower)."""

    position: int
    slot: int
    arena: Linear
    fixed: int = 0

    def pool(self, positions: int, slots: int) -> int:
        """Bytes of the pool, with what each slot keeps beside it."""
        return positions * self.position + slots * self.slot

    def need(self, positions: int, slots: int, max_tokens: int) -> float:
        """Bytes of pool, arena and the fixed part."""
        return self.pool(positions, slots) + self.arena.at(max_tokens) + self.fixed

    def most_tokens(self, budget: float, positions: int, slots: int) -> int:
        """The ceiling of the output setting: what the arena may grow to beside the pool. A plan above it is refused
        before anything is spawned, for the arena is not shrunk: it fails to be allocated."""
        return self.arena.most(budget - self.pool(positions, slots) - self.fixed)


@frozen
class Reserve:
    """What one value of a reserve does. `positions` is the pool that goes in beside it, `binds` the term that decides."""

    reserve: int
    budget: int
    positions: int
    binds: str
    changes: bool
    """Whether this value does anything that the next lower one did not."""


def sweep(
    engine: Pooled, device: int, reserves: Sequence[int], positions: int, slots: int, max_tokens: int, margin: int = 0
) -> list[Reserve]:
    """What the values of a reserve do to a wanted pool, which such an engine halves until it goes in.

    A reserve is a term of an inequality, not memory that is kept: below what the pool needs it changes nothing, above
    it half of the pool is gone.
    """
    found: list[Reserve] = []
    for reserve in sorted(reserves):
        budget = device - reserve
        fitting = positions
        while fitting > 0 and engine.need(fitting, slots, max_tokens) + margin > budget:
            fitting //= 2
        if not fitting:
            binds = "arena: the budget does not even hold it without a pool"
        elif fitting < positions:
            binds = f"reserve: it leaves room for {fitting:,} of {positions:,} positions"
        else:
            binds = "pool: it is as large as was asked for, and a lower reserve gives it nothing"
        changed = not found or found[-1].positions != fitting
        found.append(Reserve(reserve, budget, fitting, binds, changed))
    return found


def admitted(pool: int, requests: Sequence[int]) -> int:
    """How many of these requests (positions each, in order) such an engine holds at once: it reserves prompt and
    answer of each when it admits it, and the first that does not go in waits, with all behind it."""
    taken = 0
    for number, request in enumerate(requests):
        taken += request
        if taken > pool:
            return number
    return len(requests)
