"""A caller's request, understood: which model it means, and what is sent on of it. Pure."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qs

import httpx
from attrs import frozen

from supervisor.gateway import naming, reassembly
from supervisor.gateway.demand import Demand, Work, demand_of, work_of
from supervisor.gateway.naming import Served
from supervisor.gateway.queueing import client_of
from supervisor.request_policy import Route, route_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from supervisor.contract import EngineSpec

_HELD: Final = frozenset(
    f"{version}/{name}"
    for version in ("", "/v1")
    for name in (
        "chat/completions", "completions", "completion", "embeddings", "embedding", "rerank", "reranking", "tokenize",
        "detokenize", "apply-template",
    )
)  # fmt: skip
"""What is sent again where the request policy allows it. Everything else passes through once: of another server's routes
nobody knows what they leave behind."""

_STREAMS: Final = frozenset(
    {"/v1/chat/completions", "/chat/completions", "/v1/completions", "/completions", "/completion"}
)

_NOT_PASSED_ON: Final = frozenset(
    {b"host", b"connection", b"keep-alive", b"proxy-connection", b"proxy-authorization", b"te", b"trailer", b"upgrade"}
    | {
        b"transfer-encoding",
        b"content-length",
        b"expect",
        b"authorization",
        b"x-api-key",
        b"cookie",
        b"accept-encoding",
    }
)
"""Of one connection only, or the caller's secrets, which are between it and us."""


@frozen
class Asked:
    """`body` is what is sent, `path` what the caller asked for. `gathers`: a stream is asked for and put together."""

    model: Served
    path: str
    request: httpx.Request
    body: bytes
    route: Route
    is_stream: bool
    gathers: bool
    demand: Demand
    client: str


def parsed(body: bytes) -> Any:
    """The JSON of a body; None where it is none. Never raises."""
    try:
        return json.loads(body) if body else None
    except (ValueError, RecursionError):
        return None


def is_unreadable(method: str, path: str, said: Any) -> bool:
    """Whether only a JSON object can ask this, and `said` is none. llama-server's answer is a 500 then, which a client takes for
    our trouble and sends again."""
    return method == "POST" and path.rstrip("/") in _HELD and not isinstance(said, dict)


def name_in(said: Any, query: bytes) -> object:
    """What the request calls the model it wants."""
    if isinstance(said, dict) and "model" in said:
        return said["model"]
    return next(iter(parse_qs(query.decode("latin-1")).get("model", ())), None)


def understood(spec: EngineSpec, scope: Mapping[str, Any], body: bytes, said: Any, *, has_proxy: Any) -> Asked | None:
    """None where no model has the name. `has_proxy(group)` is as of Whereabouts."""
    path, query = scope["path"], scope["query_string"]
    model = naming.find(spec, path, name_in(said, query))
    if model is None:
        return None
    sent = body
    twin = reassembly.streamed(path, said) if isinstance(said, dict) and scope["method"] == "POST" else None
    proxied = has_proxy(model.group)
    if twin is not None or (not proxied and isinstance(said, dict) and "model" in said):
        changed = dict(twin if twin is not None else said)
        if not proxied:  # a server of its own knows its model's name, and not what we call it
            changed["model"] = model.launch.model
        sent = json.dumps(changed).encode()
    target = scope.get("raw_path") or path.encode()
    if target == b"/chat/completions":
        target = b"/v1/chat/completions"  # the same to llama-server; llama-swap counts this one as in flight
    if proxied:
        target = b"/upstream/" + model.launch.role.encode() + target
    if query:
        target += b"?" + query
    held = path.rstrip("/") in _HELD
    return Asked(
        model,
        path,
        httpx.Request(
            scope["method"],
            httpx.URL(scheme="http", host="gateway.invalid", raw_path=target),
            headers=_headers(scope["headers"]),
        ),
        sent,
        route_of(scope["method"], path) if held else Route.ONCE,
        is_stream=held and path in _STREAMS and isinstance(said, dict) and said.get("stream") is True,
        gathers=twin is not None,
        demand=demand_of(work_of(scope["method"], path), said) if isinstance(said, dict) else Demand(Work.NONE),
        client=_client(scope),
    )


def _client(scope: Mapping[str, Any]) -> str:
    headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
    peer = scope.get("client")
    key = headers.get("authorization", "") or headers.get("x-api-key", "")
    return client_of(headers, key=key, peer=str(peer[0]) if peer else "")


def _headers(headers: Sequence[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    dropped = _NOT_PASSED_ON | of_connection(headers)
    return [(name, value) for name, value in headers if name.lower() not in dropped]


def of_connection(headers: Iterable[tuple[bytes, bytes]]) -> frozenset[bytes]:
    """Names, in lower case, of the headers that are said to be of this one connection alone (RFC 9110, 7.6.1)."""
    said = (value.split(b",") for name, value in headers if name.lower() == b"connection")
    return frozenset(token.strip().lower() for tokens in said for token in tokens)
