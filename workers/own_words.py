"""What a program says of itself: `--help`, `-version`. Quick commands, that start nothing.

The answers of a program are remembered (`pins.asked_once`); of a script none is, since what it runs may change and the
script stay. But each launch of each group has questions to its server's `--help`, and a script may start a container for an
answer: so what it printed is taken for all that is asked right after.
"""

from __future__ import annotations

import os
import subprocess
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from supervisor.errors import EngineBinaryError

if TYPE_CHECKING:
    from collections.abc import Sequence

LIMIT: Final = 10.0  # budget: `llama-server --help` takes 4 ms; a first start from a cold disk can take seconds
STILL: Final = 2.0
# budget: for which it is what the program prints: the groups of a configuration are looked at within less, one after the
# other; and who changed what a script runs has not started it again by then.

_printed: dict[tuple[str, ...], tuple[float, str]] = {}
"""By the words of a server, and when its file was changed: until when (monotonic, in seconds) it is that, and what it is."""


def help_of(server: Sequence[str]) -> str:
    """What a server of these words prints for `--help`, now or up to STILL seconds ago. Raises EngineBinaryError when it
    cannot be run."""
    words = tuple(server)
    with suppress(OSError):  # one that was changed meanwhile says something else
        words += (str(os.stat(server[0]).st_mtime_ns),)
    until, text = _printed.get(words, (0.0, ""))
    if time.monotonic() >= until:
        text = output([*server, "--help"])
        _printed[words] = (time.monotonic() + STILL, text)
    return text


def output(argv: Sequence[str]) -> str:
    """What a quick command prints. Raises EngineBinaryError when it cannot be run."""
    try:
        done = subprocess.run(argv, capture_output=True, timeout=LIMIT, stdin=subprocess.DEVNULL, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EngineBinaryError(f"{' '.join(argv)} does not run: {error}", "name another binary") from error
    return (done.stdout + done.stderr).decode("utf-8", "replace")
