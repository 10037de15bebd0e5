"""What is run: window, sequences, placement. One pure function, `plan`; what does not fit is refused with numbers and
with what would."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from attrs import evolve, field, frozen

from workers.planner.crosscheck import NONE, Correction
from workers.planner.flags import Settings, settled
from workers.planner.kv import PAD, CacheType
from workers.planner.learned import NOTHING, Learned
from workers.planner.placing import Choice, Placed, place
from workers.planner.shapes import HOST

if TYPE_CHECKING:
    from collections.abc import Callable

    from workers.planner.ledger import Account
    from workers.planner.model import Model
    from workers.planner.shapes import Machine

LEAST_WINDOW: Final = 512
"""Tokens. Below it no request of a real client fits."""

COMFORT: Final = 8192
"""Tokens. Experts are moved off a card, where they are slow, only as far as a window of this size needs it."""

WITHOUT_A_NUMBER: Final = 4096
"""Tokens of context for a model whose header tells none."""

MOST_SEQUENCES: Final = 4
"""What "auto" goes up to: more give little throughput each (as llama-server's own auto, and lilbee's)."""


@frozen
class Request:
    """What is asked for. None is "auto": as much as fits."""

    context: int | None = None
    sequences: int | None = 1
    settings: Settings = field(factory=Settings)
    offload: bool = True
    """Whether routed experts may stay in system memory where that is memory of its own."""
    least_context: int = 0
    projector_bytes: int = 0
    correction: Correction = NONE
    """By what this arithmetic is off for this model, where an estimate showed it."""
    learned: Learned = NOTHING
    """What earlier starts showed."""


class Offer(NamedTuple):
    """Something that would fit instead."""

    what: str
    context: int
    sequences: int
    cpu_moe: int = 0
    type_k: CacheType = CacheType.F16
    gpu_layers: int | None = None


@frozen
class Plan:
    """It fits, as `choice` says. `binds` is what kept it from being larger; `notes` what differs from what was asked."""

    request: Request
    choice: Choice
    placed: Placed
    binds: str
    notes: tuple[str, ...] = ()

    @property
    def account(self) -> Account:
        """Its ledger."""
        return self.placed.account


@frozen
class Refusal:
    """It does not fit, or cannot be: `why` in one sentence with numbers. `choice` and `placed` are what was tried last;
    None where nothing was reckoned."""

    request: Request
    why: str
    binds: str = ""
    choice: Choice | None = None
    placed: Placed | None = None
    offers: tuple[Offer, ...] = ()


def plan(request: Request, model: Model, machine: Machine) -> Plan | Refusal:
    """Decide. Pure: the same facts give the same plan."""
    done = settled(request.settings)
    request_done = evolve(request, settings=done)
    if done.cpu_moe and not model.has_routed_experts:
        return Refusal(
            request, "--cpu-moe and --n-cpu-moe do nothing here: the header declares no routed experts", "placement"
        )
    return _Search(request_done, model, machine).run()


class _Search:
    """The choices of one request, looked through."""

    def __init__(self, request: Request, model: Model, machine: Machine) -> None:
        self.request, self.model, self.machine = request, model, machine
        self.done = request.settings
        self.count = len(model.layers)
        trained = model.trained_context or WITHOUT_A_NUMBER
        self.most = max(PAD, trained // PAD * PAD)
        self.may_offload = (
            request.offload
            and machine.is_discrete
            and model.has_routed_experts
            and self.done.cpu_moe is None
            and self.done.gpu_layers is None
        )

    # --- one choice

    def at(self, window: int, sequences: int, cpu_moe: int, settings: Settings | None = None) -> tuple[Choice, Placed]:
        request = self.request
        choice = Choice(
            window, sequences, settings or self.done, cpu_moe, request.projector_bytes, request.correction, request.learned
        )  # fmt: skip
        return choice, place(self.model, self.machine, choice)

    def fits(self, window: int, sequences: int, cpu_moe: int, settings: Settings | None = None) -> bool:
        return self.at(window, sequences, cpu_moe, settings)[1].account.fits

    def experts_off(self, window: int, sequences: int, settings: Settings | None = None) -> int:
        """The fewest layers whose experts must stay behind for the cards to hold the rest; all, if even that is too few."""
        if self.done.cpu_moe is not None:
            return min(self.done.cpu_moe, self.count)
        if not self.may_offload:
            return 0
        return _least(
            0, self.count, lambda moe: self.at(window, sequences, moe, settings)[1].account.cards_fit
        )  # fmt: skip

    def fits_somehow(self, window: int, sequences: int, settings: Settings | None = None) -> bool:
        return self.fits(window, sequences, self.experts_off(window, sequences, settings), settings)

    # --- the search

    def run(self) -> Plan | Refusal:
        request = self.request
        sequences = request.sequences or 1
        if request.context is not None:
            window = request.context
            cpu_moe = self.experts_off(window, sequences)
            if not self.fits(window, sequences, cpu_moe):
                return self.refusal(window, sequences, cpu_moe)
            return self.plan(window, self.more(window, sequences, cpu_moe), cpu_moe, "the configuration: context")
        floor = min(self.most, max(request.least_context, LEAST_WINDOW))
        comfort = min(self.most, max(COMFORT, floor))
        cpu_moe = self.experts_off(comfort, sequences)
        if not self.fits(floor, sequences, cpu_moe):
            cpu_moe = self.experts_off(floor, sequences)
            if not self.fits(floor, sequences, cpu_moe):
                return self.refusal(floor, sequences, cpu_moe)
        window = self.largest(floor, sequences, cpu_moe)
        binds = "the context that the model was trained for" if window == self.most else ""
        return self.plan(window, self.more(window, sequences, cpu_moe), cpu_moe, binds)

    def largest(self, floor: int, sequences: int, cpu_moe: int, settings: Settings | None = None) -> int:
        """The largest window on the grid that fits. `floor` does."""
        steps = (self.most - floor) // PAD
        taken = _most(0, steps, lambda step: self.fits(floor + step * PAD, sequences, cpu_moe, settings))
        return floor + taken * PAD

    def more(self, window: int, sequences: int, cpu_moe: int) -> int:
        """Sequences, each with the whole window, as many as fit; as configured, if they are."""
        if self.request.sequences is not None:
            return sequences
        return _most(1, MOST_SEQUENCES, lambda count: self.fits(window, count, cpu_moe))

    def plan(self, window: int, sequences: int, cpu_moe: int, binds: str) -> Plan:
        choice, placed = self.at(window, sequences, cpu_moe)
        tightest = placed.account.tightest
        notes = list(self.done.notes)
        if cpu_moe and self.done.cpu_moe is None:
            notes.append(f"the experts of {cpu_moe} of {self.count} layers stay in system memory")
        if window > self.most:
            notes.append(f"the model was trained for {self.most:,} tokens; more of them lower its answers' quality")
        notes += self.model.conservative
        return Plan(
            self.request, choice, placed, binds or f"{tightest.name}, mostly {self._mostly(placed)}", tuple(notes)
        )

    def _mostly(self, placed: Placed) -> str:
        return placed.account.largest(placed.account.tightest.place).what

    def refusal(self, window: int, sequences: int, cpu_moe: int) -> Refusal:
        choice, placed = self.at(window, sequences, cpu_moe)
        account = placed.account
        short = account.tightest
        gib = 1 << 30
        why = (
            f"{window:,} tokens for {sequences} need {account.needed(short.place) / gib:.2f} GiB of {short.name}, and "
            f"{short.usable / gib:.2f} GiB can be had ({short.free / gib:.2f} GiB free, less {short.reserve / gib:.2f} "
            "GiB that is left alone)"
        )
        if any(line.place == short.place for line in account.lines):
            largest = account.largest(short.place)
            why += f"; the largest part is {largest.what}, {largest.bytes / gib:.2f} GiB"
        if short.place == HOST and (experts := self.model.weights.experts):
            why += f"; its routed experts are {experts / gib:.2f} GiB"
        binds = f"{short.name}, mostly {self._mostly(placed)}"
        return Refusal(self.request, why, binds, choice, placed, tuple(self.offers(window, sequences)))

    def offers(self, window: int, sequences: int) -> list[Offer]:
        """What would fit, each on its own."""
        found: list[Offer] = []
        floor = min(window, LEAST_WINDOW)
        if self.fits_somehow(floor, sequences):
            moe = self.experts_off(floor, sequences)
            less = min(self.largest(floor, sequences, moe), window)
            if less < window:
                found.append(Offer(f"context = {less}", less, sequences, moe))
        fewer = _most(0, sequences - 1, lambda count: not count or self.fits_somehow(window, count))
        if fewer:
            found.append(Offer(f"sequences = {fewer}", window, fewer, self.experts_off(window, fewer)))
        if self.done.type_k is CacheType.F16:
            smaller = settled(evolve(self.done, type_k=CacheType.Q8_0, type_v=CacheType.Q8_0))
            if self.fits_somehow(window, sequences, smaller):
                words = "--cache-type-k q8_0" + (" --cache-type-v q8_0" if smaller.type_v is CacheType.Q8_0 else "")
                moe = self.experts_off(window, sequences, smaller)
                found.append(Offer(words, window, sequences, moe, CacheType.Q8_0))
        if self.model.has_routed_experts and self.machine.is_discrete and not self.may_offload:
            other = _Search(evolve(self.request, offload=True, settings=evolve(self.done, cpu_moe=None, gpu_layers=None)),
                            self.model, self.machine)  # fmt: skip
            moe = other.experts_off(window, sequences)
            if other.fits(window, sequences, moe):
                found.append(Offer(f"--n-cpu-moe {moe}", window, sequences, moe))
        if self.machine.is_discrete and self.done.gpu_layers is None and not self.may_offload:
            found += self.fewer_layers(window, sequences)
        return found

    def fewer_layers(self, window: int, sequences: int) -> list[Offer]:
        """Layers that the cards hold, where system memory has room for the others."""
        layers = _most(
            0,
            self.count + 1,
            lambda count: self.at(window, sequences, 0, evolve(self.done, gpu_layers=count))[1].account.cards_fit,
        )
        if layers and self.fits(window, sequences, 0, evolve(self.done, gpu_layers=layers)):
            return [Offer(f"--n-gpu-layers {layers}", window, sequences, gpu_layers=layers)]
        return []


def _most(low: int, high: int, holds: Callable[[int], bool]) -> int:
    """The largest number that holds; `low` is taken to. What holds for one holds for all below it."""
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if holds(middle) else (low, middle - 1)
    return low


def _least(low: int, high: int, holds: Callable[[int], bool]) -> int:
    """The smallest number that holds; `high` is taken to."""
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle + 1, high)
    return low
