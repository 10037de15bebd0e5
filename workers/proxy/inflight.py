"""The requests being answered now, as /api/events tells them, and how much of each answer has gone out."""

from __future__ import annotations

import itertools
import time
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from workers.proxy.downstream import Downstream, Request
    from workers.proxy.events import Hub

UPDATE_INTERVAL = 0.25
"""Between two events about the bytes of one answer, in seconds (llama-swap's figure)."""

_SECRET = frozenset({"authorization", "proxy-authorization", "x-api-key", "cookie"})


class Inflight:
    """Keeps the list and publishes `inflight` events: a snapshot to each newcomer, then upsert and remove."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._ids = itertools.count(1)
        self._entries: dict[str, tuple[Request, str, Downstream, float, float]] = {}

    @contextmanager
    def track(self, request: Request, model: str, client: Downstream) -> Iterator[Callable[[], None]]:
        """The request is in flight, waiting for its model included. What comes back is to be called when more of the
        answer has gone out; it tells the watchers, the first time at once and then not too often."""
        key = str(next(self._ids))
        self._entries[key] = (request, model, client, time.time(), time.monotonic())
        told = 0.0

        def moved() -> None:
            nonlocal told
            if (now := time.monotonic()) - told >= UPDATE_INTERVAL:
                told = now
                self._hub.publish("inflight", lambda: {"operation": "upsert", "request": self._entry(key)})

        self._hub.publish("inflight", lambda: {"operation": "upsert", "request": self._entry(key)})
        try:
            yield moved
        finally:
            del self._entries[key]
            self._hub.publish("inflight", lambda: {"operation": "remove", "id": key})

    def snapshot(self) -> dict[str, object]:
        """All of them, as an event's payload."""
        return {"operation": "snapshot", "requests": [self._entry(key) for key in self._entries]}

    def _entry(self, key: str) -> dict[str, object]:
        request, model, client, wall, began = self._entries[key]
        headers = {
            name.decode("latin-1"): "[REDACTED]"
            if name.lower().decode("latin-1") in _SECRET
            else value.decode("latin-1")
            for name, value in request.headers
        }
        return {
            "id": key,
            "timestamp": datetime.fromtimestamp(wall, UTC).isoformat(),
            "model": model,
            "req_path": request.path,
            "method": request.method,
            "req_headers": headers,
            "remote_ip": request.client,
            "resp_headers": {},
            "resp_bytes": client.sent,
            "elapsed_ms": int((time.monotonic() - began) * 1000),
        }
