"""PURE: which models must leave before one may load, and whether that can happen now. llama-swap's group rules."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from workers.proxy.config import GroupSpec


class Verdict(Enum):
    """What to do with a request for a model."""

    SERVE = "serve"
    """It is ready and nothing is in the way."""
    WAIT = "wait"
    """Another swap touches the same models, or one that must leave still answers somebody."""
    SWAP = "swap"
    """Stop what must leave, then load."""


def home_groups(groups: Iterable[GroupSpec]) -> dict[str, GroupSpec]:
    """Model id to its group."""
    return {member: group for group in groups for member in group.members}


def evictions(target: str, running: Iterable[str], home: Mapping[str, GroupSpec]) -> frozenset[str]:
    """The running models that `target` cannot be in memory with.

    Siblings leave if the group swaps; members of other groups leave if the target's group is exclusive and theirs is
    not persistent. Loading from a group that is not exclusive moves nobody outside it, whatever they are.
    """
    own = home[target]
    leaving = set()
    for model in running:
        other = home[model]
        if model == target:
            continue
        if (other is own and own.swap) or (other is not own and own.exclusive and not other.persistent):
            leaving.add(model)
    return frozenset(leaving)


def decide(
    target: str,
    *,
    ready: bool,
    leaving: frozenset[str],
    busy: Collection[str],
    swaps: Mapping[str, frozenset[str]],
) -> Verdict:
    """What to do with a request for `target`, which no swap is loading yet.

    `busy` are models with requests in flight; `swaps` maps each model being loaded to those leaving for it.
    A ready model whose rules ask others to leave swaps too (it needs no load then), as with llama-swap.
    """
    for other, evicted in swaps.items():
        if target in evicted or other in leaving or evicted & leaving:
            return Verdict.WAIT
    if ready and not leaving:
        return Verdict.SERVE
    return Verdict.WAIT if leaving & set(busy) else Verdict.SWAP
