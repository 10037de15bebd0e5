"""What `queenright doctor` says of the machine's memory: sentences over a survey. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from supervisor.devices.fragmentation import FEW_BLOCKS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from supervisor.devices.shape import Device, Figure, HostMemory, Survey

GIB = 2**30


class Remark(NamedTuple):
    """One sentence: `about` is what was looked at, `next_step` what can be done; without one all is well."""

    about: str
    text: str
    next_step: str = ""


def size(figure: Figure) -> str:
    """For people: `61.0 GiB`, or `unknown`."""
    return "unknown" if figure.bytes is None else f"{figure.bytes / GIB:.1f} GiB"


def remarks(survey: Survey, blocks: int | None, stalls: int | None) -> Iterator[Remark]:
    """`blocks` are free blocks of 2 MiB, `stalls` waits for compaction since the boot; None where unknown."""
    yield _host(survey.host)
    if survey.host.memlock is not None:
        yield _memlock(survey.host.memlock, survey)
    yield _fragmentation(blocks, stalls)
    if survey.incomplete:
        yield Remark("devices", survey.reason, "`nvidia-smi` must answer; until it does no plan can count on a device")
    elif not survey.devices:
        yield Remark("devices", f"none: {survey.reason}")
    for device in survey.devices:
        yield _device(device)


def _host(host: HostMemory) -> Remark:
    if host.available.bytes is None:
        return Remark("memory", f"what is available is unknown: {host.available.source}", "look at /proc/meminfo")
    text = f"{size(host.available)} of {size(host.total)} can be had ({host.available.source})"
    if host.bound_by != host.kernel_available.source:
        text += f"; the kernel has {size(host.kernel_available)}"
    return Remark("memory", text)


def _memlock(limit: int, survey: Survey) -> Remark:
    text = f"a process may lock {limit / 2**20:.0f} MiB of memory"
    unpinned = survey.devices and not survey.unified and limit < GIB
    if unpinned:
        # Experts that stay on the CPU beside a device are allocated as pinned memory (ollama#11772).
        text += ", less than the experts of a model that are kept beside a device, or `--mlock`, need"
        return Remark("locked memory", text, "raise it: `ulimit -l unlimited`, LimitMEMLOCK=infinity in a unit")
    return Remark("locked memory", text)


def _fragmentation(blocks: int | None, stalls: int | None) -> Remark:
    if blocks is None:
        return Remark("contiguous memory", "how much is free in one piece is unknown: /proc/buddyinfo cannot be read")
    counted = f", {stalls} waits for compaction since the boot" if stalls is not None else ""
    text = f"{blocks} free blocks of 2 MiB{counted}"
    if blocks >= FEW_BLOCKS:
        return Remark("contiguous memory", text)
    text += f", fewer than {FEW_BLOCKS}: a load that needs them (shared memory of a GPU, huge pages) may stand still"
    return Remark("contiguous memory", text, "as root: `echo 1 > /proc/sys/vm/compact_memory`, or free some memory")


def _device(device: Device) -> Remark:
    about = f"device {device.index}"
    who = f"{device.name} ({device.uuid})"
    if not device.is_known:
        why = device.why_unknown or device.free.source
        return Remark(about, f"{who}: its memory is unknown, {why}", "no plan can count on it")
    text = f"{who}: {size(device.free)} of {size(device.total)} free"
    if device.unified:
        return Remark(about, f"{text}, shared with the host and counted once")
    left = device.unattributed
    if left.bytes:
        text += f"; unattributed: {size(left)} in use that belong to no process we can see"
    elif not left.is_known:
        text += f"; who holds the rest is unknown ({left.source})"
    return Remark(about, text)
