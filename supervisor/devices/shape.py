"""What a survey of the machine's memory says, as frozen data: the planner consumes it, `doctor` shows it. Pure.

Every figure is in bytes and comes with its source, and with how it came to be known. What could not be had is None and
says why: an unknown is never 0, and never the figure of something larger.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from attrs import frozen


class How(StrEnum):
    """How a figure came to be known, the best first: the engine's own word goes before what was measured from outside,
    and that before what was worked out (docs/reference/memory.md)."""

    PRINTED = "printed by the engine"
    MEASURED = "measured"
    MODELLED = "modelled"
    ASSUMED = "assumed"
    UNKNOWN = "unknown"


class Figure(NamedTuple):
    """A number of bytes and where it comes from: a file of /proc, a call of NVML, a line of a log. `bytes` is None only
    with `how` UNKNOWN; `source` then says why it could not be had."""

    bytes: int | None
    source: str
    how: How = How.MEASURED

    @classmethod
    def unknown(cls, why: str) -> Figure:
        """A figure that could not be had."""
        return cls(None, why, How.UNKNOWN)

    @property
    def is_known(self) -> bool:
        """Whether there is a number."""
        return self.bytes is not None


class DeviceKind(StrEnum):
    """What a device is to a planner."""

    GPU = "gpu"
    MIG = "mig"
    """A slice of a GPU in MIG mode. Its GPU is not listed beside it: that one's figures are not to be had."""


class Holding(NamedTuple):
    """What one process holds of a device. `pid` is as NVML says it: the host's number. `bytes` is None where the driver
    does not tell (WSL, unified memory). `is_here` says whether that process can be seen in our /proc: in a container it
    mostly cannot, and then nothing is known of whose it is."""

    pid: int
    bytes: int | None
    is_here: bool


@frozen
class Device:
    """One device that an engine can be placed on.

    `uuid` names it in plans, records and environments; "" where only an engine's `--list-devices` knows of it. `index`
    is its place in the survey: in the order of PCI bus ids, which is CUDA's own order only with
    CUDA_DEVICE_ORDER=PCI_BUS_ID (docs/reference/memory.md). `engine_name` is what llama-server calls it (CUDA0).

    On a `unified` device `total` and `free` are the host's memory, and the same bytes as in `HostMemory`: they are counted
    once. `free` is what is free now, whoever holds the rest; a planner takes a reserve off it.
    """

    uuid: str
    pci: str
    name: str
    index: int
    total: Figure
    free: Figure
    unified: bool = False
    kind: DeviceKind = DeviceKind.GPU
    engine_name: str = ""
    why_unknown: str = ""
    """Why `total` or `free` could not be had; "" when they could."""
    holdings: tuple[Holding, ...] = ()
    why_no_holdings: str = ""
    """Why nothing is known of who holds what; "" when `holdings` is what the driver lists."""

    @property
    def is_known(self) -> bool:
        """Whether a plan can be made for it."""
        return self.total.is_known and self.free.is_known

    @property
    def unattributed(self) -> Figure:
        """What is in use and belongs to no process that we can see; unknown where that cannot be told, never 0."""
        if self.unified:
            return Figure.unknown("the memory is the host's: no process can be told from another by this figure")
        if self.total.bytes is None or self.free.bytes is None:
            return Figure.unknown(self.why_unknown)
        seen = [holding.bytes for holding in self.holdings if holding.is_here]
        if self.why_no_holdings or None in seen:
            return Figure.unknown(self.why_no_holdings or "the driver does not say what each process holds")
        used = self.total.bytes - self.free.bytes
        return Figure(max(0, used - sum(filter(None, seen))), "in use, less what the processes that we see hold")


class Limit(NamedTuple):
    """What one control group lets its processes have (docs/reference/memory.md, "Control groups").

    `room` = limit - used + reclaimable; `path` is the group's directory.
    """

    path: str
    limit: int
    used: int
    reclaimable: int
    source: str

    @property
    def room(self) -> int:
        """Bytes that can still be had in it."""
        return max(0, self.limit - self.used + self.reclaimable)


@frozen
class HostMemory:
    """The host's memory. `available` is the figure to plan with, before any reserve: the least of the kernel's estimate
    (put right by `corrections`) and the room in each control group around us. `bound_by` says which of them it is."""

    total: Figure
    available: Figure
    bound_by: str
    kernel_available: Figure
    """MemAvailable as it stands in /proc/meminfo."""
    corrections: tuple[Figure, ...] = ()
    """What was added to that, or (below 0) taken off."""
    limits: tuple[Limit, ...] = ()
    """Only groups that have a limit, the outermost first."""
    memlock: int | None = None
    """Bytes that one process may lock (RLIMIT_MEMLOCK, soft); None when there is no limit."""
    swap_free: int | None = None
    """Bytes; shown, never planned with."""

    @property
    def ceiling(self) -> int | None:
        """The most an engine of ours could ever have here: the total, or the smallest control group's limit."""
        known = [limit.limit for limit in self.limits]
        if self.total.bytes is not None:
            known.append(self.total.bytes)
        return min(known, default=None)


@frozen
class Survey:
    """The machine's memory at one moment. `reason` says why `devices` is empty, or why some may be missing; `driver` is
    the driver's version, "" where there is none."""

    devices: tuple[Device, ...]
    host: HostMemory
    driver: str = ""
    reason: str = ""
    incomplete: bool = False
    """There may be devices that could not be asked (a driver that hangs, say): no ground for a plan without devices."""

    @property
    def unified(self) -> bool:
        """Whether a device shares the host's memory: then nothing of it may be counted twice."""
        return any(device.unified for device in self.devices)
