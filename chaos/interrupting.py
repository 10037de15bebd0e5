"""Being ended from outside, so that everything is cleared up: which signals count, and when they do not."""

from __future__ import annotations

import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

NOTICED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def _interrupt(_: int, __: FrameType | None) -> None:
    raise KeyboardInterrupt


@contextmanager
def interruptible() -> Iterator[None]:
    """SIGTERM and a closed terminal end it as Ctrl-C does: through every `finally`."""
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
