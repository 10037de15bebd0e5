"""What only a server can do to itself: it lives, and serves nobody. Real ones cannot be told to; the fake of our tests can,
by real-time signals, and says so in its arguments.
"""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Final

from chaos.soak.faults.ground import Fault, Hit
from supervisor import identity

if TYPE_CHECKING:
    from chaos.soak.faults.ground import Ground
    from supervisor.identity import Identity

WEDGE: Final = signal.SIGRTMIN + 1
SWALLOW: Final = signal.SIGRTMIN + 2
IGNORE_TERM: Final = signal.SIGRTMIN + 3
OBEYS: Final = b"--fake-orders"


def obeys(server: Identity) -> bool:
    """Whether it takes orders. Another one would die of them."""
    try:
        arguments = identity.proc_file(server.pid, "cmdline").split(b"\0")
    except OSError:
        return False
    return any(word.partition(b"=")[0] == OBEYS for word in arguments)


class _Order(Fault):
    number: signal.Signals | int
    instead = ""

    def obstacle(self, ground: Ground) -> str:
        """A real engine."""
        if all(obeys(server) for servers in ground.before.servers.values() for server in servers):
            return ""
        return f"only a fake can be told to{self.instead}"

    def invoke(self, ground: Ground) -> Hit:
        """It is given to one process: who comes in its place is well."""
        group = ground.a_group()
        server = ground.a_server(group)
        ground.kill(server, self.number)
        return Hit((server,), frozenset([group]))


class Wedge(_Order):
    """As a scheduler that lost its GPU: `/health` is the only page that is answered."""

    name, what = "wedge", "a server that is healthy and answers no request, until it is replaced (fakes only)"
    number = WEDGE


class BlackHole(_Order):
    """Connections are taken, requests are read, nothing comes back, and no CPU time is used."""

    name, what = "black hole", "a server that takes requests and answers none, /health neither (fakes only)"
    number = SWALLOW
    instead = "; `stopped server` is the nearest"
