"""The generation lock's descriptor, which a group's processes pass down.

The warden hands its group an open, locked descriptor and names it in the environment. Every server gets the same open
file description, so the kernel keeps the lock until the last process of the generation is gone.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

VARIABLE = "QUEENRIGHT_GENERATION_FD"


def inherited_lock(environ: Mapping[str, str]) -> int | None:
    """The descriptor to pass on, or None. Call it before anything else is opened: a free number is soon reused."""
    text = environ.get(VARIABLE, "")
    if not text.isascii() or not text.isdecimal() or int(text) <= 2:
        return None
    fd = int(text)
    try:
        os.fstat(fd)
    except (OSError, OverflowError):
        return None
    os.set_inheritable(fd, False)  # only a server gets it, by name; nothing else we may start
    return fd
