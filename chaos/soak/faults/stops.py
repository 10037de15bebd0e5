"""Standing still: SIGSTOP of one that is to be replaced for it, and of one that goes on before anybody may mind."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Final

from chaos.soak.faults.ground import Fault, Hit, pause
from supervisor import budgets

if TYPE_CHECKING:
    from chaos.soak.faults.ground import Ground
    from supervisor.identity import Identity

BLIP: Final = (
    0.5  # budget: shorter than the pause between two looks (PROBE_INTERVAL), of which two must find it stopped
)


def _stop(ground: Ground, who: Identity) -> None:
    ground.undo.callback(ground.kill, who, signal.SIGCONT)
    ground.kill(who, signal.SIGSTOP)


class StoppedProxy(Fault):
    """Connections to it are taken by the kernel, and nothing answers."""

    name, what = "stopped proxy", "SIGSTOP of a proxy, until it is replaced"

    def invoke(self, ground: Ground) -> Hit:
        """It is found out by its state."""
        group = ground.a_leader()
        _stop(ground, ground.before.leaders[group])
        return Hit((ground.before.leaders[group],), frozenset([group]))


class StoppedServer(Fault):
    """The proxy in front of it is well, and waits with everybody else."""

    name, what = "stopped server", "SIGSTOP of a server, until it is replaced"

    def invoke(self, ground: Ground) -> Hit:
        """As of a proxy."""
        group = ground.a_group()
        server = ground.a_server(group)
        _stop(ground, server)
        return Hit((server,), frozenset([group]))


class StoppedKeeper(Fault):
    """It holds its lock, and watches nobody: lilbee's reaper in that state was never missed (W6)."""

    name, what = "stopped keeper", "SIGSTOP of the keeper, until the warden replaces it"

    def invoke(self, ground: Ground) -> Hit:
        """The warden misses its beat."""
        _stop(ground, ground.keeper)
        return Hit((ground.keeper,), frozenset(["keeper"]))


class Blip(Fault):
    """A debugger, a snapshot of a machine, a laptop's lid: nobody is replaced for it."""

    name, what = "blip", "SIGSTOP of any process for half a second, then SIGCONT: nobody is replaced"

    def invoke(self, ground: Ground) -> Hit:
        """Where this machine is so late that it was longer, its group or keeper may have been replaced."""
        seen = ground.before
        owner = {ground.keeper: "keeper", ground.warden: "warden"}
        owner |= {who: name for name in seen.leaders for who in seen.group(name)}
        victim = ground.chance.choice(sorted(owner, key=lambda one: one.pid))
        _stop(ground, victim)
        lasted = pause(BLIP)
        ground.kill(victim, signal.SIGCONT)
        late = lasted > 0.9 * budgets.PROBE_INTERVAL
        return Hit((victim,), frozenset([owner[victim]]) if late else frozenset(), must_end=False)
