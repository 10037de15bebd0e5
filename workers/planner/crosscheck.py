"""llama.cpp's own estimate beside this arithmetic: whose figure counts, and where the two say different things. Pure.

An estimate speaks of three parts of each place: weights, keys and values (with recurrent state), and the compute buffer;
in whole MiB, rounded down. Where it agrees with a part, the lines stay, which say more, and count as checked; where it
does not, its one figure replaces them. Driver, process, prompt cache and checkpoints it knows nothing of.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from attrs import evolve

from workers.planner.ledger import Account, Line
from workers.planner.shapes import HOST, MIB, Known

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from workers.estimator import Estimate, Part
    from workers.planner.shapes import Machine

BAND_SHARE: Final = 0.01
"""Part (not bytes) by which weights or cache may differ before that is told: both sides count exactly."""

BUFFER_SHARE: Final = 0.12
"""The same for compute buffers, of which ours is an upper bound: 0 to 10 % above, of six architectures."""

BAND_BYTES: Final = 2 * MIB
"""And so much at least: it rounds down, once for each device."""


class Compared(NamedTuple):
    """One part of one place (of all together: `place` is ""), in bytes: by this arithmetic, and by llama.cpp."""

    place: str
    what: str
    modelled: int
    estimated: int

    @property
    def differs(self) -> bool:
        """Whether they are further apart than rounding, or than an upper bound may be above."""
        share = BUFFER_SHARE if self.what == BUFFER else BAND_SHARE
        apart = abs(self.modelled - self.estimated)
        return apart > max(BAND_BYTES, int(share * max(self.modelled, self.estimated)))

    @property
    def is_heeded(self) -> bool:
        """Whether the estimate replaces our figure. Weights are the file's own, and none of them can be left out."""
        return bool(self.place) and (self.what != WEIGHTS or self.estimated > self.modelled)


class Check(NamedTuple):
    """What came of asking. `why_none` is a sentence where there is no estimate, else ""."""

    by: str = ""
    compared: tuple[Compared, ...] = ()
    why_none: str = ""

    @property
    def differing(self) -> tuple[Compared, ...]:
        """Where the two say different things."""
        return tuple(one for one in self.compared if one.differs)


class Correction(NamedTuple):
    """Factors by which this arithmetic is off for one model, as an estimate showed: for what is planned after it."""

    weights: float = 1.0
    cache: float = 1.0
    buffer: float = 1.0

    def of(self, line: Line) -> Line:
        """A line as it should have been."""
        if line.how is Known.MEASURED:
            return line
        factors = {WEIGHTS: self.weights, CACHE: self.cache, BUFFER: self.buffer}
        return evolve(line, bytes=round(line.bytes * factors.get(part_of(line) or "", 1.0)))


NONE: Final = Correction()

WEIGHTS: Final = "weights"
CACHE: Final = "keys and values"
BUFFER: Final = "compute buffer"
PARTS: Final[Mapping[str, tuple[str, ...]]] = {
    WEIGHTS: (WEIGHTS,),
    CACHE: (CACHE, "recurrent state"),
    BUFFER: (BUFFER,),
}
"""How the lines of each part begin."""


def part_of(line: Line) -> str | None:
    """Which part a line belongs to; None for what no estimate speaks of."""
    return next((what for what, begins in PARTS.items() if line.what.startswith(begins)), None)


def correction(check: Check) -> Correction:
    """What the estimate says of this arithmetic. A part of which we count nothing has no factor."""

    def factor(what: str) -> float:
        ours = sum(one.modelled for one in check.compared if one.what == what)
        theirs = sum(one.estimated for one in check.compared if one.what == what)
        return theirs / ours if ours and any(one.what == what and one.is_heeded for one in check.differing) else 1.0

    return Correction(factor(WEIGHTS), factor(CACHE), factor(BUFFER))


def compare(
    account: Account, estimate: Estimate, machine: Machine, without_cards: Callable[[], Account]
) -> tuple[Account, Check]:
    """The account with what the estimate knows better, and the two side by side.

    An estimator without the machine's cards (the wheel is built for the processor) can only say what weights and cache
    come to, wherever they lie: they are held against `without_cards`, the account of the same on the processor alone, and
    nothing is replaced.
    """
    devices = estimate.parts[:-1]
    if not machine.is_discrete or all(line.place == HOST for line in account.lines):
        sums = _summed(estimate.parts)
        return _corrected(account, {HOST: sums}, estimate)
    if not devices:
        alone = without_cards()
        said = tuple(
            Compared("", what, _ours(alone, HOST, what), size)
            for what, size in _summed(estimate.parts).items()
            if what != BUFFER
        )
        return account, Check(estimate.by, said)
    if (places := _places(devices, machine)) is None:
        return account, Check(estimate.by, why_none=f"{estimate.by} sees other devices than the plan")
    by_place = {place: _sizes(part) for place, part in zip((*places, HOST), estimate.parts, strict=True)}
    return _corrected(account, by_place, estimate)


def _places(devices: Iterable[Part], machine: Machine) -> tuple[str, ...] | None:
    """The machine's word for each device: by what its server calls it, else, if there are as many, by order."""
    names = [one.device for one in devices]
    known = {card.engine_name: card.key for card in machine.cards if card.engine_name}
    if all(name in known for name in names):
        return tuple(known[name] for name in names)
    if not known and len(names) == len(machine.cards):
        return tuple(card.key for card in machine.cards)
    return None


def _sizes(part: Part) -> dict[str, int]:
    return {WEIGHTS: part.model * MIB, CACHE: part.context * MIB, BUFFER: part.compute * MIB}


def _summed(parts: Iterable[Part]) -> dict[str, int]:
    found = dict.fromkeys(PARTS, 0)
    for part in parts:
        for what, size in _sizes(part).items():
            found[what] += size
    return found


def _ours(account: Account, place: str, what: str) -> int:
    return sum(line.bytes for line in account.lines if line.place == place and part_of(line) == what)


def _corrected(account: Account, said: Mapping[str, Mapping[str, int]], estimate: Estimate) -> tuple[Account, Check]:
    lines, compared = list(account.lines), []
    for place, sizes in said.items():
        for what, size in sizes.items():
            if any(line.how is Known.MEASURED and part_of(line) == what and line.place == place for line in lines):
                continue  # what was seen goes before what was worked out, by whomever
            one = Compared(place, what, _ours(account, place, what), size)
            if one.modelled or one.estimated:
                compared.append(one)
                lines = _with(lines, one, estimate.by)
    return evolve(account, lines=tuple(lines)), Check(estimate.by, tuple(compared))


def _with(lines: list[Line], one: Compared, by: str) -> list[Line]:
    """The lines with the better figure. A buffer is always the estimate's, for ours is a bound."""
    mine = [line for line in lines if line.place == one.place and part_of(line) == one.what]
    if not one.is_heeded or (not one.differs and one.what != BUFFER):
        return [
            evolve(line, how=Known.ESTIMATED) if line in mine and line.how is Known.MODELLED else line for line in lines
        ]
    at = lines.index(mine[0]) if mine else len(lines)
    why = f"{by}; by the header {one.modelled / MIB:,.0f} MiB"
    new = Line(one.what, one.estimated + MIB, one.place, Known.ESTIMATED, why)  # it rounds down
    kept = [line for line in lines if line not in mine]
    kept.insert(min(at, len(kept)), new)
    return kept
