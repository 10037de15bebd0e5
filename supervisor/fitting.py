"""Whether an engine fits into the memory there is, and what of it a plan may take.

Apart from `planning`, which goes by it and brings trio: a front end asks this before it starts anything, and trio is half
of what it would import (docs/reference/bench.md, "What a cold start is made of").
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from attrs import evolve

from supervisor import budgets, identity
from supervisor.devices import promises
from supervisor.devices.promises import HOST, Grant, Reservation
from supervisor.devices.shape import Figure, How
from supervisor.errors import DoesNotFitError, LockTimeoutError, SlotError
from supervisor.kinds import Planning, Preparing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from supervisor.contract import EngineSpec
    from supervisor.devices.shape import Device, Survey
    from supervisor.kinds import Kind


def untold(seen: Survey) -> str:
    """Why it cannot be told what memory there is: the driver did not say (it hangs, or whoever asked it was killed), or the kernel
    did not; "" where it can. Unknown is not without cards, and not 0."""
    if seen.incomplete:
        return seen.reason
    return f"system memory: {seen.host.available.source}" if seen.host.available.bytes is None else ""


def refuse_what_does_not_fit(spec: EngineSpec, find_kind: Callable[[str], Kind]) -> None:
    """For a front end, before it starts anything: raise DoesNotFitError for an engine whose groups, one after the other,
    have no room now, and have none a moment later: a predecessor's memory may be on its way back. Nothing is promised;
    what cannot be told here and now is the keeper's to find."""
    for step in promises.attempts(lambda: None):
        try:
            _refuse(spec, find_kind)
        except DoesNotFitError:
            if step.is_last:
                raise
        else:
            return
        threading.Event().wait(budgets.MEMORY_LOOK)


def _refuse(spec: EngineSpec, find_kind: Callable[[str], Kind]) -> None:
    from supervisor.devices import reservations
    from supervisor.devices.survey import survey

    try:
        with reservations.planning(wait=budgets.CONTROL_WAIT) as book:
            live = list(book.live().values())
            seen = survey()
    except (SlotError, LockTimeoutError):
        return
    for group in () if untold(seen) else spec.groups:
        kind = find_kind(group.kind)
        if group.payload and isinstance(kind, Preparing) and kind.lacks(group):
            continue  # what it takes is in a file that is still to come
        if isinstance(kind, Planning) and group.is_planned:
            taken = kind.plan(group, granted(seen, live)).grants
            grants = tuple(Grant(device, size) for device, size in taken.items())
            live.append(Reservation("", group.name, grants, *identity.own()))


def granted(seen: Survey, live: Iterable[Reservation]) -> Survey:
    """The survey less what others were promised: what a plan may take."""
    known = list(live)
    if not known:
        return seen
    host = seen.host
    available = _granted(HOST, host.total, host.available, known)
    devices = tuple(_device(one, known, available) for one in seen.devices)
    return evolve(seen, devices=devices, host=evolve(host, available=available))


def _device(device: Device, known: list[Reservation], host: Figure) -> Device:
    if device.unified:
        return evolve(device, free=host)
    return evolve(device, free=_granted(device.uuid, device.total, device.free, known))


def _granted(place: str, total: Figure, free: Figure, known: list[Reservation]) -> Figure:
    if total.bytes is None or free.bytes is None:
        return free
    found = promises.grantable(place, total.bytes, free.bytes, known)
    if found.bytes == free.bytes:
        return free
    return Figure(found.bytes, f"{free.source}; {found.text}", How.MODELLED)
