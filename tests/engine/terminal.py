"""A terminal for `queenright run`."""

from __future__ import annotations

import fcntl
import os
import select
import subprocess
import termios
from typing import TYPE_CHECKING

from tests.engine.fronts import PATIENCE
from tests.support import wait_until

if TYPE_CHECKING:
    from tests.engine.place import Place


class Running:
    """A command in the foreground of a pseudo-terminal, as in a user's tmux."""

    def __init__(self, place: Place, argv: list[str]) -> None:
        self._master, slave = os.openpty()
        self.process = subprocess.Popen(
            argv,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            cwd=place.home,
            env=place.environment,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(slave)
        self._said = b""
        self.is_open = True

    @property
    def pid(self) -> int:
        """Its pid, which becomes the warden's."""
        return self.process.pid

    def said(self) -> str:
        """All that stood on the terminal so far."""
        while self.is_open and select.select([self._master], [], [], 0)[0]:
            try:
                self._said += os.read(self._master, 65536)
            except OSError:  # EIO: nobody has the other end open any more
                break
        return self._said.decode("utf-8", "replace")

    def wait_said(self, text: str, *, within: float = PATIENCE) -> None:
        """Until a text stands there."""
        wait_until(lambda: text in self.said(), within=within, what=f"{text!r} in {self.said()!r}")

    def type(self, keys: bytes) -> None:
        """As from the keyboard: the terminal makes a SIGINT of Ctrl-C."""
        os.write(self._master, keys)

    def close_terminal(self) -> None:
        """Hang up: the kernel sends SIGHUP."""
        if self.is_open:
            self.said()
            self.is_open = False
            os.close(self._master)

    def wait(self, *, within: float = 20.0) -> int:
        """Its exit status. The terminal is read meanwhile, so that nobody blocks on it."""
        wait_until(lambda: (self.said(), self.process.poll())[1] is not None, within=within, what="run has ended")
        return int(self.process.returncode)

    def end(self) -> None:
        """Stop it in order, if it still runs."""
        if self.process.poll() is None:
            self.process.terminate()
            self.wait()
        self.close_terminal()
