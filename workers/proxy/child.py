"""One server process: started, drained, watched, ended.

It is started by `subprocess.Popen` on the main thread, never through trio's process support: that forks in a cached
worker thread, and the death signal a server's launcher asks for follows the *thread* that forked it (prctl(2)). The
server was then killed 10 s later with its parent alive.

It leads its own process group. When the leader ends, what is left of the group is killed before the leader is reaped:
until then the number of the group cannot belong to anybody else.
"""

from __future__ import annotations

import os
import signal
import subprocess
from typing import TYPE_CHECKING

import trio

from workers.proxy import limits

if TYPE_CHECKING:
    from collections.abc import Callable

    from workers.proxy.config import ModelSpec

# Reads after the end: a pipe holds 64 KiB by default and 1 MiB at most, and a stray writer must not keep us here.
_LAST_WORDS = 16


class Child:
    """A running server. `exited` is set when it is reaped and nothing of its process group is left.

    Raises:
        OSError: from the constructor, if it cannot be started.
    """

    def __init__(self, spec: ModelSpec, lock_fd: int | None, on_output: Callable[[bytes], None]) -> None:
        self.exited = trio.Event()
        self.status: int | None = None
        self._on_output = on_output
        read, write = os.pipe()  # close-on-exec both (PEP 446); Popen duplicates the writing end onto 1 and 2
        try:
            self._process = subprocess.Popen(
                spec.argv,
                stdin=subprocess.DEVNULL,
                stdout=write,
                stderr=subprocess.STDOUT,
                env={**os.environ, **dict(spec.env)},
                process_group=0,
                pass_fds=() if lock_fd is None else (lock_fd,),
            )
        except BaseException:
            os.close(read)
            raise
        finally:
            os.close(write)
        self.pid = self._process.pid
        self._output = read
        os.set_blocking(read, False)
        self._pidfd = os.pidfd_open(self.pid)

    async def watch(self) -> None:
        """Drain its output until it ends, then remove what is left of it. Run as a task, once; cancelling it kills."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._drain)
                await trio.lowlevel.wait_readable(self._pidfd)
                # A grandchild may hold the pipe open for ever: take what is there, do not wait for its end.
                nursery.cancel_scope.cancel()
        finally:
            self.signal(signal.SIGKILL)
            with trio.CancelScope(shield=True, deadline=trio.current_time() + limits.KILL_BUDGET):
                await trio.lowlevel.wait_readable(self._pidfd)
            self._finish()

    async def _drain(self) -> None:
        while True:
            await trio.lowlevel.wait_readable(self._output)
            if not self._read():
                return

    def _read(self) -> bool:
        """Take one piece of output; False if there is none now or never again."""
        try:
            data = os.read(self._output, limits.READ_BYTES)
        except BlockingIOError:
            return False
        if data:
            self._on_output(data)
        return bool(data)

    def _finish(self) -> None:
        for _ in range(_LAST_WORDS):
            if not self._read():
                break
        self.status = self._process.poll()  # reaps; None only if SIGKILL could not end it (uninterruptible sleep)
        for fd in (self._output, self._pidfd):
            trio.lowlevel.notify_closing(fd)
            os.close(fd)
        self.exited.set()

    def signal(self, number: int) -> None:
        """Signal its process group. Does nothing once it is reaped."""
        if self._process.returncode is None:
            try:
                os.killpg(self.pid, number)
            except ProcessLookupError:
                return
