"""The gateway's outermost layer: it asks `access` about each request, and bounds how much of one is taken in.

Plain ASGI, and nothing of what it lets pass is touched: a stream's pieces go through as they come.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import trio

from supervisor import budgets
from supervisor.gateway import access, saying
from supervisor.gateway.access import Allowed, Facts, Preflight, Refused, Rules

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, MutableMapping

    Message = MutableMapping[str, Any]
    Scope = MutableMapping[str, Any]
    Receive = Callable[[], Awaitable[Message]]
    Send = Callable[[Message], Awaitable[None]]
    App = Callable[[Scope, Receive, Send], Awaitable[None]]

HELD_MOST_BYTES: Final = 512 << 20
"""Of all that are there at once: eight of the largest, or 64 of 8 MB. The keeper must not be what the kernel kills."""
PREFLIGHT_AGE: Final = "600"
"""Seconds for which a browser need not ask again (Chromium takes 7200 at most). After that a changed configuration holds."""

_TYPES: Final = {401: "authentication_error", 403: "permission_error"}
"""OpenAI's word for a status; for the others it is `invalid_request_error`, and for what is ours `unavailable_error`."""


class Guard:
    """Around `app`. One for a gateway: it counts what all requests hold. `told` hears the code of each refusal."""

    def __init__(
        self,
        app: App,
        rules: Callable[[], Rules],
        told: Callable[[str], None] = lambda _: None,
        *,
        held_most_bytes: int = HELD_MOST_BYTES,
        body_limit: float = budgets.GATEWAY_BODY,
    ) -> None:
        self._app, self._rules, self._told = app, rules, told
        self._held_most, self._body_limit = held_most_bytes, body_limit
        self.held_bytes = 0
        """Of bodies of requests that are not answered yet."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As ASGI has it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        lists: dict[str, list[str]] = {}
        for name, value in scope["headers"]:
            lists.setdefault(name.decode("latin-1").lower(), []).append(value.decode("latin-1"))
        headers = {name: tuple(values) for name, values in lists.items()}
        facts = Facts(scope["method"], scope["path"], headers)
        match access.decide(facts, self._rules()):
            case Refused() as refused:
                self._told(refused.code)
                await _refuse(refused, send)
            case Preflight(origin, wanted):
                await _answer(send, 204, b"", _preflight(origin, wanted))
            case Allowed(origin):
                await self._let_in(origin, headers, scope, receive, send)

    async def _let_in(
        self, origin: str, headers: dict[str, tuple[str, ...]], scope: Scope, receive: Receive, send: Send
    ) -> None:
        declared = headers.get("content-length", ("0",))[0]
        refused = self._too_large(int(declared) if declared.isdecimal() else 0, origin)
        if refused is not None:
            self._told(refused.code)
            await _refuse(refused, send)
            return
        body = _Body(self, origin, receive, send)
        try:
            await self._app(scope, body.receive, body.send)
        except Exception:
            if body.refused is None or body.has_begun:
                raise
        finally:
            self.held_bytes -= body.taken
        if body.refused is not None and not body.has_begun:
            self._told(body.refused.code)
            await _refuse(body.refused, send)

    def _too_large(self, size: int, origin: str, already: int = 0) -> Refused | None:
        """What is said to a body of `size` bytes, of which so many are counted among those held."""
        if size > (most_bytes := self._rules().body_most_bytes):
            most = f"{most_bytes} bytes are the most (gateway.body_limit_mb)"
            return Refused(413, "request_too_large", f"the request's body is too large: {most}", origin)
        if self.held_bytes + size - already > self._held_most:
            message = f"the requests that are here hold {self._held_most >> 20} MiB, which is the most; come again"
            return Refused(503, "gateway_full", message, origin)
        return None


class _Body:
    """A request's body on its way in, and whether its answer is on its way out. To the application one that is refused
    looks like a caller who left, and what it still says is not passed on: `Guard` answers."""

    def __init__(self, guard: Guard, origin: str, receive: Receive, send: Send) -> None:
        self._guard, self._origin, self._receive, self._send = guard, origin, receive, send
        self.is_whole = False
        self._deadline = trio.current_time() + guard._body_limit
        self.taken = 0
        """Bytes of it that are here."""
        self.refused: Refused | None = None
        self.has_begun = False

    async def receive(self) -> Message:
        if self.is_whole:
            return await self._receive()
        message: Message = {}
        with trio.CancelScope(deadline=self._deadline):
            message = await self._receive()
        if not message:
            late = f"the request's body was not there within {self._guard._body_limit:g} s"
            self.refused = Refused(408, "request_too_slow", late, self._origin)
            return {"type": "http.disconnect"}
        self.is_whole = message["type"] != "http.request" or not message.get("more_body", False)
        size = len(message.get("body", b""))
        self.taken += size
        self._guard.held_bytes += size
        self.refused = self._guard._too_large(self.taken, self._origin, already=self.taken)
        if self.refused is not None:
            return {"type": "http.disconnect"}
        return message

    async def send(self, message: Message) -> None:
        if self.refused is not None and not self.has_begun:
            return
        if not self.has_begun:
            self.has_begun = True
            if self._origin and message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", []), *_shared(self._origin)]}
        await self._send(message)


async def _refuse(refused: Refused, send: Send) -> None:
    kind = "unavailable_error" if refused.status == 503 else _TYPES.get(refused.status, "invalid_request_error")
    headers = [(b"content-type", b"application/json"), (b"connection", b"close"), *_shared(refused.origin)]
    if refused.status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    if refused.status == 503:
        headers.append((b"retry-after", str(budgets.RETRY_AFTER).encode()))
    await _answer(send, refused.status, saying.error(refused.message, kind, refused.code), headers)


async def _answer(send: Send, status: int, body: bytes, headers: list[tuple[bytes, bytes]]) -> None:
    length = [] if status == 204 else [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": [*length, *headers]})
    await send({"type": "http.response.body", "body": body, "more_body": False})


def _shared(origin: str) -> list[tuple[bytes, bytes]]:
    """What lets a page read an answer (Fetch standard, "CORS protocol"). A key is a header here and no cookie, so `*` may
    stand for every header."""
    if not origin:
        return []
    return [
        (b"access-control-allow-origin", origin.encode("latin-1")),
        (b"access-control-expose-headers", b"*"),
        (b"vary", b"Origin"),
    ]


def _preflight(origin: str, wanted: str) -> list[tuple[bytes, bytes]]:
    allowed = [(b"access-control-allow-headers", wanted.encode("latin-1"))] if wanted else []
    return [
        *_shared(origin),
        (b"access-control-allow-methods", b"GET, HEAD, POST, OPTIONS"),
        (b"access-control-max-age", PREFLIGHT_AGE.encode()),
        *allowed,
        (b"access-control-allow-private-network", b"true"),
    ]
