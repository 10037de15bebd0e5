"""Who is killed, when, and what must hold then: a table without holes. Pure.

Every combination of SIGKILL over five kinds of process, singly and together, at every named moment of an engine's life.
The rules below say what must come of it; `table` expands them and raises where a combination has no rule, or two.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from itertools import combinations
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


class Who(StrEnum):
    """One process of each kind; the member is the only one."""

    MEMBER = "member"
    KEEPER = "keeper"
    WARDEN = "warden"
    PROXY = "proxy"
    SERVER = "server"


class When(StrEnum):
    """A moment that can be seen from outside. test_fault_matrix.py has what each is waited for by."""

    LOADING = "loading"
    """The first server was started and loads its model."""
    SERVING = "serving"
    """All runs, nobody asks."""
    STREAMING = "streaming"
    """The first token of a stream has arrived, and many are to come."""
    REBUILDING = "rebuilding"
    """A proxy was killed before; the server of the next generation loads its model."""
    STOPPING = "stopping"
    """`queenright stop` was obeyed; a server that ignores SIGTERM is given its grace."""


class Then(StrEnum):
    """What becomes of the engine."""

    REPAIRED = "repaired"
    """It is whole again and serves its member; what was not killed, nor lost its parent, is the same process."""
    ENDS = "ends"
    """The warden lives, and ends all of it: nobody uses it any more, or a stop was under way. No rebuild."""
    TAKEN = "taken along"
    """The warden is dead: the kernel takes everything. A member that lives may build again at once; else it stays so."""


class Stream(StrEnum):
    """What the member sees of a stream that was under way."""

    NONE = "none"
    """There was none, or nobody is left who could see it."""
    WHOLE = "whole"
    CUT = "cut"
    """An error that says so, never an end."""


@dataclass(frozen=True, slots=True)
class Rule:
    """For the moments `when`, and who is killed having all of `among` and none of `without`."""

    when: frozenset[When]
    then: Then
    stream: Stream = Stream.NONE
    among: frozenset[Who] = frozenset()
    without: frozenset[Who] = frozenset()
    only: frozenset[Who] = frozenset(Who)

    def fits(self, when: When, who: frozenset[Who]) -> bool:
        """Whether it speaks of this cell."""
        return when in self.when and self.among <= who and not self.without & who and who <= self.only


@dataclass(frozen=True, slots=True)
class Cell:
    """One test."""

    when: When
    who: tuple[Who, ...]
    then: Then
    stream: Stream

    @property
    def title(self) -> str:
        """For its id."""
        return f"{self.when}: {'+'.join(self.who)}"


MEMBER, KEEPER, WARDEN = frozenset({Who.MEMBER}), frozenset({Who.KEEPER}), frozenset({Who.WARDEN})
QUIET = frozenset({When.LOADING, When.SERVING, When.REBUILDING})
STREAMING, STOPPING = frozenset({When.STREAMING}), frozenset({When.STOPPING})

RULES = (
    Rule(QUIET, Then.REPAIRED, without=WARDEN | MEMBER),
    Rule(QUIET, Then.ENDS, among=MEMBER, without=WARDEN),
    Rule(QUIET, Then.TAKEN, among=WARDEN),
    # Requests do not pass through the keeper: its death alone is seen by nobody.
    Rule(STREAMING, Then.REPAIRED, Stream.WHOLE, only=KEEPER),
    Rule(STREAMING, Then.REPAIRED, Stream.CUT, among=frozenset({Who.PROXY}), without=WARDEN | MEMBER),
    Rule(STREAMING, Then.REPAIRED, Stream.CUT, among=frozenset({Who.SERVER}), without=WARDEN | MEMBER | {Who.PROXY}),
    Rule(STREAMING, Then.ENDS, among=MEMBER, without=WARDEN),
    Rule(STREAMING, Then.TAKEN, Stream.CUT, among=WARDEN, without=MEMBER),
    Rule(STREAMING, Then.TAKEN, among=WARDEN | MEMBER),
    Rule(STOPPING, Then.ENDS, without=WARDEN),
    Rule(STOPPING, Then.TAKEN, among=WARDEN),
)


def combinations_of(who: Iterable[Who]) -> list[tuple[Who, ...]]:
    """All but the empty one, the small ones first."""
    everybody = tuple(who)
    return [some for size in range(1, len(everybody) + 1) for some in combinations(everybody, size)]


def table(rules: Iterable[Rule]) -> Mapping[tuple[When, tuple[Who, ...]], Cell]:
    """Every moment with every combination. Raises ValueError for a cell that no rule, or more than one, speaks of."""
    known = tuple(rules)
    cells = {}
    for when in When:
        for who in combinations_of(Who):
            fitting = [rule for rule in known if rule.fits(when, frozenset(who))]
            if len(fitting) != 1:
                raise ValueError(f"{len(fitting)} rules for {when}: {'+'.join(who)}")
            cells[when, who] = Cell(when, who, fitting[0].then, fitting[0].stream)
    return cells


CELLS = table(RULES)
