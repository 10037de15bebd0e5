"""Which requests a server has room for now, and which wait. Pure: no clock, no I/O.

A server has *places* (the sequences it computes at once) and, where they share one KV pool, *positions*: a token of a
prompt or of an answer takes one, for as long as its request runs. llama-server checks nothing beforehand: when the pool
is full in the middle of answers it ends all of them with an error. So a request is admitted when its prompt and the
whole of what it may answer fit into what is free, and waits otherwise. A server whose sequences have each a window of
their own has no pool: there only the places count, and what does not fit its window is refused (`clamping`).

How a request goes through, total (PHASES): it waits or is refused; it is admitted; it ends or is cut. One that is held
while its group is rebuilt stays admitted: it is sent again to the new server, and must find its room there.
"""

from __future__ import annotations

import math
from enum import StrEnum
from typing import Final

from attrs import define, field, frozen

from supervisor import budgets
from supervisor.gateway.queueing import Lines

AHEAD: Final = 1
"""Requests without an answer of tokens (embeddings, rerank) that are sent beyond the places. They take milliseconds, and
a server that is out of work until the next one has come through the gateway would lose a good part of its time."""


class Phase(StrEnum):
    """Where a request is."""

    WAITING = "waiting"
    ADMITTED = "admitted"
    FADING = "fading"
    """Cut: its place is free, and the server may compute for it a moment longer, so its positions are not."""
    GONE = "gone"


class Event(StrEnum):
    """What happens to it."""

    TURN = "turn"
    LOST = "lost"
    """Its server went away. It will be sent again to the next one."""
    ENDED = "ended"
    """The server has answered it in full, or nothing of it ever reached a server that lives."""
    CUT = "cut"
    """The caller went away, or the answer broke off, while the server may have been at it."""
    FADED = "faded"
    """The time is over in which a server notices."""


PHASES: Final[dict[tuple[Phase, Event], Phase]] = {
    (Phase.WAITING, Event.TURN): Phase.ADMITTED,
    (Phase.WAITING, Event.LOST): Phase.WAITING,
    (Phase.WAITING, Event.ENDED): Phase.GONE,
    (Phase.WAITING, Event.CUT): Phase.GONE,
    (Phase.WAITING, Event.FADED): Phase.WAITING,
    (Phase.ADMITTED, Event.TURN): Phase.ADMITTED,
    (Phase.ADMITTED, Event.LOST): Phase.ADMITTED,
    (Phase.ADMITTED, Event.ENDED): Phase.GONE,
    (Phase.ADMITTED, Event.CUT): Phase.FADING,
    (Phase.ADMITTED, Event.FADED): Phase.ADMITTED,
    (Phase.FADING, Event.TURN): Phase.FADING,
    (Phase.FADING, Event.LOST): Phase.GONE,
    (Phase.FADING, Event.ENDED): Phase.GONE,
    (Phase.FADING, Event.CUT): Phase.FADING,
    (Phase.FADING, Event.FADED): Phase.GONE,
    (Phase.GONE, Event.TURN): Phase.GONE,
    (Phase.GONE, Event.LOST): Phase.GONE,
    (Phase.GONE, Event.ENDED): Phase.GONE,
    (Phase.GONE, Event.CUT): Phase.GONE,
    (Phase.GONE, Event.FADED): Phase.GONE,
}
"""Every pair has its cell (a test asks)."""


@frozen
class Room:
    """What a server has. `positions`: tokens of its shared KV pool; 0 = each place has a window of its own."""

    places: int
    positions: int = 0


@frozen
class Need:
    """What a request takes of it. `reads`: it has no answer of tokens, see AHEAD."""

    places: int = 1
    positions: int = 0
    reads: bool = False


@define(eq=False)
class Ticket:
    """One request on its way through. `since`: when it came, then when it was admitted, on the caller's clock."""

    client: str
    need: Need
    since: float
    phase: Phase = Phase.WAITING
    until: float = 0.0
    """When it has faded, if it fades."""


class Why(StrEnum):
    """Why a request is refused."""

    TOO_LARGE = "too_large"
    """Larger than the pool is when it is empty: waiting would not help."""
    QUEUE_FULL = "queue_full"


@frozen
class Refusal:
    """With the numbers to tell. `retry_after_s` is whole seconds; 0 = trying again does not help."""

    why: Why
    wanted: int
    limit: int
    retry_after_s: int = 0


@frozen
class Figures:
    """What `status` and metrics show of one server's queue. `oldest_s`: how long the first one has waited, in seconds;
    `pool` and `reserved` are positions, 0 without a pool."""

    running: int
    waiting: int
    limit: int
    places: int
    oldest_s: float
    pool: int
    reserved: int
    clients: int


@define
class Gate:
    """One server's admission: its room, who is in it and who waits. Times are of one steady clock of the caller's."""

    room: Room
    limit: int
    """Requests that may wait. Of a client of which none waits yet one is taken beyond it, up to as many again: a queue
    that one client keeps full must not shut the others out."""
    _lines: Lines[Ticket] = field(factory=Lines)
    _inside: list[Ticket] = field(factory=list)

    def ask(self, client: str, need: Need, now: float) -> Ticket | Refusal:
        """Come in. The ticket is admitted already if there is room and nobody is kept waiting by it for too long."""
        pool = self.room.positions
        if pool and need.positions > pool:
            return Refusal(Why.TOO_LARGE, need.positions, pool)
        ticket = Ticket(client, self._fitted(need), now)
        first = self._lines.of(client) == 0
        self._lines.add(client, ticket)
        self.admit(now)
        waiting = len(self._lines)
        if ticket.phase is Phase.WAITING and waiting > (2 * self.limit if first else self.limit):
            self._lines.remove(client, ticket)
            ticket.phase = Phase.GONE
            return Refusal(Why.QUEUE_FULL, waiting, self.limit, self._retry_after(now))
        return ticket

    def admit(self, now: float) -> list[Ticket]:
        """Let in whom there is room for now, in order."""
        for ticket in [ticket for ticket in self._inside if ticket.phase is Phase.FADING and ticket.until <= now]:
            self._step(ticket, Event.FADED)
        admitted = []
        while (next_one := self._lines.take(lambda waiting: self._fits(waiting.need))) is not None:
            self._step(next_one, Event.TURN)
            next_one.since = now
            self._inside.append(next_one)
            admitted.append(next_one)
        return admitted

    def happen(self, ticket: Ticket, event: Event, now: float) -> list[Ticket]:
        """Something happened to a request; returns who is admitted by it."""
        if event is Event.TURN:
            return self.admit(now)  # turns are ours to give
        if ticket.phase is Phase.WAITING and event in {Event.ENDED, Event.CUT}:
            self._lines.remove(ticket.client, ticket)
        if event is Event.CUT and ticket.phase is Phase.ADMITTED:
            # Without a pool there is nothing that one could overflow: the server queues by itself until it has noticed.
            ticket.until = now + budgets.UPSTREAM_CLOSED if self.room.positions else now
        self._step(ticket, event)
        return self.admit(now)

    def lost(self, now: float) -> list[Ticket]:
        """The server is gone, and with it all it still computed for those who left."""
        for ticket in [ticket for ticket in self._inside if ticket.phase is Phase.FADING]:
            self._step(ticket, Event.LOST)
        return self.admit(now)

    def resize(self, room: Room, limit: int, now: float) -> list[Ticket]:
        """Another engine has another room. Who is in stays in."""
        self.room, self.limit = room, limit
        return self.admit(now)

    def place(self, ticket: Ticket) -> int:
        """Its place in the queue, from 1; 0 if it does not wait."""
        return self._lines.place(ticket.client, ticket)

    def next_look(self, now: float) -> float:
        """Seconds until `admit` may let somebody in without anything else happening; infinity if never."""
        fading = [ticket.until - now for ticket in self._inside if ticket.phase is Phase.FADING]
        return max(0.0, min(fading, default=math.inf))

    def figures(self, now: float) -> Figures:
        """For `status` and metrics."""
        running = sum(ticket.phase is Phase.ADMITTED for ticket in self._inside)
        pool = self.room.positions
        return Figures(
            running=running,
            waiting=len(self._lines),
            limit=self.limit,
            places=self.room.places,
            oldest_s=self._oldest(now),
            pool=pool,
            reserved=self._reserved if pool else 0,
            clients=len({ticket.client for ticket in self._inside} | set(self._lines.clients)),
        )

    # --- inside -----------------------------------------------------------------------------------------------------

    def _step(self, ticket: Ticket, event: Event) -> None:
        ticket.phase = PHASES[ticket.phase, event]
        if ticket.phase is Phase.GONE and ticket in self._inside:
            self._inside.remove(ticket)

    def _fitted(self, need: Need) -> Need:
        """A request for more sequences than there are takes all: the server works them off by and by."""
        return Need(min(max(need.places, 0), self.room.places), max(need.positions, 0), need.reads)

    def _fits(self, need: Need) -> bool:
        if not self._inside:
            return True  # waiting longer would not help it, even where it is too large for what the room is now
        used = sum(ticket.need.places for ticket in self._inside if ticket.phase is Phase.ADMITTED)
        places = self.room.places + (AHEAD if need.reads else 0)
        if used + min(need.places, self.room.places) > places:
            return False
        return not self.room.positions or self._reserved + need.positions <= self.room.positions

    @property
    def _reserved(self) -> int:
        return sum(ticket.need.positions for ticket in self._inside)

    def _oldest(self, now: float) -> float:
        return max((now - ticket.since for ticket in self._lines), default=0.0)

    def _retry_after(self, now: float) -> int:
        """As long as the oldest has waited so far: whoever comes back then finds a queue that has moved on."""
        return round(min(max(self._oldest(now), budgets.RETRY_AFTER), budgets.QUEUE_RETRY_MOST))
