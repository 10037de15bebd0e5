"""One request of a caller over all its attempts, and what is sent of it in each."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import httpcore
import httpx
from attrs import define, field, frozen

from supervisor.request_policy import Decision, Route

if TYPE_CHECKING:
    from supervisor.contract import Endpoint

_OURS: Final = frozenset({b"transfer-encoding", b"content-length", b"x-api-key", b"accept-encoding"})
_LEFT_OUT: Final = {
    (moved, has_key): _OURS | ({b"host"} if moved else set()) | ({b"authorization"} if has_key else set())
    for moved in (False, True)
    for has_key in (False, True)
}
"""Headers of the caller that are not passed on: by whether the group is elsewhere now, and whether it has a key."""

_HAVE_BODIES: Final = frozenset({"POST", "PUT", "PATCH"})
"""Methods whose empty body is said to be one (RFC 9110, 8.6)."""


@frozen
class Base:
    """The URL of an endpoint, in the forms that are wanted of it."""

    host: bytes
    port: int | None
    netloc: bytes


@define
class Call:
    """One request of the caller, over all its attempts."""

    request: httpx.Request
    body: bytes
    group: str
    route: Route
    started: float
    deadline: float
    counted: int = 0
    holds: int = 0
    tried: dict[str, int] = field(factory=dict)

    @property
    def left(self) -> float:
        return self.deadline - time.monotonic()

    def note(self, endpoint: Endpoint, decision: Decision) -> None:
        """Keep in mind what was tried: one line for many holds alike."""
        line = f"{endpoint.url} generation {endpoint.generation}: {decision.reason}"
        self.tried[line] = self.tried.get(line, 0) + 1
        self.counted += decision.counts

    @property
    def about(self) -> str:
        return f"{self.request.method} {self.request.url.path} to group {self.group}"


def request_for(call: Call, base: Base, key: str, limits: dict[str, float]) -> httpcore.Request:
    """The caller's request as this endpoint wants it: its address, its key, the body at hand, nothing compressed (the
    end of a stream must be readable, and loopback has bandwidth)."""
    request, url = call.request, call.request.url
    moved = (url.raw_host, url.port) != (base.host, base.port)
    left_out = _LEFT_OUT[moved, bool(key)]
    headers = [header for header in request.headers.raw if header[0].lower() not in left_out]
    if moved:
        headers.insert(0, (b"Host", base.netloc))
    headers.append((b"Accept-Encoding", b"identity"))
    if key:
        headers.append((b"Authorization", b"Bearer " + key.encode()))
    if call.body or request.method in _HAVE_BODIES:
        headers.append((b"Content-Length", b"%d" % len(call.body)))
    return httpcore.Request(
        method=request.method,
        url=httpcore.URL(scheme=b"http", host=base.host, port=base.port, target=url.raw_path),
        headers=headers,
        content=call.body,
        extensions={**request.extensions, "timeout": limits},
    )
