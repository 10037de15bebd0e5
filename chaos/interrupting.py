"""Being ended from outside, so that everything is cleared up: which signals count, and when they do not."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

NOTICED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
WORD = b"\nqueenright: interrupted; what it started is ended first\n"


def _interrupt(_: int, __: FrameType | None) -> None:
    with suppress(OSError):  # the terminal may be what went away
        os.write(2, WORD)  # a print might be what was interrupted
    raise KeyboardInterrupt


@contextmanager
def interruptible() -> Iterator[None]:
    """SIGTERM and a closed terminal end it as Ctrl-C does: through every `finally`, which takes seconds and is said."""
    with _handlers(_interrupt):
        yield


@contextmanager
def undisturbed() -> Iterator[None]:
    """For the clearing up, which is bounded: a second Ctrl-C does not cut it short."""
    with _handlers(signal.SIG_IGN):
        yield


@contextmanager
def _handlers(handler: Callable[[int, FrameType | None], None] | signal.Handlers) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield  # signals are the main thread's business (signal(2) in Python)
        return
    before = {number: signal.signal(number, handler) for number in NOTICED}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)
