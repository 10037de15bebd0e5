"""Every route of the proxy.

Looking (`/health`, `/running`, `/v1/models`, `/api/events`, logs) never loads a model and never counts as use of one.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import trio

from workers.proxy.auth import allowed
from workers.proxy.downstream import Downstream, Request
from workers.proxy.events import Hub, envelope, log_data
from workers.proxy.inflight import Inflight
from workers.proxy.model import Model, State
from workers.proxy.naming import requested_model, with_model_name
from workers.proxy.refusal import Refusal, no_model, unauthorized, unknown_model
from workers.proxy.relay import relay
from workers.proxy.routes import GET_ROUTES, POST_ROUTES, server_target, split_upstream
from workers.proxy.rows import model_rows, running_rows, status_rows

if TYPE_CHECKING:
    from workers.proxy.config import ProxyConfig
    from workers.proxy.logbook import LogBook
    from workers.proxy.scheduler import Scheduler
    from workers.proxy.upstream import Headers

_Handler = Callable[[Request, Downstream], Awaitable[None]]
_UNLOGGED = frozenset({"/wol-health"})
# llama-swap's default upstream.ignorePaths: a browser asking for assets must not load a model.
_ASSET = re.compile(r".*\.(js|json|css|png|gif|jpg|jpeg|ico|txt)$")
_SSE_HEADERS: Headers = (
    (b"Content-Type", b"text/event-stream"),
    (b"Cache-Control", b"no-cache"),
    (b"X-Content-Type-Options", b"nosniff"),
    (b"X-Accel-Buffering", b"no"),
)
_LOG_HEADERS: Headers = (
    (b"Content-Type", b"text/plain"),
    (b"X-Content-Type-Options", b"nosniff"),
    (b"X-Accel-Buffering", b"no"),
)


class App:
    """Answers requests. One instance per proxy; no state but the scopes of endless streams."""

    def __init__(
        self,
        config: ProxyConfig,
        *,
        scheduler: Scheduler,
        logs: LogBook,
        hub: Hub,
        version: Callable[[], str],
    ) -> None:
        self._config = config
        self._scheduler = scheduler
        self._logs = logs
        self._hub = hub
        self._version = version
        self._inflight = Inflight(hub)
        self._names = frozenset(config.models) | {a for m in config.models.values() for a in m.aliases}
        self._streams: set[trio.CancelScope] = set()
        self._streams_closed = False
        self._get: dict[str, _Handler] = {
            "/health": self._ok,
            "/wol-health": self._ok,
            "/running": self._running,
            "/unload": self._unload_all_plain,
            "/v1/models": self._models,
            "/models": self._models,
            "/logs": self._log_history,
            "/api/version": self._show_version,
            "/api/events": self._events,
            **dict.fromkeys(GET_ROUTES, self._to_model),
        }
        self._post: dict[str, _Handler] = {
            "/api/models/unload": self._unload_all,
            **dict.fromkeys(POST_ROUTES, self._to_model),
        }

    async def answer(self, request: Request, client: Downstream) -> None:
        """Answer one request, whatever it is.

        Raises:
            ClientGone: the client left.
        """
        began = time.monotonic()
        try:
            await self._dispatch(request, client)
        except Refusal as refusal:
            await refuse(refusal, client, request.header("Accept"))
        finally:
            if request.path not in _UNLOGGED:
                self._logs.line(
                    "info",
                    f'Request {request.client} "{request.method} {request.path} HTTP/{request.version}" '
                    f'{client.status} {client.sent} "{request.header("User-Agent")}" {time.monotonic() - began:.3f}s',
                )

    def trusts(self, request: Request) -> bool:
        """Whether it has a key, where there are any."""
        return allowed(self._config.api_keys, "", request.header("Authorization"), request.header("x-api-key"))

    def close_streams(self) -> None:
        """End /api/events and /logs/stream; they have no end of their own."""
        self._streams_closed = True
        for scope in self._streams:
            scope.cancel()

    def publish_states(self) -> None:
        """Tell the watchers every model's state."""
        self._hub.publish("modelStatus", self._states)

    async def _dispatch(self, request: Request, client: Downstream) -> None:
        path = request.path
        if not allowed(self._config.api_keys, path, request.header("Authorization"), request.header("x-api-key")):
            raise unauthorized()
        if path.startswith("/upstream/"):
            await self._upstream(request, client)
            return
        handlers = {"GET": self._get_handler(path), "POST": self._post_handler(path)}
        handler = handlers.get("GET" if request.method == "HEAD" else request.method)
        if handler is not None:
            await handler(request, client)
        elif methods := [method for method, known in handlers.items() if known is not None]:
            raise Refusal(405, "method not allowed", headers=(("Allow", ", ".join(methods)),))
        else:
            raise Refusal(404, f"there is no {path} here")

    def _get_handler(self, path: str) -> _Handler | None:
        if path == "/logs/stream" or path.startswith("/logs/stream/"):
            return self._log_stream
        return self._get.get(path)

    def _post_handler(self, path: str) -> _Handler | None:
        if path.startswith("/api/models/unload/"):
            return self._unload_one
        return self._post.get(path)

    # --- looking --------------------------------------------------------------------------------------------

    async def _ok(self, request: Request, client: Downstream) -> None:
        await client.respond(200, [(b"Content-Type", b"text/plain; charset=utf-8")], b"OK")

    async def _running(self, request: Request, client: Downstream) -> None:
        await _json(client, {"running": running_rows(self._sorted())})

    async def _models(self, request: Request, client: Downstream) -> None:
        await _json(client, {"data": model_rows(self._sorted(), int(time.time())), "object": "list"})

    async def _show_version(self, request: Request, client: Downstream) -> None:
        await _json(client, {"build_date": "", "commit": "", "version": self._version()})

    async def _log_history(self, request: Request, client: Downstream) -> None:
        await client.respond(200, [(b"Content-Type", b"text/plain")], self._logs.combined.history())

    async def _log_stream(self, request: Request, client: Downstream) -> None:
        which = request.path.removeprefix("/logs/stream").strip("/")
        sources = {"": self._logs.combined, "proxy": self._logs.proxy, "upstream": self._logs.upstream}
        source = sources.get(which) or self._logs.model.get(self._config.resolve(which) or "")
        if source is None:
            raise Refusal(400, "invalid logger. Use 'proxy', 'upstream' or a model's ID")
        history = b"" if request.parameter("no-history") is not None else source.history()
        receive, stop = source.follow()
        try:
            await self._stream(client, _LOG_HEADERS, history, receive)
        finally:
            stop()

    async def _events(self, request: Request, client: Downstream) -> None:
        receive, stop = self._hub.subscribe()
        first = [
            envelope("logData", log_data("proxy", self._logs.proxy.history())),
            envelope("logData", log_data("upstream", self._logs.upstream.history())),
            envelope("modelStatus", self._states()),
            envelope("inflight", self._inflight.snapshot()),
        ]
        try:
            await self._stream(client, _SSE_HEADERS, b"".join(first), receive)
        finally:
            stop()

    async def _stream(
        self, client: Downstream, headers: Headers, first: bytes, channel: trio.MemoryReceiveChannel[bytes]
    ) -> None:
        await client.start(200, headers)
        with trio.CancelScope() as scope:
            self._streams.add(scope)
            try:
                if not self._streams_closed:
                    await client.send(first)
                    async for data in channel:
                        await client.send(data)
            finally:
                self._streams.discard(scope)

    def _states(self) -> list[dict[str, object]]:
        return status_rows(self._sorted())

    def _sorted(self) -> list[Model]:
        return [model for _, model in sorted(self._scheduler.models.items())]

    # --- stopping -------------------------------------------------------------------------------------------

    async def _unload_all_plain(self, request: Request, client: Downstream) -> None:
        await self._scheduler.unload(self._scheduler.models)
        await self._ok(request, client)

    async def _unload_all(self, request: Request, client: Downstream) -> None:
        await self._scheduler.unload(self._scheduler.models)
        await _json(client, {"msg": "ok"})

    async def _unload_one(self, request: Request, client: Downstream) -> None:
        name = self._config.resolve(request.path.removeprefix("/api/models/unload/"))
        if name is None:
            raise Refusal(404, "model not found")
        await self._scheduler.unload([name])
        await self._ok(request, client)

    # --- serving --------------------------------------------------------------------------------------------

    async def _to_model(self, request: Request, client: Downstream) -> None:
        asked = requested_model(request)
        if not asked:
            raise no_model()
        name = self._config.resolve(asked)
        if name is None:
            raise unknown_model()
        body = request.body
        rename = self._config.models[name].use_model_name
        if rename and request.method == "POST":
            body = with_model_name(request, rename)
        await self._serve(request, client, name, server_target(request.target), body)

    async def _upstream(self, request: Request, client: Downstream) -> None:
        found = split_upstream(request.raw_path, self._names)
        if found is None:
            raise Refusal(404, "model not found")
        asked, rest = found
        query = f"?{request.query}" if request.query else ""
        if not rest:
            status = 301 if request.method in {"GET", "HEAD"} else 308
            await client.respond(status, [(b"Location", f"{request.raw_path}/{query}".encode("latin-1"))], b"")
            return
        name = self._config.resolve(asked) or asked
        if _ASSET.match(rest) and self._scheduler.models[name].state is not State.READY:
            raise Refusal(409, f"model {name} is not loaded; path matches upstream.ignorePaths")
        await self._serve(request, client, name, rest + query, request.body)

    async def _serve(self, request: Request, client: Downstream, name: str, target: str, body: bytes) -> None:
        with self._inflight.track(request, name, client) as moved:
            async with self._scheduler.lease(name) as model:
                await relay(client, request, model, target, body, self._logs, moved)


async def refuse(refusal: Refusal, client: Downstream, accept: str) -> None:
    """Send a refusal, or cut the answer that has begun."""
    if client.answered:
        client.abort()
        return
    kind, body = refusal.body(accept)
    headers = [(b"Content-Type", kind.encode()), *((n.encode(), v.encode()) for n, v in refusal.headers)]
    await client.respond(refusal.status, headers, body)


async def _json(client: Downstream, data: object) -> None:
    body = json.dumps(data, separators=(",", ":")).encode()
    await client.respond(200, [(b"Content-Type", b"application/json")], body)
