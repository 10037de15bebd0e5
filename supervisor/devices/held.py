"""What processes hold, each of a group: device memory by NVML, host memory by smaps_rollup, file pages apart.

Pages that a file backs are the model, mapped: they are in the page cache whoever maps them, and given back under pressure.
Counting them as the process's own, beside the same weights on a device, shows twice what there is (ollama#16637).
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from supervisor.devices.host import meminfo
from supervisor.devices.shape import Figure

if TYPE_CHECKING:
    from collections.abc import Iterable

    from supervisor.devices.shape import Survey


class Held(NamedTuple):
    """One process. `anonymous` is its own memory, `file_backed` its part of mapped files' pages (each page divided by how
    many map it), `on_device` what it has of each device, by UUID: 0 where the driver lists who uses the device, and it is
    not among them. `command` is for people and decides nothing."""

    pid: int
    command: str
    anonymous: Figure
    file_backed: Figure
    on_device: tuple[tuple[str, Figure], ...] = ()


def held(pids: Iterable[int], survey: Survey | None = None, root: str = "/") -> tuple[Held, ...]:
    """A line for every pid that is there, the proxy's too: a router may hold memory on each device (llama.cpp#21692).

    Of a process that cannot be read (another user's, or gone) the figures are unknown. A read costs some 0.1 ms, and
    10 ms for 100 GB in small pages. Device figures come from `survey`; without one there are none.
    """
    return tuple(_one(pid, survey, root) for pid in sorted(set(pids)))


def _one(pid: int, survey: Survey | None, root: str) -> Held:
    text, command = "", ""
    with suppress(OSError):
        with open(os.path.join(root, f"proc/{pid}/comm"), encoding="utf-8", errors="replace") as file:
            command = file.read().strip()
        with open(os.path.join(root, f"proc/{pid}/smaps_rollup"), encoding="ascii", errors="replace") as file:
            text = file.read()
    rollup = meminfo(text)
    unknown = Figure.unknown(f"/proc/{pid}/smaps_rollup cannot be read")
    anonymous = file_backed = unknown
    if "Pss_Anon" in rollup:
        source = f"/proc/{pid}/smaps_rollup"
        own = rollup["Pss_Anon"] + rollup.get("Pss_Shmem", 0) + rollup.get("SwapPss", 0)
        anonymous, file_backed = (
            Figure(own, f"{source} Pss_Anon"),
            Figure(rollup.get("Pss_File", 0), f"{source} Pss_File"),
        )
    return Held(pid, command, anonymous, file_backed, _on_devices(pid, survey) if command else ())


def _on_devices(pid: int, survey: Survey | None) -> tuple[tuple[str, Figure], ...]:
    found = []
    for device in survey.devices if survey is not None else ():
        if device.why_no_holdings:
            found.append((device.uuid, Figure.unknown(device.why_no_holdings)))
            continue
        its = [one for one in device.holdings if one.pid == pid and one.is_here]
        for one in its:
            told = Figure.unknown("the driver does not say it") if one.bytes is None else Figure(one.bytes, "NVML")
            found.append((device.uuid, told))
        # One that we cannot see may be this very process, by another namespace's number.
        if not its and not device.unified and all(one.is_here for one in device.holdings):
            found.append((device.uuid, Figure(0, "NVML: it is not among those that use the device")))
    return tuple(found)
