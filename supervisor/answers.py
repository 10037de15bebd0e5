"""Between HTTP and the request policy: what an exception or an answer amounts to, and the 503 that we write."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import h11
import httpcore
import httpx

from supervisor import budgets
from supervisor.request_policy import Outcome

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from supervisor.contract import State


class StrangerError(httpcore.ConnectError):
    """Who listens there is none of the engine: what served there has ended. Nothing was sent."""


def unavailable(
    *,
    group: str,
    state: State | None,
    reason: str,
    next_step: str,
    tried: Sequence[str],
    seconds: float,
    told_s: float = 0.0,
) -> httpx.Response:
    """The 503 of a request that was held in vain, in OpenAI's error shape. `seconds` it was held; `told_s` is what the
    proxy said about when to come again.

    `x-should-retry` is what OpenAI's libraries ask before they try again by themselves: the request was held for as
    long as its caller allows, or sent as often as it may be.
    """
    error: dict[str, Any] = {
        "message": f"group {group} ({state or 'state unknown'}): {reason}",
        "type": "unavailable_error",
        "param": None,
        "code": "engine_unavailable",
        "group": group,
        "state": state,
        "reason": reason,
        "next_step": next_step,
        "tried": list(tried),
        "seconds": round(seconds, 3),
    }
    headers = {
        "content-type": "application/json",
        "retry-after": str(max(budgets.RETRY_AFTER, round(told_s))),
        "x-should-retry": "false",
    }
    return httpx.Response(503, headers=headers, stream=httpx.ByteStream(json.dumps({"error": error}).encode()))


def outcome_of(error: Exception) -> Outcome:
    """What an attempt that ended without complete headers amounts to; `error` is of streams.LOST."""
    causes = _causes(error)
    match error:
        case StrangerError():
            return Outcome.REFUSED
        case httpcore.ConnectError() if any(isinstance(cause, ConnectionRefusedError) for cause in causes):
            return Outcome.REFUSED
        case httpcore.ConnectError() | httpcore.ConnectTimeout() | httpcore.PoolTimeout():
            return Outcome.UNREACHED
        case httpcore.TimeoutException():
            return Outcome.SILENT
        case httpcore.RemoteProtocolError() if any(isinstance(cause, h11.RemoteProtocolError) for cause in causes):
            return Outcome.GARBAGE
        case httpcore.RemoteProtocolError():
            return Outcome.CLOSED
        case _:
            return Outcome.RESET


def broken_off(error: BaseException | None, otherwise: Outcome) -> Outcome:
    """What an answer amounts to that had begun, and ended with `error`, of streams.LOST: SILENT where its time was over, else
    what is given."""
    return Outcome.SILENT if isinstance(error, httpcore.TimeoutException) else otherwise


def _causes(error: BaseException) -> list[BaseException]:
    """The error and what led to it. Trio's connect has a group, of one error for each address that was tried."""
    causes = [error]
    for cause in causes:
        further = [cause.__cause__ or cause.__context__]
        if isinstance(cause, BaseExceptionGroup):
            further += cause.exceptions
        causes += [one for one in further if one is not None and one not in causes]
    return causes


def is_cut(headers: Mapping[bytes, bytes], status: int, body: bytes) -> bool:
    """Whether a body that HTTP calls whole is not: JSON that came in chunks, without a length to check it against.
    The names of `headers` are in lower case."""
    if b"content-length" in headers or not headers.get(b"content-type", b"").startswith(b"application/json"):
        return False
    try:
        json.loads(body)
    except ValueError:
        return bool(body) or 200 <= status < 300
    return False
