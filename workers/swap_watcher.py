"""What becomes of a proxy's servers, read from its event stream. Pure but for `report`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from supervisor.kinds import ServerState

if TYPE_CHECKING:
    from supervisor.kinds import Report


class Watcher:
    """Turns the proxy's state words into ours. Pure but for `report`.

    llama-swap has no word for a death: a server that died and one that was unloaded are both `stopped`. An unload
    passes through `stopping`, but the list is made at delivery, and 1 of 12 quick unloads showed none (measured); so a
    server that stops while its idle time is up counts as unloaded as well.
    """

    WORDS = {"starting": ServerState.LOADING, "ready": ServerState.READY, "stopping": ServerState.UNLOADING}  # noqa: RUF012

    def __init__(self, idle_ttl: dict[str, int], report: Report) -> None:
        self._idle_ttl, self._report = idle_ttl, report
        self._was: dict[str, ServerState] = {}
        self._used = 0.0

    def take(self, event: dict[str, Any], now: float) -> None:
        """One event of /api/events."""
        if event.get("type") == "inflight":
            self._used = now
        elif event.get("type") == "modelStatus":
            for model in json.loads(event["data"]):
                if model["id"] in self._idle_ttl:
                    self._take_state(model["id"], model["state"], now)

    def _take_state(self, role: str, word: str, now: float) -> None:
        was = self._was.get(role)
        state = self.WORDS.get(word) or self._stopped(role, was, now)
        self._was[role] = state
        if state is not was:
            self._report(role, state)

    def _stopped(self, role: str, was: ServerState | None, now: float) -> ServerState:
        ttl = self._idle_ttl[role]
        if was in (ServerState.UNLOADING, ServerState.UNLOADED):
            return ServerState.UNLOADED
        if ttl and now - self._used >= ttl:
            return ServerState.UNLOADED
        return ServerState.LOST
