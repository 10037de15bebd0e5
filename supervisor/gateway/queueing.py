"""Who comes next: the requests that wait for one server, in fair order over its clients. Pure: no clock, no I/O.

Each client has a line of its own, first come first served, and the lines take turns, one request a turn. So a program
that sends a thousand requests delays another one's next request by one of them, not by a thousand.

The request whose turn it is may need more room than is free now (of a shared KV pool). Others that fit go past it
meanwhile, or the room would lie idle for as long as the longest answer takes; but at most OVERTAKEN of them, then all
wait for it. So nobody starves. With `lines` the most clients that wait at once and `before` the requests ahead in its
own line, no request sees more than

    (before + 1) * lines * (OVERTAKEN + 1)

others admitted between its coming and its turn (tests/unit/test_gateway_queueing.py tries to break it).
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict, deque
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from attrs import define, field

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

T = TypeVar("T")

OVERTAKEN: Final = 4
"""Requests that may go past one which does not fit yet. One round of the small ones on a server of four sequences; the
more it is, the better the room is used and the longer a large request waits."""

MEMBER_HEADER: Final = "x-queenright-member"
"""A client's own name for itself. It gives a share of the queue and nothing else, so nobody has to prove it."""

_SHOWN: Final = 64
"""Characters of a client's own words that are kept: they stand in memory and in `status`."""


def client_of(headers: Mapping[str, str], *, key: str = "", peer: str = "") -> str:
    """Who asks, as far as the order of the queue goes. `headers` has lower-case names, `key` is the API key the request
    was let in by ("" where none is needed), `peer` the address it came from, without port.

    The surest that is there: the name a client gives itself (MEMBER_HEADER); then its key, as a fingerprint; then its
    address and its program (`user-agent`). One key that all share tells nobody apart, so the program is told from the
    key, too. On loopback all have one address, and a connection is no client: one with sixteen of them would have
    sixteen shares.
    """
    if name := headers.get(MEMBER_HEADER, "").strip():
        return f"member {name[:_SHOWN]}"
    program = headers.get("user-agent", "").strip()[:_SHOWN]
    who = f"key {hashlib.sha256(key.encode()).hexdigest()[:8]}" if key else peer
    return f"{who} {program}".strip() or "unknown"


@define
class _Line(Generic[T]):
    """The requests of one client. `passed`: how many went past the first of them while it was its turn."""

    waiting: deque[T] = field(factory=deque)
    passed: int = 0


@define
class Lines(Generic[T]):
    """All that wait for one server. The lines are kept in the order of their turns; an empty line is none."""

    _lines: OrderedDict[str, _Line[T]] = field(factory=OrderedDict)

    def __len__(self) -> int:
        return sum(len(line.waiting) for line in self._lines.values())

    @property
    def clients(self) -> dict[str, int]:
        """How many requests of each client wait, in the order of turns."""
        return {client: len(line.waiting) for client, line in self._lines.items()}

    def of(self, client: str) -> int:
        """How many requests of this client wait."""
        line = self._lines.get(client)
        return len(line.waiting) if line else 0

    def add(self, client: str, item: T) -> None:
        """To the end of its client's line; a new line's turn comes last."""
        self._lines.setdefault(client, _Line()).waiting.append(item)

    def remove(self, client: str, item: T) -> bool:
        """Out of the line, wherever it stands; False if it does not wait."""
        line = self._lines.get(client)
        if line is None or item not in line.waiting:
            return False
        if line.waiting[0] == item:
            line.passed = 0
        line.waiting.remove(item)
        if not line.waiting:
            del self._lines[client]
        return True

    def take(self, fits: Callable[[T], bool]) -> T | None:
        """The next one that may go now, taken out of its line; None if all must wait."""
        for number, (client, line) in enumerate(self._lines.items()):
            if fits(line.waiting[0]):
                if number:
                    next(iter(self._lines.values())).passed += 1
                return self._turn(client, line)
            if not number and line.passed >= OVERTAKEN:
                return None
        return None

    def _turn(self, client: str, line: _Line[T]) -> T:
        item = line.waiting.popleft()
        line.passed = 0
        del self._lines[client]
        if line.waiting:
            self._lines[client] = line
        return item

    def place(self, client: str, item: T) -> int:
        """Its place in the whole queue, from 1, if nobody goes past anybody; 0 if it does not wait."""
        line = self._lines.get(client)
        if line is None or item not in line.waiting:
            return 0
        ahead = line.waiting.index(item)
        turns, place = ahead + 1, ahead + 1
        for other, them in self._lines.items():
            if other == client:
                turns = ahead  # those behind us in the round have one turn fewer before ours
            else:
                place += min(len(them.waiting), turns)
        return place

    def __iter__(self) -> Iterator[T]:
        return (item for line in self._lines.values() for item in line.waiting)
