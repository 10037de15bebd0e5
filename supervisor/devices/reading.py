"""What NVML's answers mean: devices, from the raw facts of nvml_child.py. Pure.

The rules, each from a machine that somebody met (docs/reference/memory.md, "Devices"): a device that shares the host's
memory is counted once; a GPU in MIG mode is its slices; what the driver does not tell is unknown, never 0; a process's
number counts for something only in the namespace that gave it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from attrs import evolve

from supervisor.devices.shape import Device, DeviceKind, Figure, Holding

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from supervisor.devices.shape import HostMemory

SHARED_NAMES = ("GB10", "Thor", "Orin", "Xavier", "Tegra")
"""In the names of NVIDIA devices without memory of their own."""

SAME_SHARE = 0.01
"""Part (not bytes) by which a device's total may differ from MemTotal and still be the same memory. Drivers that give the
host's figures for such a device give exactly MemTotal; a card of the nominal size of the host's memory differs by 2 % and
more, since the kernel's own part is not in MemTotal."""

NONE_THERE = {
    "NO_LIBRARY": "there is no NVIDIA driver: libnvidia-ml.so.1 is not installed",
    "LIBRARY_NOT_FOUND": "there is no NVIDIA driver: libnvidia-ml.so.1 is not installed",
    "DRIVER_NOT_LOADED": "NVIDIA's library is there, its driver is not loaded",
    "GPU_NOT_FOUND": "the NVIDIA driver finds no device",
}
"""Answers that mean: no device."""

NOT_TOLD = {
    "NO_PYNVML": "nvidia-ml-py is not installed, so NVIDIA devices cannot be asked",
    "SILENT": "the NVIDIA driver hangs",
    "BROKEN": "NVIDIA's library could not be asked",
    "LIB_RM_VERSION_MISMATCH": "NVIDIA's library and its loaded driver are of two versions: the machine wants a reboot",
    "NO_PERMISSION": "we may not ask the NVIDIA driver",
}
"""Answers that leave it open whether there are devices. Others of NVML's, by their own names, do too."""


class Found(NamedTuple):
    """Devices in the order of their PCI bus ids, and what `Survey` says beside them."""

    devices: tuple[Device, ...]
    driver: str
    reason: str
    incomplete: bool


def devices_of(raw: Mapping[str, Any], host: HostMemory, is_here: Callable[[int], bool]) -> Found:
    """`is_here` says whether a pid of NVML's is a process that we can see; False for all where pids are another
    namespace's."""
    if (error := raw.get("error")) is not None:
        if error in NONE_THERE:
            return Found((), "", NONE_THERE[error], incomplete=False)
        detail = f" ({raw['text']})" if raw.get("text") else ""
        return Found((), "", NOT_TOLD.get(error, f"NVML says {error}") + detail, incomplete=True)
    found: list[tuple[tuple[int, ...], Device]] = []
    lost = []
    for card in raw["devices"]:
        if "error" in card:
            lost.append(f"device {card['index']} does not answer: {card['error']}")
            continue
        slices = [one for one in card["slices"] if "error" not in one]
        if slices:
            found += [
                ((*_bus(card), one["index"]), _device(one, card, host, is_here, DeviceKind.MIG)) for one in slices
            ]
        else:
            found.append(((*_bus(card), 0), _device(card, card, host, is_here, DeviceKind.GPU)))
    found.sort(key=lambda pair: pair[0])
    devices = tuple(evolve(device, index=index) for index, (_, device) in enumerate(found))
    driver = raw["driver"] if isinstance(raw["driver"], str) else ""
    reason = "; ".join(lost) or ("" if devices else NONE_THERE["GPU_NOT_FOUND"])
    return Found(devices, driver, reason, incomplete=bool(lost))


def _device(
    facts: Mapping[str, Any],
    card: Mapping[str, Any],
    host: HostMemory,
    is_here: Callable[[int], bool],
    kind: DeviceKind,
) -> Device:
    memory, name = facts["memory"], _text(facts["name"])
    in_mig = kind is DeviceKind.GPU and card["mig"] is True
    holdings: tuple[Holding, ...] = ()
    why_no_holdings = ""
    if isinstance(facts["processes"], dict):
        why_no_holdings = f"the driver does not list processes here ({facts['processes']['error']})"
    else:
        holdings = tuple(Holding(one["pid"], one["bytes"], is_here(one["pid"])) for one in facts["processes"])
    why, unified = "", False
    source = "NVML" if kind is DeviceKind.GPU else "NVML, this slice"
    total = free = Figure.unknown("")
    if in_mig:
        # Also where the driver gives figures for the whole: nothing can be placed on it.
        why = "it is in MIG mode, and none of its slices can be asked"
    elif "error" not in memory:
        total, free = Figure(memory["total"], source), Figure(memory["free"], source)
        unified = kind is DeviceKind.GPU and _is_the_hosts(name, memory["total"], card["bar1"], host)
    elif memory["error"] == "NOT_SUPPORTED" and kind is DeviceKind.GPU:
        # The one question a device without memory of its own cannot answer (dra-driver-nvidia-gpu#1073).
        unified = True
    else:
        why = f"the driver does not tell its memory ({memory['error']})"
    if unified:
        total = host.total._replace(source=f"{host.total.source}: it shares the host's memory")
        free = host.available._replace(source=f"{host.available.source}: it shares the host's memory")
    if why:
        total = free = Figure.unknown(why)
    return Device(
        uuid=_text(facts["uuid"]), pci=_text(facts["pci"]) or _text(card["pci"]), name=name, index=0, total=total,
        free=free, unified=unified, kind=kind, why_unknown=why, holdings=holdings, why_no_holdings=why_no_holdings,
    )  # fmt: skip


def _is_the_hosts(name: str, total: int, bar1: Any, host: HostMemory) -> bool:
    """Whether figures that were given as a device's own are the host's (nvitop#208). A card has a window into its memory
    on the bus (BAR1); a device that shares the host's needs none."""
    if any(word in name for word in SHARED_NAMES):
        return True
    if isinstance(bar1, int) and bar1 > 0:
        return False
    ours = host.total.bytes
    return ours is not None and abs(total - ours) <= SAME_SHARE * ours


def _bus(card: Mapping[str, Any]) -> tuple[int, ...]:
    """Domain, bus, device and function as numbers; whoever has none comes last, in NVML's order."""
    try:
        return tuple(int(part, 16) for part in _text(card["pci"]).replace(".", ":").split(":"))
    except ValueError:
        return (2**32, int(card["index"]))


def _text(answer: Any) -> str:
    return answer if isinstance(answer, str) else ""
