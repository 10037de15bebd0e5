"""A plan that llama.cpp's own estimate was asked about, at most twice: once for what this arithmetic came to, and once more
where the answer changes it.

The arithmetic searches, which takes hundreds of looks; the estimate judges what it found. Without an estimate a plan is what
the arithmetic says.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from attrs import evolve

from workers import estimator
from workers.planner import crosscheck
from workers.planner.crosscheck import BUFFER, CACHE, NONE, WEIGHTS, Check
from workers.planner.decide import Plan, Refusal, plan
from workers.planner.flags import ALL, Help, words
from workers.planner.placing import place
from workers.planner.shapes import Machine

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from workers.estimator import Estimate, Estimator
    from workers.planner.decide import Request
    from workers.planner.flags import Settings
    from workers.planner.ledger import Account
    from workers.planner.model import Model
    from workers.planner.placing import Choice, Placed

    Ask = Callable[[Choice, Placed], Estimate]
    """Raises estimator.NoEstimateError."""

PLACING: Final = ("--tensor-split", "-ts", "--split-mode", "-sm", "--main-gpu", "-mg", "--device", "-dev",
                  "--override-tensor", "-ot")  # fmt: skip
"""Whoever gives one of these places the layers himself."""

VALUED: Final = frozenset({*PLACING, "--pooling", "--override-kv", "--lora", "--lora-scaled"})
BARE: Final = frozenset({"--embeddings", "--embedding", "--reranking", "--rerank", "--no-host"})
"""Of a launch's own arguments those that an estimate depends on, beside what the planner says itself."""


COUNTED: Final = ("--no-repack",)
"""Weights that would be packed anew for the processor are left out of the estimate (b11549: 305 of 2,254 MiB of a Q4_K model)."""


def placement(
    done: Settings, machine: Machine, placed: Placed, rest: Sequence[str]
) -> tuple[Settings, tuple[str, ...]]:
    """How layers go to the cards, said: or the engine's own fitting moves some that were planned for."""
    if not machine.is_discrete or any(word.partition("=")[0] in PLACING for word in rest):
        return done, ()
    if done.gpu_layers is None:
        done = evolve(done, gpu_layers=ALL, fit=False)
    spread = placed.split
    return done, ("--tensor-split", ",".join(map(str, spread))) if len(spread) > 1 else ()


class Asking:
    """The estimator of one plan of any number of launches. One that said nothing in its time is not asked again."""

    def __init__(self, server: Sequence[str], environment: Mapping[str, str], *, supposed: bool = False) -> None:
        self._environment, self._supposed = environment, supposed
        self._estimator: Estimator | None = None
        self._why_none = ""
        try:
            self._estimator = estimator.find(server)
        except estimator.NoEstimateError as error:
            self._why_none = str(error)

    def of(self, model: Model, machine: Machine, rest: Sequence[str]) -> Ask:
        """Asks about choices for one launch, `rest` of whose arguments are not the planner's. Cards that are only supposed
        are nobody's devices: what a model comes to can be asked all the same."""

        def ask(choice: Choice, placed: Placed) -> Estimate:
            if self._estimator is None:
                raise estimator.NoEstimateError(self._why_none)
            done, split = placement(choice.settings, machine, placed, rest)
            said = [*words(done, Help(), cpu_moe=choice.cpu_moe, layers=len(model.layers)), *split]
            flags = [*_flags(said), *_matter(rest), COUNTED]
            if self._supposed:
                flags = [flag for flag in flags if flag[0] not in PLACING] + [("--device", "none")]
            size = [("--ctx-size", str(choice.shape.ctx_size)), ("--parallel", str(choice.sequences))]
            try:
                return estimator.ask(self._estimator, model.files, [*size, *flags], self._environment)
            except estimator.TookTooLongError as error:
                self._estimator, self._why_none = None, str(error)
                raise

        return ask


def _flags(said: Sequence[str]) -> list[tuple[str, ...]]:
    """The planner's words, each flag with its value."""
    found: list[tuple[str, ...]] = []
    for word in said:
        found = [*found, (word,)] if word.startswith("-") else [*found[:-1], (*found[-1], word)]
    return found


def _matter(rest: Sequence[str]) -> list[tuple[str, ...]]:
    following = (*rest[1:], "")
    pairs = zip(rest, following, strict=False)
    return [(word, value) if word in VALUED else (word,) for word, value in pairs if word in VALUED | BARE]


class _Judged(NamedTuple):
    account: Account
    check: Check


def checked(request: Request, model: Model, machine: Machine, ask: Ask) -> tuple[Plan | Refusal, Check]:
    """Decide, and have it judged."""
    found = plan(request, model, machine)
    if found.choice is None or found.placed is None:
        return found, Check()
    first = _judged(found.choice, model, machine, ask)
    if first.check.why_none:
        return found, first.check
    if isinstance(found, Plan) and first.account.fits and not _may_grow(request, first.check):
        return _with(found, first.account), first.check
    if isinstance(found, Refusal) and not first.account.fits and not first.check.differing:
        return _with(found, first.account), first.check
    better = plan(evolve(request, correction=crosscheck.correction(first.check)), model, machine)
    if better.choice is None or better.placed is None:
        return better, first.check
    second = first
    if evolve(better.choice, correction=NONE) != found.choice:
        second = _judged(better.choice, model, machine, ask)
        if second.check.why_none:
            return better, first.check
    if isinstance(better, Plan) and not second.account.fits:  # what it is off by is no mere factor
        again = plan(evolve(request, correction=_the_larger(first.check, second.check)), model, machine)
        return again, second.check
    if isinstance(better, Refusal) and second.account.fits:
        notes = (*better.choice.settings.notes, *model.conservative)
        placed = evolve(better.placed, account=second.account)
        return Plan(better.request, better.choice, placed, better.binds, notes), second.check
    return _with(better, second.account), second.check


def _judged(choice: Choice, model: Model, machine: Machine, ask: Ask) -> _Judged:
    bare = evolve(choice, correction=NONE)
    placed = place(model, machine, bare)
    try:
        estimate = ask(choice, place(model, machine, choice))
    except estimator.NoEstimateError as error:
        return _Judged(placed.account, Check(why_none=str(error)))

    def without_cards() -> Account:
        return place(model, Machine(machine.host), bare).account

    return _Judged(*crosscheck.compare(placed.account, estimate, machine, without_cards))


def _may_grow(request: Request, check: Check) -> bool:
    """Whether what was left open would be decided otherwise: the cache is another one than was reckoned with."""
    is_open = request.context is None or request.sequences is None
    return is_open and any(one.what == CACHE for one in check.differing)


def _the_larger(first: Check, second: Check) -> crosscheck.Correction:
    one, other = crosscheck.correction(first), crosscheck.correction(second)
    return crosscheck.Correction(
        max(one.weights, other.weights), max(one.cache, other.cache), max(one.buffer, other.buffer)
    )


def _with(found: Plan | Refusal, account: Account) -> Plan | Refusal:
    assert found.placed is not None  # noqa: S101 - a caller looked
    return evolve(found, placed=evolve(found.placed, account=account))


def told(check: Check) -> list[str]:
    """Where the two say different things, each a sentence."""
    return [
        f"{check.by} says {one.estimated / (1 << 20):,.0f} MiB of {_NAMES[one.what]}"
        f"{f' on {one.place}' if one.place else ''}, and the header's arithmetic {one.modelled / (1 << 20):,.0f} MiB: "
        + ("the plan goes by the former" if one.is_heeded else "the plan goes by the latter")
        for one in check.differing
    ]


_NAMES: Final = {WEIGHTS: "weights", CACHE: "keys, values and state", BUFFER: "compute buffers"}
