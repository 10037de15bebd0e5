"""Asking a program that may wake a driver: in the environment that a server of ours would have, and never for longer than it
was given.

Whoever plans has a shell's environment, or a keeper's, and a server has neither (`supervisor.environment`): with another
CUDA_VISIBLE_DEVICES, or without the order of devices that is set for servers, the answer would be of other cards. And one that
is stuck in a driver does not die of SIGKILL: it is not waited for (as NVML's child is not).
"""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from supervisor import environment

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

END_LIMIT: Final = 2.0  # budget: from SIGKILL to gone; later only in uninterruptible sleep

OURS: Final = "QUEENRIGHT_"
"""Beginning of our own variables: the marker by which leftovers are found is one."""


def surroundings(extra: Mapping[str, str]) -> dict[str, str]:
    """The environment of a server whose group adds `extra`, and our own marks."""
    ours = {name: value for name, value in os.environ.items() if name.startswith(OURS)}
    return {**environment.clean(os.environ), **ours, **environment.STEADY, **extra}


def ask(argv: Sequence[str], limit: float, extra: Mapping[str, str]) -> subprocess.CompletedProcess[bytes]:
    """Run it to its end. One that takes longer than `limit` seconds is killed with whatever it started. Blocks for END_LIMIT
    more at most. Raises OSError, and subprocess.TimeoutExpired."""
    child = subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=surroundings(extra),
        process_group=0,
    )  # fmt: skip
    try:
        stdout, stderr = child.communicate(timeout=limit)
    except BaseException:
        _end(child)
        raise
    return subprocess.CompletedProcess(argv, child.returncode, stdout, stderr)


def _end(child: subprocess.Popen[bytes]) -> None:
    if child.poll() is None:  # not reaped: its number, and that of its process group, are its own
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)  # noqa: TID251 - we are its parent, and have not reaped it
    for pipe in (child.stdout, child.stderr):
        if pipe is not None:
            pipe.close()
    with suppress(subprocess.TimeoutExpired):
        child.wait(END_LIMIT)
