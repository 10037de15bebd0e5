"""The gateway's own counts beside those of its callers: what it says of each outcome lies between what must be in it and what
can be.

A counter belongs to a keeper's life (docs/reference/metrics.md). The first reading of a life is its base: what a keeper that was
killed had counted is lost with it, and what is counted from there on is not.
"""

from __future__ import annotations

import http.client
import re
import time
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from chaos.soak.seen import Counted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from chaos.soak.seen import Ended

PAGE_LIMIT: Final = 10.0  # budget: a page of /metrics on a busy machine; it takes a millisecond
LATE: Final = 2.0
"""budget: seconds from the last byte at its caller until the gateway has counted it; it takes one turn of its loop, and a busy
machine may not give it one at once. A caller asks one at a time, so this is about its last request only."""
OUTCOMES: Final[Mapping[str, tuple[str, ...]]] = {
    "complete": ("answered",),
    "refused": ("unavailable", "overloaded"),
    "interrupted": ("interrupted",),
    "failed": ("rejected", "error", "left"),
}
"""A caller's word for how it ended, and the gateway's."""
ALWAYS_COUNTED: Final = ("complete", "interrupted")
"""A keeper that does not know its groups yet refuses, and cannot say for which group; one that failed is red anyway."""
_LINE: Final = re.compile(r'^queenright_gateway_requests_total\{.*outcome="([a-z]+)"\} ([0-9.e+]+)$', re.MULTILINE)
_START: Final = re.compile(r"^queenright_keeper_start_time_seconds ([0-9.e+]+)$", re.MULTILINE)


def fetch(url: str) -> tuple[str, float, float]:
    """The page of /metrics, and when it was asked for and read. By hand: what a client takes to be made would be time in which
    requests end of which nobody knows whether they are in it. Raises OSError."""
    host = urlsplit(url)
    connection = http.client.HTTPConnection(host.hostname or "", host.port, timeout=PAGE_LIMIT)
    try:
        connection.connect()
        asked_at = time.monotonic()
        connection.request("GET", "/metrics")
        page = connection.getresponse().read().decode()
        return page, asked_at, time.monotonic()
    except http.client.HTTPException as error:
        raise OSError(str(error)) from error
    finally:
        connection.close()


def read(page: str) -> tuple[float, dict[str, int]] | None:
    """When the keeper began, and its requests by outcome; None for a page that is none."""
    start = _START.search(page)
    if start is None:
        return None
    found: dict[str, int] = {}
    for outcome, value in _LINE.findall(page):
        found[outcome] = found.get(outcome, 0) + round(float(value))
    return float(start.group(1)), found


class Ledger:
    """One keeper's life at a time."""

    def __init__(self) -> None:
        self._start: float | None = None
        self._base: dict[str, int] = {}
        self._base_at = (0.0, 0.0)
        self._ended: list[Ended] = []

    def note(self, ended: Sequence[Ended]) -> None:
        """Requests through the gateway that ended."""
        self._ended += [one for one in ended if one.way == "gateway"]

    def reckon(self, page: str, asked_at: float, read_at: float, under_way: int) -> list[Counted] | None:
        """A page of /metrics, asked for and read at those times, while so many requests were under way at the end."""
        said = read(page)
        if said is None:
            return None
        start, counts = said
        if start != self._start:
            self._start, self._base, self._base_at = start, counts, (asked_at, read_at)
            self._ended = [one for one in self._ended if one.ended_at > asked_at - LATE]
            return []
        return [self._row(outcome, counts, asked_at, read_at, under_way) for outcome in OUTCOMES]

    def _row(self, outcome: str, counts: dict[str, int], asked_at: float, read_at: float, under_way: int) -> Counted:
        before, after = self._base_at
        mine = [one for one in self._ended if one.outcome == outcome and one.began <= read_at]
        sure = [one for one in mine if one.began >= after and one.ended_at < asked_at]
        late = any(one.ended_at > asked_at - LATE for one in sure)
        least = len(sure) - late if outcome in ALWAYS_COUNTED else 0
        base_late = any(before - LATE < one.ended_at <= before for one in mine)
        most = sum(one.ended_at > before for one in mine) + base_late + under_way
        counted = sum(counts.get(word, 0) - self._base.get(word, 0) for word in OUTCOMES[outcome])
        return Counted(outcome, least, counted, most)
