"""What the gateway itself says to a caller: errors in OpenAI's shape, and the comments of a stream that waits. Pure."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from supervisor.contract import State

if TYPE_CHECKING:
    from collections.abc import Iterable

COMMENTS_UP = frozenset({State.RUNNING, State.DEGRADED, None})


def encoded(body: object) -> bytes:
    """JSON of any text, half surrogates included, in as few bytes as it takes."""
    return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")


def error(message: str, kind: str, code: str, **facts: Any) -> bytes:
    """A body."""
    return json.dumps({"error": {"message": message, "type": kind, "param": None, "code": code, **facts}}).encode()


def unknown_model(name: object, names: Iterable[str]) -> bytes:
    """No model has that name. It is shown short: a client may send one of megabytes, or no name at all in its place."""
    what = f"there is no model {name[:100]!r}" if name and isinstance(name, str) else "the request names no model"
    return error(f"{what}; there are: {', '.join(names)}", "invalid_request_error", "model_not_found")


def interrupted(what: str) -> bytes:
    """An answer is broken, or what became of the request is not known."""
    return error(what, "interrupted_error", "interrupted")


def event(body: bytes) -> bytes:
    """The body of an error as a server-sent event, as OpenAI's libraries read it. No `[DONE]` follows one."""
    try:
        found = json.loads(body)
    except ValueError:
        found = None
    if not isinstance(found, dict) or "error" not in found:
        found = {"error": {"message": body.decode("utf-8", "replace")[:2000], "type": "server_error", "code": None}}
    return b"event: error\ndata: " + json.dumps(found).encode() + b"\n\n"


def unread_failure(tail: bytes) -> bytes:
    """An error that whoever reads events does not see, as one that he does; b"" where there is none. llama-server from before
    2025 says it in a field `error`, and unknown fields are ignored (WHATWG HTML, 9.2.6)."""
    for line in tail.splitlines():
        if line.startswith(b"error:"):
            return event(b'{"error":%b}' % line.removeprefix(b"error:"))
    return b""


def comment(group: str, state: State | None, reason: str, seconds: float) -> bytes:
    """One line that a client ignores, for people who look at the stream (WHATWG HTML, 9.2.6)."""
    if state in COMMENTS_UP:
        text = f"waiting for the first token of group {group}"
    else:
        text = f"queued: group {group} is {state}" + (f" ({reason})" if reason else "")
    return f": {' '.join(text.split())}; {seconds:.0f} s so far\n\n".encode()


def queued(group: str, place: str, seconds: float) -> bytes:
    """The same while others are before it."""
    return f": queued for group {group}: {place}; {seconds:.0f} s so far\n\n".encode()
