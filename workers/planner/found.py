"""Whether a plan of ours came true, out of what a server prints, serves and holds."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any, Final

import trio

from workers import loopback, printed, readback
from workers.planner import learned, placement
from workers.planner.crosscheck import BUFFER
from workers.planner.learned import BEYOND
from workers.planner.shapes import HOST
from workers.printed import Kind, Printed

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from supervisor.contract import GroupSpec, LaunchSpec
    from supervisor.devices.held import Held
    from supervisor.devices.shape import Figure
    from supervisor.kinds import Birth


LEARN_WITHIN: Final = 600.0
# budget: from a generation's first look on: its caches and buffers are made when it loads, its work space at the first
# requests, and what comes after that is a leak or a log


async def read_back(
    spec: GroupSpec, memory: Mapping[str, Mapping[str, Any]], birth: Birth, held: Mapping[str, Held], log: str
) -> dict[str, dict[str, Any]]:
    """See supervisor.kinds.ReadingBack. What several servers print goes into one log, and tells nothing of one of them;
    what each serves it is asked itself."""
    alone = printed.parse(log.splitlines()) if len(spec.launches) == 1 else Printed()
    found = {}
    for launch in spec.launches:
        if launch.role in held:
            served = await _served(birth, launch.role)
            planned = memory.get(launch.role, {})
            found[launch.role] = account(launch, planned, held[launch.role], alone, served)
            if key := planned.get("learns"):
                who = (spec.name, launch.role)
                buffers = _printed(who, birth.generation, learned.printed(key, alone))
                beyond = _peaks(who, birth.generation, _beyond(planned["ledger"], held[launch.role], buffers))
                await trio.to_thread.run_sync(learned.remember, key, buffers, beyond)
    return found


_seen: dict[tuple[str, str], tuple[str, float, dict[str, int]]] = {}
"""By group and role: the generation, when it was first looked at, and the most that it held beyond its plan by place."""


_buffers: dict[tuple[str, str], tuple[str, Mapping[str, int]]] = {}
"""By group and role: the generation, and the compute buffers that its server printed, by place."""


def _printed(who: tuple[str, str], generation: str, buffers: Mapping[str, int]) -> Mapping[str, int]:
    """As they were printed, also when its log has lost that."""
    was, before = _buffers.get(who, ("", {}))
    if buffers or was != generation:
        _buffers[who] = (generation, buffers)
        return buffers
    return before


def _peaks(who: tuple[str, str], generation: str, beyond: Mapping[str, int]) -> Mapping[str, int]:
    """The most so far of this generation. What is added later is no matter of a plan: a server that leaks would make its
    successor's plan larger than the machine."""
    now = time.monotonic()
    was, since, peaks = _seen.get(who, ("", now, {}))
    if was != generation:
        since, peaks = now, {}
    if now - since <= LEARN_WITHIN:
        peaks = {place: max(size, peaks.get(place, 0)) for place, size in beyond.items()}
    _seen[who] = (generation, since, peaks)
    return peaks


def _beyond(ledger: Iterable[Mapping[str, Any]], held: Held, buffers: Mapping[str, int]) -> dict[str, int]:
    """By how much it holds more than the next plan would have of each place: earlier excesses are not counted as planned, and
    compute buffers as they were printed. The bound that was planned in their place would hide what is beyond it."""
    figures = {HOST: held.anonymous, **dict(held.on_device)}

    def planned(place: str) -> int:
        seen = (BUFFER, BEYOND) if place in buffers else (BEYOND,)
        lines = [one for one in ledger if one["place"] == place and not one["what"].startswith(seen)]
        return sum((int(one["bytes"]) for one in lines), buffers.get(place, 0))

    return {
        place: max(0, figure.bytes - planned(place)) for place, figure in figures.items() if figure.bytes is not None
    }


async def _served(birth: Birth, role: str) -> tuple[int | None, int | None]:
    """Tokens per sequence and sequences, by the server's own /props; it posts no task and wakes nothing."""
    try:
        status, rest = await loopback.exchange(birth.ports[role], "GET", "/props", key=birth.generation_key)
        said = json.loads(rest[rest.index(b"{") : rest.rindex(b"}") + 1]) if status == 200 else {}
    except (OSError, ValueError, loopback.BrokenOffError):
        return None, None
    settings = said.get("default_generation_settings")
    context = settings.get("n_ctx") if isinstance(settings, dict) else None
    sequences = said.get("total_slots")
    return context if isinstance(context, int) else None, sequences if isinstance(sequences, int) else None


def account(
    launch: LaunchSpec,
    memory: Mapping[str, Any],
    held: Held,
    said: Printed,
    served: tuple[int | None, int | None],
) -> dict[str, Any]:
    """One server's. Pure. The server's answer goes before its log, which may be cut."""
    context, sequences = served[0] or said.context, served[1] or said.sequences
    ledger = memory.get("ledger") or []
    told = readback.read_back(
        planned=list(_lines(ledger, held, readback.printed_figures(said))),
        printed=Printed(said.buffers, context, sequences, said.pool, said.lowered),
        context=launch.context,
        sequences=launch.sequences,
        pool=launch.pool or None,
        processes=(held,),
        also=placement.asked(ledger, said),
    )
    return {
        "held": {
            "anonymous": held.anonymous.bytes,
            "file_backed": held.file_backed.bytes,
            "devices": [{"device": device, "bytes": figure.bytes} for device, figure in held.on_device
                        if figure.bytes != 0],
        },
        "compared": [
            {"what": one.what, "planned": one.planned, "found": one.found.bytes, "source": one.found.source,
             "how": one.found.how.value, "verdict": one.verdict.value}
            for one in told.lines
        ],
        "asked": [
            {"what": one.what, "requested": one.requested, "effective": one.effective, "why": one.text}
            for one in told.asked
        ],
        "warnings": list(told.warnings),
    }  # fmt: skip


def _lines(
    ledger: list[Mapping[str, Any]], held: Held, figures: Mapping[str, Figure]
) -> Iterable[tuple[str, int | None, tuple[Figure, ...]]]:
    """What was planned, and what was found of it. A process's own memory is held against all that was planned for system
    memory: weights that are not mapped, or are packed anew for the processor, are in it."""

    def planned(*begins: str, place: str = "") -> int | None:
        sizes = [one["bytes"] for one in ledger if one["what"].startswith(begins) and place in ("", one["place"])]
        return sum(sizes) if ledger else None

    for what, begins, kinds in (
        ("weights", ("weights",), (Kind.MODEL,)),
        ("keys and values", ("keys and values", "recurrent state"), (Kind.KV, Kind.RECURRENT)),
        ("compute buffers", ("compute buffer",), (Kind.COMPUTE, Kind.OUTPUT)),
    ):
        known = [figures[kind.value] for kind in kinds if kind.value in figures]
        if known:
            total = sum(one.bytes or 0 for one in known)
            yield what, planned(*begins), (type(known[0])(total, known[0].source, known[0].how),)
    yield "system memory of its own", planned("", place=HOST), (held.anonymous,)
    for device, figure in held.on_device:
        if figure.bytes != 0 or planned("", place=device):
            yield f"memory of {device}", planned("", place=device), (figure,)
