"""Admission as a request meets it: wait for room at its server, and give it back. The hands of `admission`, `queueing` and
`clamping`."""

from __future__ import annotations

import json
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

import httpcore
import trio
from attrs import asdict, define, field, frozen

from supervisor import budgets
from supervisor.contract import LaunchSpec
from supervisor.gateway import clamping, saying
from supervisor.gateway.admission import Event, Figures, Gate, Phase, Room, Ticket, Why
from supervisor.gateway.demand import Demand, Work
from supervisor.streams import LOST

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

    from supervisor.gateway.aside import Aside
    from supervisor.gateway.upkeep import Keeper
    from supervisor.gateway.whereabouts import Whereabouts

COUNTED_MOST_BYTES: Final = 16 * 1024 * 1024
"""Of a prompt that is to be counted. What is larger has no room in any window that there is."""


UNDECIDED: Final = 1 << 40
"""Tokens: the window of a launch that is not planned yet. Its server says what does not fit."""


class NotAdmittedError(Exception):
    """The answer instead: status, headers and body."""

    def __init__(self, status: int, body: bytes, retry_after_s: int = 0) -> None:
        super().__init__(status)
        self.status, self.body = status, body
        self.headers = [(b"content-type", b"application/json")]
        if retry_after_s:
            self.headers.append((b"retry-after", b"%d" % retry_after_s))


@frozen
class Wish:
    """A request that wants to be let in. `body` is what would be sent; `until` is on `time.monotonic()`."""

    group: str
    launch: LaunchSpec
    path: str
    body: bytes
    demand: Demand
    client: str
    until: float


@define
class Admitted:
    """A request that is let in. `body` is what to send now, `headers` what the answer says of it. `is_done`: set it when
    the server has answered in full, else its room is given back only when the server has noticed that nobody waits."""

    body: bytes
    headers: list[tuple[bytes, bytes]] = field(factory=list)
    is_done: bool = False


@define
class _Server:
    gate: Gate
    generation: str = ""
    turns: dict[Ticket, trio.Event] = field(factory=dict)

    def wake(self, *, all_of_them: bool = False) -> None:
        """Tell those whose turn came; or all who wait, since there is now a time at which to look again."""
        for ticket in [ticket for ticket in self.turns if all_of_them or ticket.phase is not Phase.WAITING]:
            self.turns.pop(ticket).set()


class Admission:
    """All servers' gates. Everything happens on the keeper's one thread, and nothing between two awaits."""

    def __init__(self, keeper: Keeper, whereabouts: Whereabouts, counter: Counter, aside: Aside) -> None:
        self._keeper, self._whereabouts, self._counter, self._aside = keeper, whereabouts, counter, aside
        self._servers: dict[tuple[str, str], _Server] = {}

    @asynccontextmanager
    async def admitted(self, wish: Wish, waits: Callable[[Callable[[], str]], None]) -> AsyncIterator[Admitted]:
        """Wait for room, and hold it for the length of the block. `waits` is given, once, what says the place in the queue.

        Raises NotAdmittedError: it does not fit, too many wait, or the deadline passed.
        """
        if wish.demand.work is Work.NONE:
            yield Admitted(wish.body)
            return
        server = self._server(wish)
        reservation = await self._reserve(wish, server.gate.room)
        admitted = Admitted(wish.body)
        if (limit := reservation.limit) is not None:
            admitted.headers.append((clamping.LIMIT_HEADER.encode(), b"%d" % limit))
            admitted.body = await self._aside.do(
                len(wish.body), lambda: saying.encoded(clamping.limited(json.loads(wish.body), wish.path, limit))
            )
        ticket = self._ask(wish, server, reservation)
        try:
            await self._turn(wish, server, ticket, waits)
            yield admitted
        finally:
            server.turns.pop(ticket, None)
            server.gate.happen(ticket, Event.ENDED if admitted.is_done else Event.CUT, time.monotonic())
            server.wake(all_of_them=ticket.phase is Phase.FADING)

    def figures(self) -> dict[str, dict[str, Figures]]:
        """By group and role; nothing of a server that was never asked."""
        now = time.monotonic()
        found: dict[str, dict[str, Figures]] = {}
        for (group, role), server in self._servers.items():
            found.setdefault(group, {})[role] = server.gate.figures(now)
        return found

    def describe(self, group: str) -> dict[str, Any]:
        """The figures of a group's servers, for snapshots."""
        return {role: asdict(figures) for role, figures in self.figures().get(group, {}).items()}

    # --- inside -----------------------------------------------------------------------------------------------------

    def _server(self, wish: Wish) -> _Server:
        """The server's gate, brought up to what its group is now."""
        room, limit = Room(wish.launch.sequences or 1, wish.launch.pool), self._limit(wish.group)
        server = self._servers.setdefault((wish.group, wish.launch.role), _Server(Gate(room, limit)))
        now = time.monotonic()
        if (server.gate.room, server.gate.limit) != (room, limit):
            server.gate.resize(room, limit, now)
        endpoint = self._whereabouts.current(wish.group)
        if endpoint is not None and endpoint.generation != server.generation:
            server.generation = endpoint.generation
            server.gate.lost(now)
        server.wake()
        return server

    def _limit(self, group: str) -> int:
        spec = self._keeper.spec
        return next((one.queue_limit for one in spec.groups if one.name == group), 0) if spec else 0

    async def _reserve(self, wish: Wish, room: Room) -> clamping.Reservation:
        """What to admit it with. Raises NotAdmittedError for a prompt that does not fit."""
        window, counted = wish.launch.context or UNDECIDED, None
        said: Mapping[str, Any] = {}
        if clamping.wants_count(wish.demand, window, room):
            said = await self._aside.do(len(wish.body), lambda: json.loads(wish.body))
            counted = await self._counter.count(wish, said)
        found = clamping.reserve(wish.demand, window, room, counted)
        if isinstance(found, clamping.Reservation):
            return found
        rest = clamping.least_of(said)
        least = None if rest is None else await self._counter.count(wish, rest)
        raise NotAdmittedError(400, saying.encoded(clamping.too_long(found, least)))

    def _ask(self, wish: Wish, server: _Server, reservation: clamping.Reservation) -> Ticket:
        answer = server.gate.ask(wish.client, reservation.need, time.monotonic())
        if isinstance(answer, Ticket):
            return answer
        if answer.why is Why.TOO_LARGE:
            what = f"the request needs {answer.wanted} tokens for its answers, and the pool has {answer.limit} for all"
            body = saying.error(
                what, "invalid_request_error", "pool_exceeded", n_tokens=answer.wanted, n_pool=answer.limit
            )
            raise NotAdmittedError(400, body)
        what = f"{answer.wanted - 1} requests wait for {wish.launch.role} already, and its limit is {answer.limit}"
        body = saying.error(
            what,
            "rate_limit_error",
            "queue_full",
            group=wish.group,
            waiting=answer.wanted - 1,
            limit=answer.limit,
            retry_after_s=answer.retry_after_s,
        )
        raise NotAdmittedError(429, body, answer.retry_after_s)

    async def _turn(
        self, wish: Wish, server: _Server, ticket: Ticket, waits: Callable[[Callable[[], str]], None]
    ) -> None:
        """Wait until it is this one's turn. Raises NotAdmittedError at the deadline."""
        gate = server.gate
        if ticket.phase is not Phase.WAITING:
            return
        waits(lambda: f"place {place} of {gate.figures(0).waiting}" if (place := gate.place(ticket)) else "")
        while ticket.phase is Phase.WAITING:
            now = time.monotonic()
            if now >= wish.until:
                figures = gate.figures(now)
                what = f"the deadline passed at place {gate.place(ticket)} of {figures.waiting} in the queue"
                body = saying.error(
                    f"group {wish.group}: {what}", "unavailable_error", "queue_timeout", group=wish.group, reason=what
                )
                raise NotAdmittedError(503, body, budgets.RETRY_AFTER)
            turn = server.turns.setdefault(ticket, trio.Event())
            with trio.move_on_after(min(wish.until - now, gate.next_look(now))):
                await turn.wait()
            gate.admit(time.monotonic())
            server.wake()


class Counter:
    """Has a server count the tokens of a prompt, by its own template and tokenizer. Both are done by threads of its own:
    no sequence is taken, and nothing waits behind what is being computed."""

    def __init__(self, keeper: Keeper, pool: httpcore.AsyncConnectionPool, aside: Aside) -> None:
        self._keeper, self._pool, self._aside = keeper, pool, aside

    async def count(self, wish: Wish, said: Mapping[str, Any]) -> int | None:
        """Tokens of the prompt of `said`; None where they cannot be had in COUNT_LIMIT."""
        found = self._keeper.tree.groups.get(wish.group) if self._keeper.tree else None
        if found is None or found.life is None or (port := found.life.birth.ports.get(wish.launch.role)) is None:
            return None
        key = found.life.birth.generation_key
        is_chat = wish.path.rstrip("/").endswith("/chat/completions")
        prompt = said.get("prompt") if wish.path.rstrip("/").endswith(("/completions", "/completion")) else None
        with trio.move_on_after(budgets.COUNT_LIMIT):
            if is_chat:
                answer = await self._ask(port, key, "/apply-template", {**said, "stream": False}, len(wish.body))
                prompt = answer.get("prompt") if answer else None
            if isinstance(prompt, str):
                asked = {"content": prompt, "add_special": True, "parse_special": True}
                answer = await self._ask(port, key, "/tokenize", asked, len(prompt))
                tokens = answer.get("tokens") if answer else None
                return len(tokens) if isinstance(tokens, list) else None
        return None

    async def _ask(self, port: int, key: str, path: str, body: Mapping[str, Any], size: int) -> dict[str, Any] | None:
        """`size`: of the body, about, in bytes. What is answered is as large."""
        text = await self._aside.do(size, lambda: saying.encoded(body))
        if len(text) > COUNTED_MOST_BYTES:
            return None
        headers = [
            (b"Host", b"127.0.0.1:%d" % port),
            (b"Authorization", b"Bearer " + key.encode()),
            (b"Content-Type", b"application/json"),
            (b"Content-Length", b"%d" % len(text)),
        ]
        limit = {"connect": budgets.COUNT_LIMIT, "read": budgets.COUNT_LIMIT, "write": budgets.COUNT_LIMIT}
        try:
            response = await self._pool.request(
                "POST",
                httpcore.URL(scheme=b"http", host=b"127.0.0.1", port=port, target=path.encode()),
                headers=headers,
                content=text,
                extensions={"timeout": limit},
            )
            text = response.content if response.status == 200 else b"null"
            found = await self._aside.do(len(text), lambda: json.loads(text))
        except (*LOST, ValueError):
            return None
        return found if isinstance(found, dict) else None
