"""A keeper that is started before it is known what it is to keep: it imports what a keeper does, and then waits.

`queenright run` becomes the warden, and whoever is its child by then is the warden's. So the 0.25 s of CPU time that a
keeper imports are spent on another core while the configuration is read and the slot is looked at (measured: a cold start
takes a third less). It touches nothing, of the slot or else, before the warden gives it its words, and ends with whoever
started it.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import sys
from contextlib import suppress
from typing import Final, NamedTuple

from supervisor import environment

WORD: Final = "--standby"
MARKER: Final = "QUEENRIGHT_GENERATION"
"""contract.GENERATION_VARIABLE, which would bring attrs: a third of what is to be done meanwhile."""
LINE_FD: Final = 3
"""Until it is told what to keep: a socket on which it is told. Then that is the link's descriptor."""
LONGEST: Final = 1 << 16
"""Bytes of the words it is told."""
HIGH: Final = 100
"""Descriptors are moved up there before they are put in their places, so that none is written over."""
PR_SET_PDEATHSIG: Final = 1
"""From prctl(2)."""

PROGRAM: Final = (sys.executable, "-P", os.path.join(os.path.dirname(os.path.realpath(__file__)), "keeper.py"))
"""How every keeper's command line begins that may be kept waiting."""


class Standby(NamedTuple):
    """Our child, and our end of its line."""

    pid: int
    line: int

    def settings(self) -> dict[str, object]:
        """For the warden that this process becomes by exec."""
        os.set_inheritable(self.line, True)
        return {"standby": [self.pid, self.line]}

    def end(self) -> None:
        """Nobody needs it: without its line it ends by itself, and it is not waited for where the kernel reaps our
        children (SIGCHLD ignored by whoever started us: wait(2))."""
        os.close(self.line)
        if signal.getsignal(signal.SIGCHLD) is not signal.SIG_IGN:
            os.kill(self.pid, signal.SIGKILL)  # noqa: TID251 - our own child, not reaped yet: its pid is nobody else's
            os.waitpid(self.pid, 0)


def begin() -> Standby | None:
    """Start one, with what a warden's first keeper gets of environment and signals (docs/reference/warden-protocol.md).
    None where that cannot be done: then the warden starts its first keeper itself, a little later. There may be no process
    or descriptor to be had, or a Python that was built for a C library without POSIX_SPAWN_SETSID (glibc before 2.26)."""
    with suppress(OSError, NotImplementedError):
        return _begin()
    return None


def _begin() -> Standby:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    around = {key: value for key, value in environment.clean(os.environ).items() if key not in environment.SCRUBBED}
    with ours, theirs:
        high = fcntl.fcntl(theirs, fcntl.F_DUPFD_CLOEXEC, HIGH)
        try:
            pid = os.posix_spawn(
                PROGRAM[0],
                [*PROGRAM, WORD, str(os.getpid())],
                around | {MARKER: f"keeper.{os.getpid()}.1"},
                file_actions=[
                    (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                    (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
                    (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
                    (os.POSIX_SPAWN_DUP2, high, LINE_FD),
                ],
                setsid=True,
                setsigmask=(),
                setsigdef=signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP},
            )
        finally:
            os.close(high)
        return Standby(pid, ours.detach())


def wait(parent: int) -> list[str]:
    """In the keeper: until the warden gives us our descriptors and our command line, which is returned without its program.
    The process ends here where that will not come."""
    import ctypes  # whoever starts us needs it not

    for descriptor in map(int, os.listdir("/proc/self/fd")):  # what our starter had been given is not for us
        if descriptor > LINE_FD:
            with suppress(OSError):  # the listing's own
                os.close(descriptor)
    os.chdir("/")
    os.umask(0o077)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    with socket.socket(fileno=LINE_FD) as line:
        text, given, *_ = socket.recv_fds(line, LONGEST, 16) if os.getppid() == parent else (b"", [])
    if not text:
        sys.exit(0)
    words, places = json.loads(text)
    high = [fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, HIGH) for descriptor in given]
    for descriptor in given:
        os.close(descriptor)
    for descriptor, place in zip(high, places, strict=True):
        os.dup2(descriptor, place)
        os.close(descriptor)
    return [str(word) for word in words[len(PROGRAM) :]]
