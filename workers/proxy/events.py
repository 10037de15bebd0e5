"""/api/events: server-sent events for whoever watches, in llama-swap's envelope."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import trio

from workers.proxy import limits

if TYPE_CHECKING:
    from collections.abc import Callable


def envelope(kind: str, payload: object) -> bytes:
    """One event. The payload is JSON inside a JSON string, which is how llama-swap nests it."""
    message = {"type": kind, "data": json.dumps(payload, separators=(",", ":"))}
    return b"event:message\ndata:" + json.dumps(message, separators=(",", ":")).encode() + b"\n\n"


def log_data(source: str, data: bytes) -> dict[str, str]:
    """The payload of a `logData` event."""
    return {"source": source, "data": data.decode("utf-8", "replace")}


class Hub:
    """Hands each event to every subscriber. One that is more than 1,024 events behind loses events."""

    def __init__(self) -> None:
        self._subscribers: set[trio.MemorySendChannel[bytes]] = set()
        self.lost = 0

    @property
    def watched(self) -> bool:
        """Whether anybody listens; building an event for nobody is waste."""
        return bool(self._subscribers)

    def publish(self, kind: str, payload: Callable[[], object]) -> None:
        """Send an event; `payload` is called only if somebody listens."""
        if not self._subscribers:
            return
        data = envelope(kind, payload())
        for channel in tuple(self._subscribers):
            try:
                channel.send_nowait(data)
            except trio.WouldBlock:
                self.lost += 1
            except trio.BrokenResourceError:
                self._subscribers.discard(channel)

    def subscribe(self) -> tuple[trio.MemoryReceiveChannel[bytes], Callable[[], None]]:
        """A channel of the events from now on, and how to stop."""
        send, receive = trio.open_memory_channel[bytes](limits.SUBSCRIBER_BACKLOG)
        self._subscribers.add(send)
        return receive, lambda: self._subscribers.discard(send)
