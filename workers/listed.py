"""Devices as a llama-server lists them (`--list-devices`): all there is where NVML has nothing, and what it calls those that
NVML knows."""

from __future__ import annotations

import os
import re
import subprocess
from typing import TYPE_CHECKING

from attrs import evolve

from supervisor.devices.shape import Device, Figure, How
from workers import outside

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from supervisor.devices.shape import HostMemory, Survey

# budget: a backend initialises its driver first: under a second, and some seconds where nothing keeps the driver awake.
# One that hangs would hang the engine's start as well.
LIST_LIMIT = 10.0

MIB = 2**20
HEADER = "Available devices:"
LINE = re.compile(r"^\s+(([A-Za-z_]+)\d+): (.*) \((\d+) MiB, (\d+) MiB free\)\s*$")
VULKAN_UMA = re.compile(r"ggml_vulkan: (\d+) = .*\| uma: 1 ")
SOFTWARE = ("llvmpipe", "lavapipe", "SwiftShader")
"""Vulkan devices that are the processor."""

RANK = {"CUDA": 0, "ROCm": 0, "HIP": 0, "MUSA": 0, "MTL": 0, "SYCL": 1, "Vulkan": 2}
"""One card may be listed under several backends, and llama-server takes each for a card of its own: the best one counts."""

SHOWN = "CUDA_VISIBLE_DEVICES"
"""By which a group says which cards CUDA is to see. Other backends do not go by it."""

SHARED = 0.01
"""Part (not bytes) by which a total may differ from the host's and still be the same memory, as for NVML."""


DRIVERS = ("/dev/kfd", "/dev/dri", "/dev/dxg")
"""Where one of these is there may be a card that NVML knows nothing of (AMD, Intel, WSL): the server is asked."""


def ask(server: Sequence[str], environment: Mapping[str, str] | None = None, limit: float = LIST_LIMIT) -> str | None:
    """What it prints, the log (stderr) first; None where it fails or takes longer than `limit` seconds. `environment` is what
    a group adds to it. Blocks."""
    try:
        done = outside.ask([*server, "--list-devices"], limit, environment or {})
    except (OSError, subprocess.TimeoutExpired):
        return None
    return (done.stderr + b"\n" + done.stdout).decode(errors="replace") if done.returncode == 0 else None


def parse(text: str | None, host: HostMemory) -> tuple[Device, ...] | None:
    """The devices of the best backend, in its order; None where the text is no list. An empty list is an answer: this
    server runs on the CPU alone, whatever cards there are."""
    if text is None or HEADER not in text:
        return None
    shared = {f"Vulkan{number}" for number in VULKAN_UMA.findall(text)}
    found: dict[str, list[Device]] = {}
    for line in text.partition(HEADER)[2].splitlines():
        match = LINE.match(line)
        if match is None:
            continue
        name, backend, what, total, free = match.groups()
        if int(total) == 0 or any(word in what for word in SOFTWARE):
            continue
        figures = (
            Figure(int(total) * MIB, "--list-devices", How.PRINTED),
            Figure(int(free) * MIB, "--list-devices", How.PRINTED),
        )
        unified = name in shared or backend == "MTL" or _is_the_hosts(int(total) * MIB, host)
        if unified:
            figures = host.total, host.available
        listed = found.setdefault(backend, [])
        why = "llama-server's list does not say who holds what"
        listed.append(
            Device("", "", what, len(listed), *figures, unified=unified, engine_name=name, why_no_holdings=why)
        )
    best = min(found, key=lambda backend: RANK.get(backend, 3), default=None)
    return tuple(found[best]) if best is not None else ()


def as_seen_by(server: Sequence[str], survey: Survey, environment: Mapping[str, str] | None = None) -> Survey:
    """The survey as the program sees it in a group that adds `environment`: without cards where it was built for none, with its
    own where NVML has nothing, with those alone that it is shown, and its names for them. It is asked only where there may be
    a card: that starts a driver."""
    if not server or (not survey.devices and not any(os.path.exists(path) for path in DRIVERS)):
        return survey
    found = parse(ask(server, environment), survey.host)
    if found == ():
        return evolve(survey, devices=(), reason="this llama-server uses no device")
    return joined(survey, found, (environment or {}).get(SHOWN))


def joined(survey: Survey, listed: tuple[Device, ...] | None, shown: str | None = None) -> Survey:
    """The survey with what the server calls each device; with the server's own devices where NVML has none; with those alone
    that CUDA is `shown`. Cards that NVML knows are matched by order and name: with CUDA_DEVICE_ORDER=PCI_BUS_ID both count
    along the bus. Where they do not match, names stay open."""
    if listed is None:
        return survey
    if not survey.devices:
        return evolve(survey, devices=listed) if listed else survey
    is_cuda = shown is not None and all(one.engine_name.startswith("CUDA") for one in listed)
    for ours in (_shown(survey.devices, shown or "") if is_cuda else (), survey.devices):
        if [one.name for one in ours] == [one.name for one in listed]:
            pairs = zip(ours, listed, strict=True)
            return evolve(survey, devices=tuple(evolve(one, engine_name=other.engine_name) for one, other in pairs))
    return survey


def _shown(devices: Sequence[Device], words: str) -> tuple[Device, ...]:
    """Those that CUDA_VISIBLE_DEVICES names, in its order, up to the first word that names none (CUDA C++ Programming Guide,
    "CUDA Environment Variables"): a number along the bus, or how a UUID begins."""
    found = []
    for word in map(str.strip, words.split(",")):
        fits = [one for one in devices if word and (one.uuid.startswith(word) or str(one.index) == word)]
        if len(fits) != 1:
            break
        found += fits
    return tuple(found)


def _is_the_hosts(total: int, host: HostMemory) -> bool:
    return host.total.bytes is not None and abs(total - host.total.bytes) <= SHARED * host.total.bytes
