"""Error answers in llama-swap's shape.

`src` stays "llama-swap" on purpose: clients tell by it that the proxy, not the server, spoke.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from html import escape

_KINDS = {
    400: ("invalid_request_error", "bad_request"),
    401: ("authentication_error", "unauthorized"),
    404: ("invalid_request_error", "not_found"),
    405: ("invalid_request_error", "invalid_request"),
    409: ("invalid_request_error", "conflict"),
    413: ("invalid_request_error", "invalid_request"),
    429: ("rate_limit_error", "rate_limit_exceeded"),
    431: ("invalid_request_error", "invalid_request"),
    501: ("server_error", "internal_error"),
    502: ("server_error", "bad_gateway"),
    503: ("server_error", "service_unavailable"),
}


@dataclass(eq=False)
class Refusal(Exception):
    """The proxy's own answer instead of a server's."""

    status: int
    message: str
    code: str = ""
    headers: tuple[tuple[str, str], ...] = ()
    json_only: bool = False

    def body(self, accept: str) -> tuple[str, bytes]:
        """Content type and body for a client that accepts `accept`."""
        if not self.json_only and "text/plain" in accept:
            return "text/plain", f"llama-swap: {self.message}".encode()
        if not self.json_only and "text/html" in accept:
            return "text/html", f"<html><body><h1>llama-swap</h1><p>{escape(self.message)}</p></body></html>".encode()
        kind, code = _KINDS.get(self.status, ("server_error", "internal_error"))
        error = {"message": self.message, "type": kind, "param": None, "code": self.code or code}
        body = json.dumps({"src": "llama-swap", "error": error}, separators=(",", ":"), ensure_ascii=False)
        return "application/json", body.encode()


def no_model() -> Refusal:
    """The request names no model."""
    return Refusal(404, "no model id could be identified")


def unknown_model() -> Refusal:
    """The request names a model that is not configured."""
    return Refusal(404, "no router for requested model")


def too_many() -> Refusal:
    """The model's concurrencyLimit is reached; waiting requests count."""
    return Refusal(429, "Too many requests", "concurrency_limit", (("Retry-After", "1"),), json_only=True)


def failed(reason: str) -> Refusal:
    """The model could not be brought up, or was taken away from a waiting request."""
    return Refusal(500, f"unspecific error: {reason}")


def unauthorized() -> Refusal:
    """apiKeys is set and the request carries none of them."""
    return Refusal(
        401, "unauthorized: invalid or missing API key", headers=(("WWW-Authenticate", 'Basic realm="llama-swap"'),)
    )
