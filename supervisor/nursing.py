"""Bringing one generation up, and watching over it while it lives. What comes of it is told, and decided elsewhere."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import trio

from supervisor import budgets, listeners, restart, undoing
from supervisor.channels import at_hand
from supervisor.containment import MAY, words
from supervisor.errors import ProxyLostError
from supervisor.kinds import ServerState
from supervisor.lifecycle import Event
from supervisor.load_progress import LoadWatch
from supervisor.probing import Prober
from supervisor.procs import Exited, Gone

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from supervisor.contract import GroupSpec
    from supervisor.kinds import Kind
    from supervisor.life import Life
    from supervisor.procs import Procs


class Nurse:
    """Of one life. `is_up`: whether the group is past its start. `tell` gets what happens to the generation, with a
    reason; `changed` is called after what changes nothing but the description."""

    def __init__(
        self,
        spec: GroupSpec,
        kind: Kind,
        life: Life,
        *,
        is_up: Callable[[], bool],
        tell: Callable[[Event, str], None],
        changed: Callable[[], None],
    ) -> None:
        self.life, self._kind, self._tell, self._changed = life, kind, tell, changed
        self._is_outside = spec.is_outside
        self.loads = LoadWatch(spec, life, changed)
        self.unwatched = ""
        """Why its kind's watch over it had to be begun again, the last time; "" while it never had to be."""
        self.prober = Prober(
            spec,
            kind,
            life,
            is_up=is_up,
            tell=lambda reason: tell(Event.UNHEALTHY, reason),
            changed=changed,
        )

    async def listen(self, procs: Procs) -> None:
        """To what the warden says of it, until it is gone."""
        news = procs.follow(self.life.birth.generation)
        async for item in news:
            for each in (item, *at_hand(news)):
                match each:
                    case Exited(ended):
                        self.life.ended = ended
                        self.life.exited.set()
                        self._tell(Event.EXITED, "")
                    case Gone(killed):
                        self.life.swept = killed
                        await self.be_gone()
                        return
                    case unkillable:
                        pids = " ".join(map(str, unkillable.pids)) or "none seen, but its lock is held"
                        self._tell(Event.UNKILLABLE, f"cannot be killed: pids {pids}")

    async def be_gone(self) -> None:
        """Its processes are gone. The generation is once nothing that they started outside is left either."""
        await undoing.finish(self.life.undo, lambda trouble: self._tell(Event.UNKILLABLE, trouble))
        self._tell(Event.GONE, "")

    async def bring_up(self, spec: GroupSpec) -> None:
        """Have it come up, and watch it from its birth on: a process that was stopped while it loads is noticed, too."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.prober.run)
            nursery.start_soon(self._come_up, spec)
            nursery.start_soon(self.life.keep_start)
            nursery.start_soon(self.loads.run)

    async def _come_up(self, spec: GroupSpec) -> None:
        """Load its servers, say that the group can serve, and then watch it. One that was ready under an earlier keeper
        is proven, not loaded: a server that its idle time unloaded stays unloaded, and one that died meanwhile is the
        watch's to report."""
        roles = [] if self.life.was_ready else [launch.role for launch in spec.launches]
        if await self.load(spec, roles):
            await self._watch(spec)

    async def _watch(self, spec: GroupSpec) -> None:
        """Begun again where it fails: what is wrong with a watch is no reason to end what serves."""
        failures = 0
        while True:
            began = trio.current_time()
            try:
                await self._kind.watch(spec, self.life.birth, self._report, self.prober.note_activity)
                return
            except MAY as error:
                self.unwatched = words(error)
            failures = 1 if trio.current_time() - began >= budgets.RESTART_RESET else failures + 1
            self.prober.forget_activity()
            self._changed()
            # Never at once: one that fails at once would be all that the keeper does.
            await trio.sleep(restart.pause(failures + 1, random.random()))  # noqa: S311 - no secret: it spreads tries

    async def load(self, spec: GroupSpec, roles: Iterable[str]) -> bool:
        """Whether the group became ready; it is told either way."""
        stage, delays, roles = "its proxy does not listen yet", iter(budgets.RESTART_DELAYS), list(roles)
        try:
            with trio.fail_after(spec.start_limit_s):
                if not spec.is_outside:
                    await listeners.prove_proxy(self.life)
                stage = "its servers are loading"
                while True:
                    await self._kind.load(spec, self.life.birth, roles, self._report)
                    if not spec.is_outside:
                        listeners.refuse_impostors(self.life)
                    if not (roles := self.life.lost_roles()):  # one died while another was being loaded
                        break
                    await trio.sleep(next(delays, budgets.RESTART_DELAYS[-1]))
        except trio.TooSlowError:
            limit = f"{spec.start_limit_s:g} s (start_limit_s of group {spec.name})"
            self._tell(Event.NOT_READY, f"not ready within {limit}: {stage}")
            return False
        except MAY as error:
            if isinstance(error, ProxyLostError):  # its end is on its way, and says more: with it this attempt is over
                with trio.move_on_after(budgets.BROKEN_OFF):
                    await self.life.exited.wait()
            self._tell(Event.NOT_READY, words(error))
            return False
        self._tell(Event.READY, "")
        return True

    def _report(self, role: str, state: ServerState) -> None:
        if state is ServerState.READY and not self._is_outside and listeners.is_impostor(self.life, role):
            state = ServerState.LOST  # somebody answers in its place; loading it again tells
        was, self.life.servers[role] = self.life.servers.get(role), state
        if state is ServerState.LOST and was is not ServerState.LOST:
            self._tell(Event.SERVER_LOST, f"the {role} server died")
        self._changed()
