"""What earlier starts of a model showed, for the next plan of it: how large its compute buffers really were, and whether a
process came to hold more than was planned.

Never below what is real. A buffer is the largest of some that each grow linearly with the context, so it is a convex
function of it: the line between two starts that were seen lies above it, the figure of a longer context bounds that of a
shorter one, and beyond the longest that was seen nothing is concluded. All else that a buffer depends on (types, sequences,
batch, the other arguments, the group's environment, the cards that are there) must be the same: what a launch holds in system
memory beside a card says nothing of the same launch without one. Where layers are spread over several cards nothing is learned: what is on
which of them depends on what else was there.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from attrs import field, frozen

from workers.calibration import Calibrations, bound
from workers.planner.crosscheck import BUFFER
from workers.planner.ledger import Line
from workers.planner.shapes import HOST, Known
from workers.printed import Kind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from workers.planner.model import Model
    from workers.planner.placing import Choice, Placed
    from workers.planner.shapes import Machine
    from workers.printed import Printed

COMPUTE: Final = "compute"
EXCESS: Final = "excess"

BEYOND: Final = "more than planned, as it was"
"""The line of what a process held beyond its plan."""

_Boots = dict[str, dict[int, int]]


@frozen
class Learned:
    """Of one model with one build: what was seen, by place and buffer. `around` stands for all that a buffer depends on and no
    choice has: the other arguments, the environment, the cards. A digest, for an environment may hold secrets."""

    pin: str = ""
    model: str = ""
    around: str = ""
    places: Mapping[str, _Boots] = field(factory=dict)

    def compute(self, place: str, choice: Choice, modelled: int) -> Line:
        """The line of a compute buffer: as it was seen, where that says something of this choice, else the upper bound."""
        boots = self._boots(place, COMPUTE, choice)
        seen = bound(boots, choice.shape.cells)
        was_run = choice.shape.cells in boots
        if seen is None or (seen > modelled and not was_run):
            return Line(BUFFER, modelled, place, Known.MODELLED, "upper bound")
        why = "printed at an earlier start" if was_run else "between two earlier starts, or below one"
        return Line(BUFFER, seen, place, Known.MEASURED, why)

    def excess(self, place: str, choice: Choice) -> Line:
        """The line of what a process of this very choice held beyond its plan; of nothing where it did not."""
        size = self._boots(place, EXCESS, choice).get(choice.shape.cells, 0)
        return Line(BEYOND, size, place, Known.MEASURED, "held at an earlier start")

    def knows(self, place: str, choice: Choice) -> bool:
        """Whether the compute buffer of this very choice was seen."""
        return choice.shape.cells in self._boots(place, COMPUTE, choice)

    def _boots(self, place: str, what: str, choice: Choice) -> dict[int, int]:
        return self.places.get(place, {}).get(self.name(what, choice), {}) if self.places else {}

    def name(self, what: str, choice: Choice) -> str:
        """What the boots of a buffer are kept under."""
        done, shape = choice.settings, choice.shape
        parts = (
            shape.type_k, shape.type_v, done.flash, shape.unified, shape.swa_full, done.batch, shape.ubatch,
            choice.sequences, choice.cpu_moe, done.gpu_layers, done.kv_offload, choice.projector_bytes,
            # What is planned for these and not taken hides what else is held beyond the plan.
            *((done.cache_ram_mib, done.checkpoints) if what == EXCESS else ()),
        )  # fmt: skip
        return f"{what}: {' '.join(map(str, parts))} {self.around}".strip()


NOTHING: Final = Learned()


def of(
    pin: str, model: Model, arguments: Sequence[str], machine: Machine, environment: Mapping[str, str] | None = None
) -> Learned:
    """What is kept of it, NOTHING without a `pin` (the server's part of it). `environment` is what its group adds. Reads a file for each place, under a millisecond
    each; one that is damaged is none."""
    if not pin:
        return NOTHING
    name = f"{model.files[0].name} {model.file_bytes}" if model.files else model.name
    places = [HOST, *(card.key for card in machine.cards)]
    seen = {place: Calibrations(pin, name, place).all() for place in places}
    cards = sorted((card.key, card.unified) for card in machine.cards)
    around = json.dumps([list(arguments), sorted((environment or {}).items()), cards])
    return Learned(pin, name, hashlib.sha256(around.encode()).hexdigest()[:24], seen)


def key_of(learned: Learned, choice: Choice, placed: Placed) -> dict[str, Any] | None:
    """What `remember` must know of a plan, as plain data; None where nothing is learned from it."""
    cards = [place for place in {line.place for line in placed.account.lines} if place != HOST]
    if len(cards) > 1 or not learned.pin:
        return None
    return {
        "pin": learned.pin,
        "model": learned.model,
        "card": cards[0] if cards else None,
        "positions": choice.shape.cells,
        "compute": learned.name(COMPUTE, choice),
        "excess": learned.name(EXCESS, choice),
        "is_known": all(learned.knows(place, choice) for place in (HOST, *cards)),
    }


def printed(key: Mapping[str, Any], said: Printed) -> dict[str, int]:
    """By place the compute buffers that a server printed; nothing of a log without its beginning: of what it has left a sum is
    less than was taken."""
    on_host, on_card = _buffers(said) if said.is_whole else (0, 0)
    sizes = {HOST: on_host, key["card"]: on_card} if key["card"] else {HOST: on_host + on_card}
    return {place: size for place, size in sizes.items() if size}


def remember(key: Mapping[str, Any], buffers: Mapping[str, int], beyond: Mapping[str, int]) -> None:
    """Keep what was seen of a start, by place: buffers that its server printed, and what it holds beyond its plan."""
    for place in (HOST, key["card"]):
        if place is None:
            continue
        known = Calibrations(key["pin"], key["model"], place)
        if place in buffers:
            known.remember(key["compute"], key["positions"], buffers[place])
        if place in beyond:
            known.remember(key["excess"], key["positions"], beyond[place])


def _buffers(said: Printed) -> tuple[int, int]:
    """Bytes of compute buffers in system memory, and elsewhere. What a backend pins for a card is named after it."""
    sizes = [(one.place, one.bytes) for one in said.buffers if one.kind in (Kind.COMPUTE, Kind.OUTPUT)]
    on_host = sum(size for place, size in sizes if place.startswith("CPU") or place.endswith("_Host"))
    return on_host, sum(size for _, size in sizes) - on_host
