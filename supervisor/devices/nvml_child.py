"""What NVML says, printed as JSON: a program of its own, because a call into a wedged driver never returns.

Started as `python -I -S nvml_child.py DIRECTORY-OF-PYNVML`. It imports nothing of ours, and pynvml (80 to 120 ms) only
where there is a driver's library to load. It judges nothing: each question that failed is `{"error": NAME}`, with the
name of NVML's return value (nvml.h, nvmlReturn_t).
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

LIBRARY = "libnvidia-ml.so.1"
NO_LIBRARY = "NO_LIBRARY"
"""Our own word beside NVML's: nothing was there to load."""


def main() -> None:
    """Print everything, as one line. Ends with whoever asked: prctl(2), PR_SET_PDEATHSIG with SIGKILL."""
    import ctypes  # whoever reads NO_LIBRARY needs it not

    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, 9)
    try:
        ctypes.CDLL(LIBRARY)
    except OSError as error:
        print(json.dumps({"error": NO_LIBRARY, "text": str(error)}))
        return
    sys.path.extend(sys.argv[1:])
    import pynvml as nvml

    print(json.dumps(_all(nvml)))


def _all(nvml: Any) -> dict[str, Any]:
    def ask(question: Callable[..., Any], *words: Any) -> Any:
        """The answer, or which error it was. A driver older than pynvml lacks functions: FUNCTION_NOT_FOUND."""
        try:
            return question(*words)
        except nvml.NVMLError as error:
            return {"error": _name(nvml, error)}

    started = ask(nvml.nvmlInit)
    if started is not None:
        return dict(started)
    try:
        count = ask(nvml.nvmlDeviceGetCount)
        devices = [] if isinstance(count, dict) else [_device(nvml, ask, index) for index in range(count)]
        said = {"driver": ask(nvml.nvmlSystemGetDriverVersion), "devices": devices}
        return said | (count if isinstance(count, dict) else {})
    finally:
        ask(nvml.nvmlShutdown)


def _device(nvml: Any, ask: Callable[..., Any], index: int) -> dict[str, Any]:
    handle = ask(nvml.nvmlDeviceGetHandleByIndex, index)
    if isinstance(handle, dict):
        return {"index": index} | handle
    mode = ask(nvml.nvmlDeviceGetMigMode, handle)
    bar = ask(nvml.nvmlDeviceGetBAR1MemoryInfo, handle)
    facts = _facts(nvml, ask, handle) | {
        "index": index,
        "mig": bool(mode[0]) if isinstance(mode, list) else mode,
        "bar1": bar if isinstance(bar, dict) else int(bar.bar1Total),
        "slices": [],
    }
    if facts["mig"] is True or facts["mig"] == {"error": "NO_PERMISSION"}:
        most = ask(nvml.nvmlDeviceGetMaxMigDeviceCount, handle)
        for number in range(most if isinstance(most, int) else 0):
            mig = ask(nvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, number)
            if mig == {"error": "NOT_FOUND"} or mig == {"error": "INVALID_ARGUMENT"}:
                continue  # places for slices that nobody made
            facts["slices"].append({"index": number} | (mig if isinstance(mig, dict) else _facts(nvml, ask, mig)))
    return facts


def _facts(nvml: Any, ask: Callable[..., Any], handle: Any) -> dict[str, Any]:
    memory = ask(nvml.nvmlDeviceGetMemoryInfo, handle)
    pci = ask(nvml.nvmlDeviceGetPciInfo, handle)
    bus = pci if isinstance(pci, dict) else pci.busId
    found: dict[int, int | None] = {}
    why: dict[str, str] = {}
    for name in ("nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetGraphicsRunningProcesses"):
        # With its version in the name: the name without one raises something else where the driver is the older.
        said = ask(getattr(nvml, f"{name}_v3"), handle)
        if said == {"error": "FUNCTION_NOT_FOUND"}:
            said = ask(getattr(nvml, f"{name}_v2"), handle)
        if isinstance(said, dict):
            why = why or said
            continue
        # One process may be in both lists, with the same figure in each.
        found.update({one.pid: one.usedGpuMemory for one in said})
    return {
        "uuid": ask(nvml.nvmlDeviceGetUUID, handle),
        "name": ask(nvml.nvmlDeviceGetName, handle),
        "pci": bus.decode() if isinstance(bus, bytes) else bus,
        "memory": memory if isinstance(memory, dict) else {"total": memory.total, "free": memory.free},
        # Slices have no list of graphics processes: one list is enough to know who is there.
        "processes": [{"pid": pid, "bytes": size} for pid, size in sorted(found.items())] if found or not why else why,
    }


def _name(nvml: Any, error: Any) -> str:
    """nvmlReturn_t by its name: pynvml has it as a constant."""
    for name in dir(nvml):
        if name.startswith("NVML_ERROR_") and getattr(nvml, name) == error.value:
            return name.removeprefix("NVML_ERROR_")
    return f"error {error.value}"


if __name__ == "__main__":
    main()
