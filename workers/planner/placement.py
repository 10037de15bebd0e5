"""Whether weights lie where they were planned to: out of the buffers that a server prints for each device. Pure.

An engine may undo a placement and say so in a log line only (mohitsoni48/TurboLLM#99: an explicit layer count turns its own
fitting off, and a 102 GB model went to a 24 GB card). What it prints of system memory is the range of the file that it has
mapped, tensors of the cards between included, so it is the cards' buffers that are held against the plan.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from workers import readback
from workers.planner.placing import EXPERTS
from workers.planner.shapes import HOST, MIB
from workers.printed import Kind

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from workers.printed import Printed

BAND_SHARE: Final = 0.02
BAND_BYTES: Final = 32 * MIB
"""Both figures are exact but for padding; the least is below one layer of any model that is split."""

EXPERTS_ASKED: Final = "MiB of experts in system memory"
WEIGHTS_ASKED: Final = "MiB of weights on cards"


def asked(ledger: Iterable[Mapping[str, Any]], said: Printed) -> Iterator[readback.Asked]:
    """Where weights were to lie and where they do, of a plan that puts some on cards; unknown where nothing says it."""
    weights = [one for one in ledger if one["what"].startswith("weights")]
    planned = sum(one["bytes"] for one in weights if one["place"] != HOST)
    experts = sum(one["bytes"] for one in weights if one["place"] == HOST and one["what"] == EXPERTS)
    if not planned:
        return
    buffers = [one for one in said.buffers if one.kind is Kind.MODEL]
    found = sum(one.bytes for one in buffers if not (one.place.startswith("CPU") or one.place.endswith("_Host")))
    more = found - planned
    band = max(BAND_BYTES, int(planned * BAND_SHARE))
    if experts:
        kept = experts - more if more > band else experts
        yield readback.asked(EXPERTS_ASKED, experts // MIB, max(0, kept) // MIB if buffers else None)
    there = found if more < -band else planned
    yield readback.asked(WEIGHTS_ASKED, planned // MIB, there // MIB if buffers else None)
