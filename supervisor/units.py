"""systemd's units, as a process sees them: which one it is in, and whether there is a way out of a service's.

A stop of a service ends all that is in its control group (KillMode=control-group, the default of systemd.kill(5)). An
engine that a service started first would be stopped with it, for everybody. So its warden is put into a scope of its
own, by the user's service manager. A scope and no transient service: systemd-run executes our command in it by itself,
with our environment, descriptors and exit status (systemd-run(1), `--scope`).

What KillMode the service has is not asked: with another one, a scope of its own does no harm.
"""

from __future__ import annotations

import os
import pwd
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from supervisor import identity

if TYPE_CHECKING:
    from collections.abc import Mapping

LINGER = Path("/var/lib/systemd/linger")
OURS = "queenright-"
"""How the names of our own scopes begin."""


class WayOut(NamedTuple):
    """How to start something outside of `service`: words before the command, the variables they need beside it, and the
    unit it will be in."""

    service: str
    unit: str
    words: list[str]
    environment: dict[str, str]


def systemd_path(text: str) -> str:
    """A process's path in systemd's hierarchy, from the text of its /proc/PID/cgroup (cgroups(7)): of cgroup v2, or of
    version 1's name=systemd, whichever of the two says more; "" where neither is there."""
    found = ""
    for line in text.splitlines():
        number, _, rest = line.partition(":")
        controllers, colon, path = rest.partition(":")
        if colon and (number == "0" or controllers == "name=systemd"):
            found = max(found, path, key=len)
    return found


def cgroup_of(pid: int) -> str:
    """The same of a process; "" also where it cannot be read."""
    with suppress(OSError, ValueError), open(f"{identity.PROC}/{pid}/cgroup", encoding="utf-8") as file:
        return systemd_path(file.read())
    return ""


def units_of(path: str) -> list[str]:
    """Services and scopes in a path, the outermost first."""
    return [part for part in path.split("/") if part.endswith((".service", ".scope"))]


def service_around(path: str) -> str:
    """The service whose stop ends whoever is in this path; "" where there is none. A user's manager (user@1000.service) is
    none of these: it ends with its user's sessions."""
    services = [unit for unit in units_of(path) if unit.endswith(".service") and not unit.startswith("user@")]
    return services[-1] if services else ""


def lingers() -> bool:
    """Whether our user's manager outlives our user's sessions (loginctl(1))."""
    user = ""
    with suppress(KeyError):
        user = pwd.getpwuid(os.getuid()).pw_name
    return bool(user) and (LINGER / user).exists()


def way_out(path: str, environ: Mapping[str, str]) -> WayOut | None:
    """A way out of the service in whose control group `path` is; None where there is no service, or no way.

    A way is a user's manager that can be asked: its socket is there, and systemd-run on PATH. Out of a system's service
    it leads somewhere better only if that user lingers: else the engine would end with the user's last session.
    """
    service = service_around(path)
    if not service or ("user@" not in path and not lingers()):
        return None
    runtime = environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}"
    if not any(os.path.exists(f"{runtime}/{socket}") for socket in ("systemd/private", "bus")):
        return None
    import secrets  # these two are wanted rarely, and cost a look some milliseconds
    import shutil

    program = shutil.which("systemd-run", path=environ.get("PATH"))
    if program is None:
        return None
    unit = f"{OURS}{secrets.token_hex(4)}.scope"
    words = [
        program, "--user", "--scope", "--quiet", "--collect", "--no-ask-password", f"--unit={unit}",
        "--description=queenright, an inference engine that several programs share",
        # Else an OOM kill of one server would have systemd stop the whole scope (OOMPolicy= of systemd.scope(5)).
        "--property=Delegate=yes",
        "--",
    ]  # fmt: skip
    return WayOut(service, unit, words, {"XDG_RUNTIME_DIR": runtime})
