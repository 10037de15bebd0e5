"""Noticing the death of the process that started us, for children that must not outlive it (MCP servers).

By a pidfd of the parent: exact, at once, and no clock is asked. It also works under a subreaper, where an orphan's
parent becomes some other pid than 1. Not by PR_SET_PDEATHSIG, which fires when the *thread* that started us ends
(prctl(2); UniRL#276); nor by the end of standard input, which any third process can hold open (mcp-markdown-vault#45).

What is watched is our direct parent: a wrapper that waits for us (`uv run`) counts, not whoever started the wrapper.
"""

from __future__ import annotations

import os
import select
import threading
from typing import TYPE_CHECKING

from supervisor import budgets, identity
from supervisor.errors import QueenrightError

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from supervisor.identity import Identity


def watch_parent(
    on_death: Callable[[], object],
    *,
    expected: Identity | None = None,
    grace_s: float | None = budgets.PARENT_GRACE,
) -> ParentWatch:
    """Call `on_death` once, in a thread of its own, when our parent dies; at once if it is dead already.

    `expected` says who the parent has to be. Without it the parent of now is watched, and whether that is who started
    us or who took us in after that one's death cannot be told. So call this first, before what takes long to import, or
    give it what `identity.of(os.getppid())` said then; to be quite sure, the parent hands its `identity.own()` down. With `grace_s`, a process that still lives that long after `on_death` was called, and has
    not closed the watch, is ended by `os._exit(1)`: the kernel drops its locks.

    Raises QueenrightError on systems that cannot say it.
    """
    descriptor = _open_parent(expected)
    watch = ParentWatch(descriptor)
    watch.begin(on_death, grace_s)
    return watch


async def wait_parent(*, expected: Identity | None = None) -> None:
    """Return when our parent is dead: the form for a trio task. `expected`, and what is raised, as in `watch_parent`."""
    import trio

    descriptor = _open_parent(expected)
    if descriptor is None:
        await trio.lowlevel.checkpoint()
        return
    try:
        if descriptor < 0:
            await trio.sleep_forever()
        await trio.lowlevel.wait_readable(descriptor)
    finally:
        if descriptor >= 0:
            os.close(descriptor)


def _open_parent(expected: Identity | None) -> int | None:
    """A pidfd of our parent; None when it is dead, -1 when there is none to watch: it is outside of our pid namespace
    (a container's first process)."""
    if not hasattr(os, "pidfd_open"):
        raise QueenrightError(
            "the death of a parent cannot be noticed on this system: it has no pidfd_open(2)",
            "end with the end of standard input there",
        )
    parent = os.getppid()
    if expected is not None:
        if parent != expected.pid:
            return None
        try:
            return _still(identity.open_pidfd(expected), parent)
        except ProcessLookupError:
            return None
    if parent == 0:
        return -1
    try:
        return _still(os.pidfd_open(parent), parent)
    except ProcessLookupError:
        return None


def _still(descriptor: int, parent: int) -> int | None:
    """Looked at after the opening: while it is our parent its pid is nobody else's, so the descriptor is of it."""
    if os.getppid() == parent:
        return descriptor
    os.close(descriptor)
    return None


class ParentWatch:
    """A watch that runs. Close it, or use it in a `with`, when the parent's death no longer matters."""

    def __init__(self, descriptor: int | None) -> None:
        self._descriptor = descriptor
        self._closed = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._thread: threading.Thread | None = None

    def begin(self, on_death: Callable[[], object], grace_s: float | None) -> None:
        """Start the thread."""
        self._thread = threading.Thread(target=self._run, args=(on_death, grace_s), daemon=True, name="parent-watch")
        self._thread.start()

    def close(self) -> None:
        """End the watch, and with it a hard exit that is due. Once is enough."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        os.eventfd_write(self._closed, 1)
        if thread is not threading.current_thread():
            thread.join(budgets.WATCH_END)  # it only polls, unless `on_death` is under way in it
        if not thread.is_alive():
            os.close(self._closed)

    def __enter__(self) -> ParentWatch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run(self, on_death: Callable[[], object], grace_s: float | None) -> None:
        try:
            if self._descriptor is not None and not self._died(self._descriptor):
                return
        finally:
            if self._descriptor is not None and self._descriptor >= 0:
                os.close(self._descriptor)
        if grace_s is None:
            on_death()
            return
        # In another thread: what hangs, or raises, must not keep an orphan alive.
        threading.Thread(target=on_death, daemon=True, name="parent-died").start()
        if not _poll([self._closed], grace_s):
            os._exit(1)

    def _died(self, descriptor: int) -> bool:
        watched = [self._closed] if descriptor < 0 else [self._closed, descriptor]
        return self._closed not in _poll(watched, None)


def _poll(descriptors: list[int], limit_s: float | None) -> set[int]:
    poller = select.poll()
    for descriptor in descriptors:
        poller.register(descriptor, select.POLLIN)
    return {descriptor for descriptor, _ in poller.poll(None if limit_s is None else limit_s * 1000)}
