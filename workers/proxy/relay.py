"""One request passed to a model's server and its answer passed back, bytes as they come."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from workers.proxy.model import Model, State
from workers.proxy.refusal import Refusal
from workers.proxy.upstream import Exchange, Headers, UpstreamError

if TYPE_CHECKING:
    from collections.abc import Callable

    from workers.proxy.downstream import Downstream, Request
    from workers.proxy.logbook import LogBook

# RFC 9110, 7.6.1: these end at each hop. Expect is ours to answer: the body is here already.
_HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"expect",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)


async def relay(
    client: Downstream,
    request: Request,
    model: Model,
    target: str,
    body: bytes,
    logs: LogBook,
    moved: Callable[[], None],
) -> None:
    """Answer `request` with what the server of `model` says to `target`.

    A server that fails before its headers is a 502 without a body, as with llama-swap. One that fails afterwards ends
    the connection without the last chunk: unlike llama-swap's, a cut stream does not look complete. `moved` is called
    after each piece.

    Raises:
        Refusal: the model was stopped between grant and now.
        ClientGone: the client left.
    """
    if model.state is not State.READY:
        raise Refusal(503, f"[{model.spec.id}] process is not ready")
    with trio.CancelScope() as scope:
        model.exchanges.add(scope)
        try:
            await _exchange(client, request, model, target, body, moved)
        except UpstreamError as error:
            logs.line("warn", f"<{model.spec.id}> {request.method} {request.path}: {error}")
            await _failed(client)
        finally:
            model.exchanges.discard(scope)
    if scope.cancelled_caught:  # the model is being stopped
        await _failed(client)


async def _exchange(
    client: Downstream, request: Request, model: Model, target: str, body: bytes, moved: Callable[[], None]
) -> None:
    spec = model.spec
    async with Exchange(spec.host, spec.port) as server:
        budget = spec.response_header_timeout or float("inf")
        await server.send(
            request.method.encode(),
            (spec.path_prefix + target).encode("latin-1"),
            _to_server(request, len(body)),
            body,
        )
        try:
            with trio.fail_after(budget):
                head = await server.head()
        except trio.TooSlowError as error:
            raise UpstreamError(f"no response header within {budget:g}s") from error
        await client.start(head.status_code, _to_client(head.headers.raw_items()), bytes(head.reason))
        while (data := await server.data()) is not None:
            await client.send(data)
            moved()
        await client.finish()


async def _failed(client: Downstream) -> None:
    if client.answered:
        client.abort()
    else:
        await client.respond(502, [], b"")


def _to_server(request: Request, length: int) -> Headers:
    dropped = _HOP_BY_HOP | {b"content-length", b"x-forwarded-for"} | _named_by_connection(request.headers)
    headers = [(name, value) for name, value in request.headers if name.lower() not in dropped]
    if length or request.method not in {"GET", "HEAD"}:
        headers.append((b"Content-Length", str(length).encode()))
    before = request.header("X-Forwarded-For")
    headers.append((b"X-Forwarded-For", (f"{before}, " if before else "").encode("latin-1") + request.client.encode()))
    if not request.header("Host"):  # HTTP/1.0 may leave it out, HTTP/1.1 may not
        headers.append((b"Host", b"localhost"))
    return headers


def _to_client(items: Headers) -> Headers:
    dropped = _HOP_BY_HOP | _named_by_connection(items)
    if any(name.lower() == b"transfer-encoding" for name, _ in items):
        dropped |= {b"content-length"}  # beside it, a length is none (RFC 9112, 6.3)
    headers = [(name, value) for name, value in items if name.lower() not in dropped]
    if any(name.lower() == b"content-type" and b"text/event-stream" in value.lower() for name, value in items):
        headers.append((b"X-Accel-Buffering", b"no"))
    return headers


def _named_by_connection(headers: Headers) -> frozenset[bytes]:
    return frozenset(
        word.strip().lower() for name, value in headers if name.lower() == b"connection" for word in value.split(b",")
    )
