"""What a check can find. Three words: a check that could not look is no green one (Jepsen's checkers have them too)."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable


class Verdict(StrEnum):
    """Of one invariant, or of a whole run."""

    HOLDS = "holds"
    BROKEN = "broken"
    UNKNOWN = "unknown"


class Judgement(NamedTuple):
    """What one invariant came to in one round (0: at the end), and what was seen."""

    invariant: str
    verdict: Verdict
    seen: str = ""
    round: int = 0


def worst(judgements: Iterable[Judgement]) -> Verdict:
    """Of all: broken before unknown before holds. Nothing judged is unknown: a run that looked at nothing proved nothing."""
    found = {judgement.verdict for judgement in judgements}
    return next((word for word in (Verdict.BROKEN, Verdict.UNKNOWN, Verdict.HOLDS) if word in found), Verdict.UNKNOWN)
