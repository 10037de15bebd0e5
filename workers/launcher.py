"""The step between a proxy and its llama-server: it ties the server's life to the proxy's, then becomes the server.

    python -I -S /absolute/path/workers/launcher.py --warden PID -- /absolute/path/llama-server ARGUMENT...

Standard library only, and as little of it as will do: this runs before every load of a model. Linux: the death signal
is prctl(2)'s PR_SET_PDEATHSIG. Elsewhere there is none, and the launcher only checks its parent and execs.

Exit statuses of its own: 64 usage, 75 the parent is dead already, 126 not executable, 127 not found. After the exec the
status is the server's.

The death signal follows the *thread* that forked (prctl(2)): a proxy must fork its servers from a thread that lives as
long as itself. llama-swap's threads do; `workers.proxy` forks on its main thread.

It costs 20 ms over a bare exec on a slow day, 14 of them Python's own start and 3 ctypes (measured; the module `signal`
alone would add 7, for its enums). The standard library has no other way to call prctl; setpriv(1) has (2 ms), but it
cannot re-read its parent, and not every machine has it.
"""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found]  # what `signal` wraps in enums
import os
import sys

EXIT_USAGE = 64
EXIT_ORPHAN = 75
EXIT_NOT_EXECUTABLE = 126
EXIT_NOT_FOUND = 127

PR_SET_PDEATHSIG = 1
"""From <linux/prctl.h>."""

DEFAULTED = (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGTERM, signal.SIGINT, signal.SIGCHLD)
"""Python ignores the first two at its start and an exec keeps that; the others could be ignored from further up, and
a server that ignores SIGTERM cannot be stopped in order. Caught signals are reset by the exec itself."""


def complain(text: str, status: int) -> int:
    """One line on stderr, which is the group's log. Returns `status`."""
    sys.stderr.write(f"queenright launcher: {text}\n")
    return status


def set_death_signal() -> None:
    """Have the kernel kill this process when its parent ends. The setting outlives the exec (prctl(2)).

    Raises OSError. Does nothing where there is no such call.
    """
    if sys.platform != "linux":
        return  # no death signal: the warden's sweep finds what is left
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    arguments = (PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if libc.prctl(*(ctypes.c_ulong(argument) for argument in arguments)):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")


def given_environment() -> dict[bytes, bytes]:
    """The environment as it was handed to us.

    Not `os.environ`: under a C locale Python adds LC_CTYPE to it (PEP 538), `-I` or not, and the server would inherit
    that.
    """
    try:
        with open("/proc/self/environ", "rb") as file:
            entries = file.read().split(b"\0")
    except OSError:
        return dict(os.environb)
    pairs = (entry.partition(b"=") for entry in entries if b"=" in entry)
    return {name: value for name, _, value in pairs}


def main(argv: list[str]) -> int:
    """Returns an exit status, or never: the process becomes the server."""
    parent = os.getppid()
    try:
        flag, number, dashes = argv[:3]
        warden = int(number)
    except ValueError:
        flag = dashes = ""
        warden = 0
    command = argv[3:]
    if flag != "--warden" or dashes != "--" or warden <= 0 or not command:
        return complain("usage: launcher.py --warden PID -- COMMAND [ARGUMENT...]", EXIT_USAGE)
    if parent in (warden, 1):  # orphans go to the subreaper, or to init
        return complain(f"the proxy is dead (parent is {parent}), so {command[0]} is not started", EXIT_ORPHAN)
    try:
        set_death_signal()
    except OSError as error:
        return complain(f"no death signal: {error}", EXIT_NOT_EXECUTABLE)
    if os.getppid() != parent:  # it died before the signal was set, and no signal will come
        return complain(f"the proxy {parent} died, so {command[0]} is not started", EXIT_ORPHAN)
    for number_of in DEFAULTED:
        signal.signal(number_of, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    if not os.path.isabs(command[0]):  # a relative path would mean another file in another directory
        return complain(f"{command[0]} is not an absolute path", EXIT_NOT_FOUND)
    try:
        os.execve(command[0], command, given_environment())
    except FileNotFoundError:
        return complain(f"{command[0]} does not exist", EXIT_NOT_FOUND)
    except OSError as error:
        return complain(f"{command[0]} cannot be executed: {error.strerror}", EXIT_NOT_EXECUTABLE)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
