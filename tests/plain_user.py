"""`python -I -S plain_user.py COMMAND...`: COMMAND by its whole path, without root's power to read and write everything.

For tests of files that may not be read or written: they mean the same for root then as for everybody else. Exit status
1 with a line where that power cannot be given up. Anybody but root has none, and is let pass.
"""

from __future__ import annotations

import ctypes
import os
import sys

PR_CAPBSET_DROP = 24  # prctl(2): what an exec as root may give
VERSION_3 = 0x20080522  # capget(2)
CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH = 1, 2  # capabilities(7)


def give_up() -> None:
    """Both capabilities, out of all that an exec as root makes its own of: the bounding and the inheritable set."""
    libc = ctypes.CDLL(None, use_errno=True)

    def call(status: int) -> None:
        if status != 0:
            sys.exit(f"root cannot give up its power over files here: {os.strerror(ctypes.get_errno())}")

    header = (ctypes.c_uint32 * 2)(VERSION_3, 0)
    sets = (ctypes.c_uint32 * 6)()  # effective, permitted and inheritable, of capabilities 0 to 31, then of the others
    call(libc.capget(header, sets))
    for capability in (CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH):
        call(libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0))
        sets[2] &= ~(1 << capability)
    call(libc.capset(header, sets))


if __name__ == "__main__":
    if os.geteuid() == 0:
        give_up()
    os.execv(sys.argv[1], sys.argv[1:])
