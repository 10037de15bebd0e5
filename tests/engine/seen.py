"""An engine seen from outside: who is who, and how they end."""

from __future__ import annotations

import os
import select
import signal
import socket
import threading
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from supervisor import identity
from tests.support import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from supervisor.identity import Identity


@dataclass(frozen=True, slots=True)
class Family:
    """Who is who in a running engine, each as (pid, start ticks)."""

    warden: Identity
    keeper: Identity
    proxies: Mapping[str, Identity]
    servers: Mapping[str, Identity]

    @property
    def engine(self) -> dict[str, Identity]:
        """Proxies and servers: what must not change when keepers come and go."""
        return {f"proxy {name}": who for name, who in self.proxies.items()} | dict(self.servers)

    @property
    def everybody(self) -> list[Identity]:
        """All of them."""
        return [self.warden, self.keeper, *self.engine.values()]


class Deaths:
    """Pidfds of processes, opened while they live: their end is then known without asking anybody."""

    def __init__(self, who: Iterable[Identity]) -> None:
        self._open = {one: identity.open_pidfd(one) for one in who}

    def __enter__(self) -> Deaths:
        return self

    def __exit__(self, *_: object) -> None:
        for descriptor in self._open.values():
            os.close(descriptor)

    def alive(self) -> list[Identity]:
        """Those that have not ended. A pidfd is readable from the end of its process on (pidfd_open(2))."""
        ready, _, _ = select.select(list(self._open.values()), [], [], 0)
        return [one for one, descriptor in self._open.items() if descriptor not in ready]

    def wait(self, *, within: float = 15.0) -> None:
        """Until all have ended."""
        wait_until(lambda: not self.alive(), within=within, what=f"all of {self.alive()} have ended")


def kill(who: Identity, number: int = signal.SIGKILL) -> None:
    """Signal exactly that process, which must be there."""
    assert identity.signal_exact(who, number), f"{who} is gone"


def stays(condition: Callable[[], bool], *, during: float) -> bool:
    """Whether a condition holds all the time."""
    deadline = time.monotonic() + during
    while time.monotonic() < deadline:
        if not condition():
            return False
        time.sleep(0.02)
    return True


@contextmanager
def foreign_listener(port: int, *, closes: bool) -> Iterator[list[bytes]]:
    """Somebody else on a port. It closes what it accepts, having read some of it into the list; or it never speaks."""
    heard: list[bytes] = []
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))
        listener.listen(8)

        def serve() -> None:
            with suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    with connection:
                        heard.append(connection.recv(65536))

        thread = threading.Thread(target=serve if closes else lambda: None)
        thread.start()
        try:
            yield heard
        finally:
            with suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)  # wakes the accept
            thread.join()
