"""Log lines: a bounded history per source, live subscribers, and the proxy's own standard output.

Nothing here ever blocks. llama-swap hangs for good when its standard output is a pipe nobody drains; here a line that
does not fit is dropped and counted, and the count is written once there is room again.
"""

from __future__ import annotations

import os
import select
import stat
from collections import deque
from typing import TYPE_CHECKING

import trio

from workers.proxy import limits

if TYPE_CHECKING:
    from collections.abc import Callable

_LEVELS = ("debug", "info", "warn", "error")
_ATOMIC = select.PIPE_BUF  # POLLOUT on a pipe promises room for this much (pipe(7))


class Source:
    """The last 100 KiB that one source wrote, and those who listen to it."""

    def __init__(self) -> None:
        self._chunks: deque[bytes] = deque()
        self._size = 0
        self._listeners: set[Callable[[bytes], None]] = set()

    def write(self, data: bytes) -> None:
        """Keep `data` and hand it to the listeners."""
        self._chunks.append(data)
        self._size += len(data)
        while self._size > limits.LOG_HISTORY_BYTES and len(self._chunks) > 1:
            self._size -= len(self._chunks.popleft())
        for listener in tuple(self._listeners):
            listener(data)

    def history(self) -> bytes:
        """What was written last, at most 100 KiB of it."""
        return b"".join(self._chunks)[-limits.LOG_HISTORY_BYTES :]

    def listen(self, listener: Callable[[bytes], None]) -> Callable[[], None]:
        """Call `listener` with everything written from now on, until the returned function is called."""
        self._listeners.add(listener)
        return lambda: self._listeners.discard(listener)

    def follow(self) -> tuple[trio.MemoryReceiveChannel[bytes], Callable[[], None]]:
        """A channel of everything written from now on, and how to stop. A reader that falls behind loses chunks."""
        send, receive = trio.open_memory_channel[bytes](limits.SUBSCRIBER_BACKLOG)

        def forward(data: bytes) -> None:
            try:
                send.send_nowait(data)
            except (trio.WouldBlock, trio.BrokenResourceError):
                return

        return receive, self.listen(forward)


class Stdout:
    """Standard output that drops rather than waits."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self.dropped = 0
        self._poll: select.poll | None = None
        try:
            regular = stat.S_ISREG(os.fstat(fd).st_mode)
        except OSError:
            self._fd = -1
            return
        if not regular:  # a file never blocks; everything else may
            self._poll = select.poll()
            self._poll.register(fd, select.POLLOUT)

    def write(self, data: bytes) -> None:
        """Write `data`, or count it as dropped."""
        if self._fd < 0:
            return
        if self.dropped:
            note = b"[WARN] %d log writes dropped: standard output is not read\n" % self.dropped
            if not self._fits(note):
                self.dropped += 1
                return
            self.dropped = 0
            self._put(note)
        for start in range(0, len(data), _ATOMIC):
            piece = data[start : start + _ATOMIC]
            if not self._fits(piece):
                self.dropped += 1
                return
            self._put(piece)

    def _fits(self, data: bytes) -> bool:
        return self._poll is None or any(event & select.POLLOUT for _, event in self._poll.poll(0))

    def _put(self, data: bytes) -> None:
        try:
            os.write(self._fd, data)
        except OSError:  # the reader is gone (EPIPE) or the disk is full: serving goes on
            self.dropped += 1


class LogBook:
    """All sources: the proxy's own lines, the servers' output (per model and together), and everything combined."""

    def __init__(self, level: str, to_stdout: str, stdout: Stdout, models: tuple[str, ...]) -> None:
        self.proxy = Source()
        self.upstream = Source()
        self.combined = Source()
        self.model = {name: Source() for name in models}
        self._least = _LEVELS.index(level)
        self._proxy_to_stdout = to_stdout in {"proxy", "both"}
        self._upstream_to_stdout = to_stdout in {"upstream", "both"}
        self._stdout = stdout

    def line(self, level: str, text: str) -> None:
        """One line of the proxy's own."""
        if _LEVELS.index(level) < self._least:
            return
        data = f"[{level.upper()}] {text}\n".encode("utf-8", "backslashreplace")
        self.proxy.write(data)
        self.combined.write(data)
        if self._proxy_to_stdout:
            self._stdout.write(data)

    def output(self, model: str, data: bytes) -> None:
        """What a server wrote."""
        self.model[model].write(data)
        self.upstream.write(data)
        self.combined.write(data)
        if self._upstream_to_stdout:
            self._stdout.write(data)
