"""All of the machine's memory at one moment: the hand that asks kernel and driver."""

from __future__ import annotations

import os

from supervisor import budgets, identity
from supervisor.devices import host, nvml, reading
from supervisor.devices.shape import Survey

FIRST_NAMESPACE = 0xEFFFFFFC
"""The inode of the machine's first pid namespace (linux/proc_ns.h, PROC_PID_INIT_INO): NVML's pids are numbers in it."""


def survey(root: str = "/", *, pid: int | str = "self", limit: float = budgets.NVML_LIMIT) -> Survey:
    """Look now; blocks for up to `limit` seconds, some 0.05 without a driver. `pid` is a process in whose control groups
    the engine is to be: the warden's, or our own. Never raises."""
    memory = host.read(root, pid)
    found = reading.devices_of(nvml.ask(limit), memory, _is_here if _sees_all_pids() else lambda pid: False)
    return Survey(found.devices, memory, found.driver, found.reason, found.incomplete)


def _sees_all_pids() -> bool:
    """Whether NVML's pids are numbers of our own. In a container the same number may well be somebody else's here."""
    try:
        return identity.pid_namespace() == FIRST_NAMESPACE
    except (OSError, ValueError):
        return False


def _is_here(pid: int) -> bool:
    return os.path.exists(f"{identity.PROC}/{pid}")
