"""`POST /api/shutdown` as a piece of ASGI (asgi.readthedocs.io, HTTP 2.x) that any front end can mount.

It answers first, completely, and stops the server afterwards, by the way that SIGTERM takes. A browser's page must not
be able to end it: so Host must be this machine (a DNS name rebound to 127.0.0.1 is not), and so must Origin, if there
is one. The token is compared in constant time.
"""

from __future__ import annotations

import hmac
import inspect
import json
import signal
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from supervisor.loopback import is_loopback_authority, is_loopback_url

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, MutableMapping

    Scope = MutableMapping[str, Any]
    Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
    Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
    App = Callable[[Scope, Receive, Send], Awaitable[None]]

PATH: Final = "/api/shutdown"


def stop_this_process() -> None:
    """SIGTERM to our own main thread: whatever handler the server has set runs as for a `kill` from outside.

    To that thread and not, as raise(3) does, to the calling one: a main thread that waits in a system call would not
    notice.
    """
    main = threading.main_thread().ident
    assert main is not None  # noqa: S101 - None only before it was started
    signal.pthread_kill(main, signal.SIGTERM)


class ShutdownRoute:
    """An ASGI application that serves this one route. With `app` it is middleware: every other path goes there.

    `stop` is called once, after the first answer of 202 was sent, and awaited if it returns an awaitable; by default it
    is `stop_this_process`. A server of several processes gives its own, since the worker that gets the request is not
    the one to stop.
    """

    def __init__(
        self,
        token: str,
        *,
        stop: Callable[[], object] = stop_this_process,
        app: App | None = None,
    ) -> None:
        if not token:
            raise ValueError("a shutdown route without a token would let everybody in")
        self._expected = f"Bearer {token}".encode()
        self._stop, self._app = stop, app
        self._stopping = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI's entry."""
        if scope["type"] == "http" and self._is_ours(scope):
            await self._serve(scope, send)
        elif self._app is not None:
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            await _answer(send, 404, {"error": "not found"})
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1000})
        elif scope["type"] == "lifespan":
            await _live(receive, send)

    def _is_ours(self, scope: Scope) -> bool:
        """Mounted pieces are given the path with or without what they are mounted under; the specification changed."""
        root, path = scope.get("root_path", "").rstrip("/"), scope["path"]
        return PATH in (path, (root + path).rstrip("/"), path.removeprefix(root))

    async def _serve(self, scope: Scope, send: Send) -> None:
        status, error = self._refusal(scope)
        if status != 202:
            extra = {405: (b"allow", b"POST"), 401: (b"www-authenticate", b"Bearer")}.get(status)
            await _answer(send, status, {"error": error}, extra)
            return
        with suppress(OSError):  # it hung up after asking rightly: it still gets what it asked for
            await _answer(send, status, {"stopping": True})
        if not self._stopping:
            self._stopping = True
            result = self._stop()
            if inspect.isawaitable(result):
                await result

    def _refusal(self, scope: Scope) -> tuple[int, str]:
        headers = [(name.lower(), value) for name, value in scope["headers"]]
        hosts, origins, tokens = (
            [value.decode("latin-1") for name, value in headers if name == wanted]
            for wanted in (b"host", b"origin", b"authorization")
        )
        if len(hosts) != 1 or not is_loopback_authority(hosts[0]):
            return 403, "the Host must be this machine's loopback address"
        if not all(is_loopback_url(origin) for origin in origins):
            return 403, "not from a page of another site"
        if scope["method"] != "POST":
            return 405, "POST only"
        # The scheme's name is written as one likes (RFC 9110, 11.1); the rest must be equal.
        scheme, _, rest = tokens[0].partition(" ") if len(tokens) == 1 else ("", "", "")
        given = f"Bearer {rest.strip()}".encode("latin-1")
        if not hmac.compare_digest(given, self._expected) or scheme.lower() != "bearer":
            return 401, "the token is missing or wrong"
        return 202, ""


async def _answer(send: Send, status: int, body: dict[str, Any], extra: tuple[bytes, bytes] | None = None) -> None:
    content = json.dumps(body).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(content)).encode())]
    headers += [(b"cache-control", b"no-store"), *([extra] if extra else [])]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": content, "more_body": False})


async def _live(receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return
