"""What the planner is told of a machine, as plain numbers; and how a figure came to be known.

`supervisor.devices` probes; `machine_of` takes what it found. A what-if makes one by hand.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from attrs import evolve, field, frozen

if TYPE_CHECKING:
    from collections.abc import Mapping

KIB: Final = 1 << 10
MIB: Final = 1 << 20
GIB: Final = 1 << 30

HOST: Final = "host"
"""The place of what lies in system memory, in ledgers and plans."""


class Known(StrEnum):
    """How a figure came to be known, the best first. A better one replaces a worse one."""

    PRINTED = "printed"
    """The engine said it, of this model with these flags."""
    MEASURED = "measured"
    HEADER = "header"
    """It stands in the model's file."""
    ESTIMATED = "estimated"
    """llama.cpp's own estimate, of this model with these flags, with nothing loaded."""
    MODELLED = "modelled"
    """Worked out from facts by a rule that was checked against the engine."""
    ASSUMED = "assumed"


@frozen
class Card:
    """One device with memory. `free` and `total` are bytes now; `unified`: they are the host's own memory."""

    key: str
    """What plans and ledgers call it: its UUID, or a name of its own."""
    name: str
    total: int
    free: int
    unified: bool = False
    engine_name: str = ""
    """llama-server's name for it (`CUDA0`), where it is known."""
    source: str = ""


@frozen
class Host:
    """System memory. `available` is what programs can have now, every control group considered; bytes."""

    total: int
    available: int
    source: str = ""


@frozen
class Machine:
    """Where an engine may go."""

    host: Host
    cards: tuple[Card, ...] = ()
    unknown: tuple[str, ...] = field(default=())
    """What could not be found out, each a sentence: a plan says so, and is none the less made."""

    @property
    def is_unified(self) -> bool:
        """Whether the cards' memory is the host's, so that it is there once."""
        return any(card.unified for card in self.cards)

    @property
    def is_discrete(self) -> bool:
        """Whether there are cards with memory of their own: only then is system memory there beside it."""
        return bool(self.cards) and not self.is_unified


def less(machine: Machine, taken: Mapping[str, int]) -> Machine:
    """What a machine has left when so many bytes are taken at each place. On unified memory what is taken of the host is
    taken of the cards."""
    host = taken.get(HOST, 0)
    cards = tuple(
        evolve(card, free=max(0, card.free - (host if card.unified else taken.get(card.key, 0))))
        for card in machine.cards
    )
    return evolve(machine, host=evolve(machine.host, available=max(0, machine.host.available - host)), cards=cards)


def machine_of(survey: Any) -> Machine:
    """The machine that a `supervisor.devices.shape.Survey` tells of. A card whose memory is unknown is left out, and
    named; a host whose memory is unknown has 0, and says so."""
    unknown: list[str] = [survey.reason] if survey.reason and not survey.devices else []
    cards = []
    for device in survey.devices:
        if not device.is_known:
            unknown.append(f"{device.name}: {device.why_unknown}")
            continue
        if not device.total.bytes:  # no card has none: its driver does not say (docker/model-runner#334)
            unknown.append(f"{device.name}: {device.total.source} says that it has no memory")
            continue
        cards.append(
            Card(
                key=device.uuid or device.engine_name or f"card {device.index}",
                name=device.name,
                total=device.total.bytes,
                free=device.free.bytes,
                unified=device.unified,
                engine_name=device.engine_name,
                source=device.free.source,
            )
        )
    host = survey.host
    if host.available.bytes is None:
        unknown.append(f"system memory: {host.available.source}")
    return Machine(
        Host(host.total.bytes or 0, host.available.bytes or 0, host.bound_by or host.available.source),
        tuple(cards),
        tuple(unknown),
    )
