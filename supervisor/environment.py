"""The environment of everything that outlives whoever started it: an allow-list, plus what the configuration says.

A detached engine must not carry the CUDA_VISIBLE_DEVICES, LD_PRELOAD or API keys of the front end that came first
(docs/concepts.md, "Processes"). What an engine needs beyond this list belongs in `environment` of its group.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

ALLOWED = frozenset(
    {"HOME", "LANG", "LANGUAGE", "LOGNAME", "PATH", "SHELL", "TEMP", "TMP", "TMPDIR", "TZ", "USER"}
    | {"XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_RUNTIME_DIR", "XDG_STATE_HOME"}
    | {"QUEENRIGHT_CACHE", "QUEENRIGHT_ESTIMATOR", "QUEENRIGHT_RESERVATIONS"}
)
SCRUBBED = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES")
"""Service-manager variables that speak to one process alone (sd_notify(3), sd_listen_fds(3)): never to a child."""

STEADY = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
"""Set for every engine, unless its configuration sets it. CUDA's own order is the fastest first, NVML's is the bus: the
same number is then another card, and work goes where nobody planned it (gpustack#1633)."""


def clean(environment: Mapping[str, str]) -> dict[str, str]:
    """What of `environment` may go on to a process that is not ours to end."""
    return {key: value for key, value in environment.items() if key in ALLOWED or key.startswith("LC_")}
