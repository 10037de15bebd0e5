"""Where everything of a launch goes on a machine: the lines of its ledger, by llama.cpp's own rules.

Without cards all is in system memory. On unified memory too, for a card's memory is the same there, and counted once.
On discrete cards layers go to the cards with their caches, the token embeddings and what --n-cpu-moe keeps stay behind.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from attrs import frozen

from workers.planner import compute, crosscheck, kv
from workers.planner.flags import Flash, Settings
from workers.planner.learned import NOTHING, Learned
from workers.planner.ledger import Account, Budget, Line, summed
from workers.planner.shapes import GIB, HOST, MIB, Known, Machine

if TYPE_CHECKING:
    from collections.abc import Iterator

    from workers.planner.model import Model

CARD_RESERVE: Final = 512 * MIB
"""Left free on each card: what a driver and a desktop take meanwhile, and how allocators round. With CARD_OVERHEAD it
is the 1 GiB that llama.cpp's own --fit leaves (--fit-target)."""

CARD_OVERHEAD: Final = 512 * MIB
"""Of each process on each card: context, kernels and work space of the maths library. No header and no estimate has it;
CUDA contexts of 300 to 500 MiB are usual."""

HOST_OVERHEAD: Final = 64 * MIB
"""Of each server process in system memory, beside the model: an unloaded one holds 33 MB (measured), and threads grow."""

HOST_RESERVE_PART: Final = 20
HOST_RESERVE_LEAST: Final = 256 * MIB
HOST_RESERVE_MOST: Final = 4 * GIB
"""A twentieth of system memory is left alone, within these: programs that nobody told us of, and the page cache."""

EXPERTS: Final = "weights: routed experts"

BALANCE_STEPS: Final = 20
"""Degrees of filling that are tried for a split, from evenly loose to full."""


@frozen
class Choice:
    """One way to run a launch, before it is known whether it fits."""

    window: int
    sequences: int
    settings: Settings
    cpu_moe: int = 0
    projector_bytes: int = 0
    correction: crosscheck.Correction = crosscheck.NONE
    learned: Learned = NOTHING

    @property
    def shape(self) -> kv.Shape:
        """What its caches are made for."""
        done = self.settings
        ubatch = min(done.ubatch, done.batch)
        return kv.Shape(
            self.window, self.sequences, done.type_k, done.type_v, done.unified, done.swa_full, ubatch
        )  # fmt: skip

    @property
    def is_flash(self) -> bool:
        """Whether attention is counted as flash attention."""
        return self.settings.flash is not Flash.OFF


@frozen
class Placed:
    """An account, and how many layers (the last one with the output) are on which card, in the machine's order."""

    account: Account
    split: tuple[int, ...] = ()


def budgets_of(machine: Machine) -> tuple[Budget, ...]:
    """What each place of a machine has."""
    host = machine.host
    reserve = max(HOST_RESERVE_LEAST, min(host.total // HOST_RESERVE_PART, HOST_RESERVE_MOST))
    if machine.is_unified:
        card = min(machine.cards, key=lambda card: card.free)
        name = f"memory shared with {card.name}"
        return (Budget(HOST, name, host.total, min(host.available, card.free), reserve, host.source),)
    cards = (Budget(card.key, card.name, card.total, card.free, CARD_RESERVE, card.source) for card in machine.cards)
    return (*cards, Budget(HOST, "system memory", host.total, host.available, reserve, host.source))


def place(model: Model, machine: Machine, choice: Choice) -> Placed:
    """The account of a choice. On several cards: as few as hold it, each filled to the same degree."""
    budgets = budgets_of(machine)
    cards = [budget for budget in budgets if budget.place != HOST]
    if not cards or choice.settings.gpu_layers == 0:
        return Placed(Account(_summed(choice, _on_host(model, machine, choice)), budgets))
    first_on_card = 0
    if choice.settings.gpu_layers is not None:
        first_on_card = max(0, len(model.layers) + 1 - choice.settings.gpu_layers)
    best: Placed | None = None
    by_room = sorted(range(len(cards)), key=lambda index: -cards[index].usable)
    for count in range(1, len(cards) + 1):
        used = sorted(by_room[:count])
        split = _split(model, choice, [cards[index] for index in used], first_on_card)
        spread = [0] * len(cards)
        for index, layers in zip(used, split, strict=True):
            spread[index] = layers
        account = Account(_summed(choice, _on_cards(model, choice, cards, spread, first_on_card)), budgets)
        best = Placed(account, tuple(spread))
        if account.cards_fit:
            break
    assert best is not None  # noqa: S101 - there is a card
    return best


def _summed(choice: Choice, lines: Iterator[Line]) -> tuple[Line, ...]:
    return tuple(map(choice.correction.of, summed(lines)))


def _split(model: Model, choice: Choice, cards: list[Budget], first: int) -> list[int]:
    """Layers for each card (the output counts as one): the loosest equal degree of filling that holds all, else the rest
    on the last."""
    count = len(model.layers) + 1
    if len(cards) == 1:
        return [count - first]
    costs = [_layer_cost(model, choice, index) for index in range(count)]
    split: list[int] = []
    for step in range(1, BALANCE_STEPS + 1):
        split, at = [], first
        for index, card in enumerate(cards):
            room = card.usable - _fixed(model, choice, len(cards), output=index == len(cards) - 1)
            room = room * step // BALANCE_STEPS
            begin = at
            while at < count and costs[at] <= room:
                room -= costs[at]
                at += 1
            split.append(at - begin)
        if at == count and split[-1]:
            return split
    split[-1] += count - first - sum(split)
    return split


def _fixed(model: Model, choice: Choice, cards: int, *, output: bool) -> int:
    buffer = compute.compute_bytes(model, choice.shape, choice.is_flash, cards=cards, output=output)
    buffer = round(buffer * choice.correction.buffer)
    return buffer + CARD_OVERHEAD + (choice.projector_bytes if output else 0)


def _layer_cost(model: Model, choice: Choice, index: int) -> int:
    if index == len(model.layers):
        return model.weights.output + model.weights.tied
    block, layer = model.weights.blocks[index], model.layers[index]
    cache = kv.layer_bytes(layer, choice.shape) + choice.sequences * layer.state_bytes
    weights = block.dense + (block.experts if index >= choice.cpu_moe else 0)
    off = choice.correction
    return round(weights * off.weights) + (round(cache * off.cache) if choice.settings.kv_offload else 0)


def _on_cards(
    model: Model, choice: Choice, cards: list[Budget], split: list[int], first: int
) -> Iterator[Line]:  # fmt: skip
    used = [index for index, layers in enumerate(split) if layers]
    whose: list[str] = [HOST] * first
    for index in used:
        whose += [cards[index].place] * split[index]
    for number, place in enumerate(whose):
        yield from _layer_lines(model, choice, number, place)
    for index in used:
        last = index == used[-1]
        size = compute.compute_bytes(model, choice.shape, choice.is_flash, cards=len(used), output=last)
        yield (choice.learned if len(used) == 1 else NOTHING).compute(cards[index].place, choice, size)
        yield Line("driver and libraries", CARD_OVERHEAD, cards[index].place, Known.ASSUMED, "per process")
    if len(used) == 1:
        yield choice.learned.excess(cards[used[0]].place, choice)
    if used:
        yield Line("projector", choice.projector_bytes, cards[used[-1]].place, Known.HEADER)
    yield Line("weights: token embeddings", model.weights.input, HOST, Known.HEADER)
    size = compute.host_part_bytes(model, choice.shape, choice.is_flash)
    yield (choice.learned if len(used) == 1 else NOTHING).compute(HOST, choice, size)
    if len(used) == 1:
        yield choice.learned.excess(HOST, choice)
    yield from _always_on_host(model, choice)


def _on_host(model: Model, machine: Machine, choice: Choice) -> Iterator[Line]:
    for number in range(len(model.layers) + 1):
        yield from _layer_lines(model, choice, number, HOST)
    yield Line("weights: token embeddings", model.weights.input, HOST, Known.HEADER)
    size = compute.compute_bytes(model, choice.shape, choice.is_flash)
    yield choice.learned.compute(HOST, choice, size)
    yield choice.learned.excess(HOST, choice)
    yield Line("projector", choice.projector_bytes, HOST, Known.HEADER)
    if machine.is_unified:
        yield Line("driver and libraries", CARD_OVERHEAD, HOST, Known.ASSUMED, "per process")
    yield from _always_on_host(model, choice)


def _layer_lines(model: Model, choice: Choice, number: int, place: str) -> Iterator[Line]:
    """One layer, or (number = their count) the output."""
    weights, shape = model.weights, choice.shape
    if number == len(model.layers):
        tied = weights.tied if place != HOST else 0
        yield Line("weights: output", weights.output + tied, place, Known.HEADER)
        for block in weights.blocks[number:]:
            yield Line("weights: heads for prediction ahead", block.dense + block.experts, place, Known.HEADER)
        return
    block, layer = weights.blocks[number], model.layers[number]
    yield Line("weights: layers", block.dense, place, Known.HEADER)
    experts = HOST if number < choice.cpu_moe else place
    kept = f"kept from {place}: memory that its driver may lock" if experts != place else ""
    yield Line(EXPERTS, block.experts, experts, Known.HEADER, kept)
    cache = place if choice.settings.kv_offload else HOST
    why = f"K {shape.type_k}, V {shape.type_v}, {shape.streams} x {shape.cells:,} positions"
    if layer.window and not shape.swa_full:
        sliding = f"{shape.streams} x {shape.window_cells(layer.window):,} positions (window {layer.window:,})"
        yield Line("keys and values: sliding layers", kv.layer_bytes(layer, shape), cache, Known.MODELLED, sliding)
    else:
        yield Line("keys and values", kv.layer_bytes(layer, shape), cache, Known.MODELLED, why)
    state = choice.sequences * layer.state_bytes
    yield Line("recurrent state", state, cache, Known.MODELLED, f"{choice.sequences} sequences")


def _always_on_host(model: Model, choice: Choice) -> Iterator[Line]:
    done, shape = choice.settings, choice.shape
    yield Line("server process", HOST_OVERHEAD, HOST, Known.ASSUMED)
    each = kv.checkpoint_bytes(model, shape)
    why = f"{choice.sequences} x {done.checkpoints} of what cannot be rolled back"
    yield Line("context checkpoints", choice.sequences * done.checkpoints * each, HOST, Known.MODELLED, why)
    if done.cache_ram_mib:
        yield Line("prompt cache", done.cache_ram_mib * MIB, HOST, Known.MODELLED, "its limit, --cache-ram")
        one = kv.prompt_bytes(model, shape, done.checkpoints)
        yield Line(
            "one more prompt while it is saved", one, HOST, Known.MODELLED, "saved before the limit is looked at", True
        )  # fmt: skip
