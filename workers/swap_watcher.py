"""What becomes of a proxy's servers and the requests to them, read from its event stream. Pure but for what it tells."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from supervisor.kinds import ServerState

if TYPE_CHECKING:
    from collections.abc import Mapping

    from supervisor.kinds import Activity, Report


class Watcher:
    """Turns the proxy's state words into ours. Pure but for `report` and `activity`.

    llama-swap has no word for a death: a server that died and one that was unloaded are both `stopped`. An unload
    passes through `stopping`, but the list is made at delivery, and 1 of 12 quick unloads showed none (measured); so a
    server that stops while its idle time is up counts as unloaded as well.
    """

    WORDS = {"starting": ServerState.LOADING, "ready": ServerState.READY, "stopping": ServerState.UNLOADING}  # noqa: RUF012

    def __init__(self, idle_ttl: dict[str, int], report: Report, activity: Activity) -> None:
        self._idle_ttl, self._report = idle_ttl, report
        self._was: dict[str, ServerState] = {}
        self._used = 0.0
        self._requests = Requests(idle_ttl, activity)

    def take(self, event: dict[str, Any], now: float) -> None:
        """One event of /api/events."""
        if event.get("type") == "inflight":
            self._used = now
            self._requests.take(json.loads(event["data"]))
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


class Requests:
    """Which requests each server owes an answer, and a number that changes when one of the answers moves on.

    llama-swap tells of a request when it comes, when the answer's headers are there, at most four times a second while
    bytes of it pass, and when it is over (read in the source of v250). That it is over is progress only if some of the
    answer was seen: a client that gave up on a wedged server ends its request as well.
    """

    def __init__(self, roles: Mapping[str, object], activity: Activity) -> None:
        self._roles, self._activity = roles, activity
        self._open: dict[str, tuple[str, int]] = {}
        self._progress = dict.fromkeys(roles, 0)

    def take(self, event: dict[str, Any]) -> None:
        """The payload of one `inflight` event. A snapshot comes first, and whenever others were lost."""
        touched = set(self._roles) if event.get("operation") == "snapshot" else set()
        match event.get("operation"):
            case "snapshot":
                listed = event.get("requests") or []
                for gone in self._open.keys() - {request["id"] for request in listed}:
                    self._end(gone, touched)
                for request in listed:
                    self._hold(request, touched)
            case "upsert":
                self._hold(event["request"], touched)
            case "remove":
                self._end(event["id"], touched)
            case _:
                pass
        for role in sorted(touched):
            count = sum(owner == role for owner, _ in self._open.values())
            self._activity(role, count, self._progress[role])

    def _hold(self, request: dict[str, Any], touched: set[str]) -> None:
        role = request["model"]
        if role not in self._roles:
            return
        seen = int(request.get("resp_bytes") or 0) + bool(request.get("resp_headers"))
        _, before = self._open.get(request["id"], (role, 0))
        self._open[request["id"]] = (role, seen)
        self._progress[role] += seen != before
        touched.add(role)

    def _end(self, key: str, touched: set[str]) -> None:
        role, seen = self._open.pop(key, ("", 0))
        if role:
            self._progress[role] += seen > 0
            touched.add(role)
