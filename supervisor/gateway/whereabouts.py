"""Where the groups are, read off the keeper's own tree: what the client library asks its control socket for."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import trio

from supervisor import identity, kinds, ports
from supervisor.contract import Endpoint, State
from supervisor.errors import EngineStartError, FailedForGoodError, KindError
from supervisor.identity import Liveness
from supervisor.lifecycle import UP

if TYPE_CHECKING:
    from supervisor.gateway.upkeep import Keeper
    from supervisor.group import Group


class Whereabouts:
    """A transport.AsyncDirectory."""

    def __init__(self, keeper: Keeper) -> None:
        self._keeper = keeper
        self._given_up = ""
        self._end = trio.Event()

    def current(self, group: str) -> Endpoint | None:
        """See request_loop.Known."""
        found = self._group(group)
        if found is None or found.state not in UP or found.life is None:
            return None
        birth, launch = found.life.birth, found.spec.launches[0]
        return Endpoint(group, launch.role, launch.model, birth.url, birth.client_key, birth.generation)

    def vouches(self, port: int) -> bool:
        """See request_loop.Known: of a group's own port, and of its servers', which are asked to count tokens."""
        for group in self._keeper.tree.groups.values() if self._keeper.tree else ():
            life = group.life
            if life is None or group.spec.is_outside or port not in life.birth.ports.values():
                continue
            if port == life.port:
                return life.leader is None or identity.liveness(life.leader) is not Liveness.DEAD
            return ports.owned_by(port, life.each()).owner is not ports.Owner.FOREIGN
        return True

    def state(self, group: str) -> State | None:
        """See request_loop.Known."""
        found = self._group(group)
        return found.state if found else None

    def reason(self, group: str) -> str:
        """Why it is in that state, and how far what is fetched for it is."""
        found = self._group(group)
        return ": ".join(filter(None, (found.reason, found.fetch.how_far))) if found else ""

    def has_proxy(self, group: str) -> bool:
        """Whether its clients talk to a proxy that knows `/upstream/<role>/`, and not to the one server itself. What lives is
        asked by its ports: its kind may not be there any more."""
        found = self._group(group)
        if found is None:
            return False
        if found.life is not None:
            return next(iter(found.life.birth.ports)) == kinds.PROXY
        with suppress(KindError, OSError):
            return found.kind.port_names(found.spec)[0] == kinds.PROXY
        return False  # and why it does not come up is told to who waits for it

    def give_up(self, why: str) -> None:
        """Hold nobody any longer."""
        self._given_up = why
        self._end.set()

    async def wait_async(self, group: str, *, unlike: str | None, deadline: float) -> Endpoint:
        """See transport.AsyncDirectory. Trio's clock and `time.monotonic()` are not the same one, so the deadline is a
        span here."""
        import time

        with trio.move_on_after(max(0.0, deadline - time.monotonic())):
            while True:
                endpoint = self.current(group)
                if endpoint is not None and endpoint.generation != unlike:
                    return endpoint
                self._refuse(group)
                await self._changed()
        raise EngineStartError(self._late(group), "`queenright status` says what it is doing")

    def _group(self, name: str) -> Group | None:
        return self._keeper.tree.groups.get(name) if self._keeper.tree else None

    def _refuse(self, group: str) -> None:
        """Raises what will not change by being waited for."""
        if self._given_up:
            raise EngineStartError(self._given_up, "ask again")
        if self._keeper.stopping:
            raise EngineStartError(f"the engine is stopping: {self._keeper.stopping}", "start it, and ask again")
        if self._keeper.tree is None:
            return
        found = self._group(group)
        if found is None:
            raise EngineStartError(
                f"the engine has no group {group} any more", "`queenright status` shows those it has"
            )
        if found.state is State.FAILED:
            raise FailedForGoodError.of_group(group, found.reason)

    def _late(self, group: str) -> str:
        if self._keeper.tree and self._keeper.tree.held:
            return f"the engine is held: {self._keeper.tree.held}"
        reason = self.reason(group)
        return f"group {group} did not come up in time" + (f": {reason}" if reason else "")

    async def _changed(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._until_given_up, nursery.cancel_scope)
            await self._keeper.changed()
            nursery.cancel_scope.cancel()

    async def _until_given_up(self, scope: trio.CancelScope) -> None:
        await self._end.wait()
        scope.cancel()
