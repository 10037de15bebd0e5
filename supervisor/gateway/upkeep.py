"""The gateway as its keeper sees it: started after the engine's own processes, and never to the engine's harm.

What keeps it from serving is its `reason`, in every snapshot; the engine goes on without it.
"""

from __future__ import annotations

import socket
from enum import StrEnum
from math import inf
from typing import TYPE_CHECKING, Any, Protocol

import trio

from supervisor import budgets, logfiles
from supervisor.contract import EngineSpec, GatewaySpec
from supervisor.errors import QueenrightError
from supervisor.gateway import keys, listening
from supervisor.gateway.tally import Tally

if TYPE_CHECKING:
    from supervisor.gateway.access import Rules
    from supervisor.gateway.server import Server
    from supervisor.procs import Procs
    from supervisor.recoveries import Recoveries
    from supervisor.slot import Slot
    from supervisor.tree import Tree

NOTE = "gateway"
"""The slot's note: the port that a keeper chose, and for which address: the next one takes the same."""


class GatewayState(StrEnum):
    """What the gateway is doing."""

    OFF = "off"
    STARTING = "starting"
    SERVING = "serving"
    FAILED = "failed"
    CLOSING = "closing"


class Keeper(Protocol):
    """What the gateway needs of its keeper. Everything is read where it is: there is no second account of the engine."""

    slot: Slot
    procs: Procs
    spec: EngineSpec | None
    tree: Tree | None
    stopping: str
    recoveries: Recoveries
    gateway: Gateway

    def snapshot(self) -> dict[str, Any]: ...

    def write_record(self) -> None: ...

    async def changed(self) -> None: ...

    def tell(self, name: str | None = None) -> None: ...


class Gateway:
    """`run` it once; `close` ends what it serves, for good."""

    def __init__(self, keeper: Keeper, given: socket.socket | None) -> None:
        self._keeper, self._given = keeper, given
        self.state, self.reason, self.url = GatewayState.STARTING, "", ""
        self.tally = Tally()
        self._address, self._keys = "", tuple[bytes, ...]()
        self._server: Server | None = None
        self._is_closing = False

    def rules(self) -> Rules:
        """Who may come in, as the configuration has it now."""
        from supervisor.gateway import access  # once there is a gateway

        return access.rules_of(self._spec, self._address, self._keys)

    def describe(self) -> dict[str, Any]:
        """For snapshots."""
        return {"url": self.url or None, "state": self.state.value, "reason": self.reason}

    def queue(self, group: str) -> dict[str, Any]:
        """Who runs and waits at a group's servers, by role. For snapshots."""
        return self._server.admission.describe(group) if self._server is not None else {}

    async def run(self) -> None:
        """Serve as the contract says, also after it changed. Ends only by cancellation."""
        if not self._spec.enabled:
            self._be(GatewayState.OFF, "")
        await self._engine_is_under_way()
        tried: GatewaySpec | None = None
        while True:
            spec = self._spec
            if spec.enabled and not self._is_closing:
                if tried is None or _served(tried) != _served(spec):  # a further try is no news until it ends otherwise
                    self._be(GatewayState.STARTING, "")
                try:
                    await self._serve(spec)
                except QueenrightError as error:
                    self._fail(str(error).replace("\n ", ":"))
                except Exception as error:  # noqa: BLE001 - whatever is wrong with it must not fell the engine
                    self._fail(f"{type(error).__name__}: {error}")
            else:
                self._be(GatewayState.OFF, "")
                self._let_go()
            tried = spec if self.state is GatewayState.FAILED else None
            async with trio.open_nursery() as nursery:
                if self._given is not None and not self._is_closing:
                    nursery.start_soon(self._turn_away, self._given)
                with trio.move_on_after(budgets.GATEWAY_RETRY if tried else inf):
                    while _served(self._spec) == _served(spec):
                        await self._keeper.changed()
                nursery.cancel_scope.cancel()

    async def close(self, limit_s: float) -> None:
        """Take no connection any more; those there are have `limit_s` seconds to get their answers."""
        self._is_closing = True
        if self._server is not None:
            self._be(GatewayState.CLOSING, "")
            await self._server.close(limit_s)

    @property
    def _spec(self) -> GatewaySpec:
        return self._keeper.spec.gateway if self._keeper.spec else GatewaySpec()

    async def _serve(self, spec: GatewaySpec) -> None:
        """Until it is closed, or is to be elsewhere."""
        # Half a second of imports; in a thread they leave the keeper its say meanwhile.
        make = await trio.to_thread.run_sync(_import_server)
        # Before anybody can connect: the warden keeps what listens, and who connects to it would wait for nobody.
        self._keys = await trio.to_thread.run_sync(keys.read, spec.key_file) if spec.key_file else ()
        found = self._listener(spec)
        self._address, port = found.getsockname()[:2]
        try:
            self.rules()
        except QueenrightError:
            found.close()
            raise
        moved = ""
        if spec.port and port != spec.port:
            moved = f"port {spec.port} was taken by another program, so it is on {port}"
        async with trio.open_nursery() as nursery:
            self._server = make(self._keeper, found)
            url = listening.url_of(found)
            await nursery.start(self._server.run)
            self._be(GatewayState.SERVING, moved, url)
            await trio.to_thread.run_sync(self._keeper.write_record)
            while _served(self._spec) == _served(spec):
                await self._keeper.changed()
            self._be(GatewayState.STARTING, "")  # elsewhere; or off in a moment
            await self._server.close(budgets.GATEWAY_MOVE)
            nursery.cancel_scope.cancel()
        self._server = None

    def _listener(self, spec: GatewaySpec) -> socket.socket:
        """The one that the warden holds where it is for this address, else a new one, which the warden gets to hold. What
        no note tells of is a service manager's, whose unit says where it listens."""
        note = self._keeper.procs.notes.get(NOTE)
        if self._given is not None and note and note["for"] != list(_address(spec)):
            self._given.shutdown(socket.SHUT_RDWR)  # it ends here and at the warden's: refused, not waiting for nobody
            self._given = None
        found = listening.listener(spec, self._given, note["port"] if note else 0)
        if self._given is None:
            self._given = found.dup()
            self._keeper.procs.keep(found)
            self._keeper.procs.note_slot(NOTE, {"port": found.getsockname()[1], "for": list(_address(spec))})
        return found

    def _let_go(self) -> None:
        """Switched off: whoever connects is refused, and does not wait for nobody. A service manager's listener is its own."""
        if self._given is not None and not self._is_closing and self._keeper.procs.notes.get(NOTE):
            self._given.shutdown(socket.SHUT_RDWR)
            self._given = None

    async def _turn_away(self, listener: socket.socket) -> None:
        """Nothing is served on a listener that stays open: who connects to it is told so, and does not wait for nobody.
        Why it is, which may have a path in it, is not a stranger's business."""
        await trio.to_thread.run_sync(_import_server)
        from supervisor.gateway import saying
        from supervisor.gateway.server import turn_away

        what = "the gateway serves nothing here; `queenright status` on its machine says why"
        try:
            await turn_away(listener, "403 Forbidden", saying.error(what, "permission_error", "gateway_off"))
        except OSError as error:  # of no harm to the engine, like all that the gateway does
            logfiles.complain(f"gateway: {error}")

    def _fail(self, reason: str) -> None:
        if (self.state, self.reason) != (GatewayState.FAILED, reason):
            logfiles.complain(f"gateway: {reason}")
        self._be(GatewayState.FAILED, reason)

    def _be(self, state: GatewayState, reason: str, url: str = "") -> None:
        if (state, reason) != (self.state, self.reason):
            self.state, self.reason = state, reason
            self.url = url if state is GatewayState.SERVING else self.url if state is GatewayState.CLOSING else ""
            self._keeper.tell()

    async def _engine_is_under_way(self) -> None:
        """Wait until the groups' own processes are started, which nothing of ours may delay; not for long, in case one
        cannot be."""
        with trio.move_on_after(budgets.GATEWAY_PATIENCE):
            while (tree := self._keeper.tree) is None or any(
                group.life is None and not group.is_settled for group in tree.groups.values()
            ):
                await self._keeper.changed()


def _address(spec: GatewaySpec) -> tuple[bool, str, int, bool]:
    return spec.enabled, spec.host, spec.port, spec.is_named


def _served(spec: GatewaySpec) -> tuple[object, ...]:
    """What a server is made of: all else holds from the next request on."""
    return *_address(spec), spec.key_file


def _import_server() -> type[Server]:
    from supervisor.gateway.server import Server

    return Server
