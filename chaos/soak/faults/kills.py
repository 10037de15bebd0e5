"""Death without a word: SIGKILL of one, of several in one instant; and SIGTERM to everything, as at a shutdown."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from chaos.soak.faults.ground import Fault, Hit

if TYPE_CHECKING:
    from chaos.soak.faults.ground import Ground
    from supervisor.identity import Identity


class _Kill(Fault):
    number = signal.SIGKILL

    def choose(self, ground: Ground) -> tuple[tuple[Identity, ...], frozenset[str]]:
        """Whom, and what has to do with it."""
        raise NotImplementedError

    def invoke(self, ground: Ground) -> Hit:
        """All at once."""
        victims, touched = self.choose(ground)
        for victim in victims:
            ground.kill(victim, self.number)
        return Hit(victims, touched)


class Server(_Kill):
    """Its proxy lives, and loads it again."""

    name, what = "server", "kill -9 of a server"

    def choose(self, ground: Ground) -> tuple[tuple[Identity, ...], frozenset[str]]:
        """One of a group's."""
        group = ground.a_group()
        return (ground.a_server(group),), frozenset([group])


class Proxy(_Kill):
    """Its servers go with it."""

    name, what = "proxy", "kill -9 of a proxy"

    def choose(self, ground: Ground) -> tuple[tuple[Identity, ...], frozenset[str]]:
        """A group's leader."""
        group = ground.a_leader()
        return (ground.before.leaders[group],), frozenset([group])


class Keeper(_Kill):
    """The engine serves on."""

    name, what = "keeper", "kill -9 of the keeper"

    def choose(self, ground: Ground) -> tuple[tuple[Identity, ...], frozenset[str]]:
        """There is one."""
        return (ground.keeper,), frozenset(["keeper"])


class GroupAndKeeper(_Kill):
    """Whoever would see to the group's death dies with it."""

    name, what = "group and keeper", "kill -9 of a whole group and the keeper in one instant"

    def choose(self, ground: Ground) -> tuple[tuple[Identity, ...], frozenset[str]]:
        """The keeper first."""
        group = ground.a_leader()
        return (ground.keeper, *ground.before.group(group)), frozenset([group, "keeper"])


class Several(_Kill):
    """Any two or more of them, whoever they are."""

    name, what = "several", "kill -9 of two or more of keeper, proxies and servers, drawn by chance, in one instant"

    def choose(self, ground: Ground) -> tuple[tuple[Identity, ...], frozenset[str]]:
        """Everybody but the warden may be among them."""
        seen = ground.before
        owner = {ground.keeper: "keeper"} | {who: name for name in seen.leaders for who in seen.group(name)}
        everybody = sorted(owner, key=lambda one: one.pid)
        victims = tuple(ground.chance.sample(everybody, ground.chance.randint(2, len(everybody))))
        return victims, frozenset(owner[who] for who in victims)


class Warden(_Kill):
    """The kernel takes all the rest."""

    name, what = "warden", "kill -9 of the warden: the engine ends, and its members build another"

    def choose(self, ground: Ground) -> tuple[tuple[Identity, ...], frozenset[str]]:
        """Nobody is untouched."""
        return (ground.warden,), ground.all_touched


class TermToAll(_Kill):
    """As a shutdown of the machine, or `killall llama-server`, does it."""

    name, what = "term to all", "SIGTERM to every proxy and server at once"
    number = signal.SIGTERM

    def choose(self, ground: Ground) -> tuple[tuple[Identity, ...], frozenset[str]]:
        """All of those groups: what is alone may well ignore it, and is not asked to end."""
        groups = frozenset(name for name in ground.before.leaders if ground.before.servers.get(name))
        victims = {one for name in groups for one in ground.before.group(name)}
        return tuple(sorted(victims, key=lambda one: one.pid)), groups
