"""What one attempt of a request means for the caller: the single policy of the client library and of the gateway.

Pure: `decide` looks at how an attempt went and says what comes next; who sends, waits and tells the caller is elsewhere
(`supervisor.transport`). docs/concepts.md ("What a request meets") says it in a few words,
docs/reference/requests.md in tables that a test compares with this module.

Two rules stand above the rest: nothing is sent again once a byte of its answer has reached the caller, and a request
that was sent REPLAY_ATTEMPTS times to somebody who may have worked on it is not sent once more.
"""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Any, Final, assert_never

from attrs import frozen

from supervisor import budgets
from supervisor.stream_watch import Ending


class Route(StrEnum):
    """Whether a request may be sent again after its bytes were sent."""

    REPLAYABLE = "replayable"
    ONCE = "once"


class Outcome(StrEnum):
    """How one attempt ended, as seen on the connection."""

    ANSWER = "answer"
    """Status, headers and (unless it streams) the whole body are there."""
    REFUSED = "refused"
    """Nobody listens on the port: nothing was sent, and the generation that listened is no more."""
    UNREACHED = "unreached"
    """No connection came about in time, for another reason than a refusal: nothing was sent."""
    CLOSED = "closed"
    """Sent; the peer closed before the headers were complete. A keep-alive connection that died unseen is this too."""
    RESET = "reset"
    """Sent; the connection was reset before the headers were complete."""
    GARBAGE = "garbage"
    """Sent; what came back is not HTTP: somebody else has the port."""
    BODY_CUT = "body_cut"
    """Sent; the body of an answer that does not stream is not whole."""
    STREAM_CUT = "stream_cut"
    """Sent; the connection ended in the middle of a stream."""
    STREAM_ENDED = "stream_ended"
    """Sent; the stream ended as HTTP wants it. Says nothing about the answer: llama-swap ends a cut one like that."""
    SILENT = "silent"
    """Sent; nothing (more) came until the caller's deadline."""


class Sender(StrEnum):
    """Who wrote an answer."""

    SERVER = "server"
    LOADING = "loading"
    """llama-server's 503 while it loads: it looked at nothing of the request."""
    PROXY = "proxy"
    NOBODY = "nobody"
    """The body is empty: llama-swap says 502 like that when its server died under the request."""


class Action(StrEnum):
    """What comes next."""

    DELIVER = "deliver"
    HOLD_AND_SEND_AGAIN = "hold_and_send_again"
    WAIT_AS_TOLD = "wait_as_told"
    RESUME = "resume"
    """Ask for the rest of the answer, and hand it on behind what was delivered (the gateway's, where it is told to)."""
    INTERRUPTED = "interrupted"
    """Raise: the caller's answer is broken, or what became of its request is unknown. Never sent again by us."""
    GIVE_UP = "give_up"
    """503 with the reason."""


@frozen
class Attempt:
    """One attempt, as it ended. `first_byte`: a byte of the answer has reached the caller. `told_s`: `Retry-After`."""

    outcome: Outcome
    status: int = 0
    sender: Sender = Sender.SERVER
    ending: Ending = Ending.OPEN
    first_byte: bool = False
    told_s: float | None = None


@frozen
class Decision:
    """What comes next and why. `counts`: the attempt is one of the REPLAY_ATTEMPTS. `gone`: this generation is not
    behind its URL any more, so another one must be waited for. `wait_s` is for WAIT_AS_TOLD, in seconds."""

    action: Action
    reason: str
    counts: bool
    gone: bool = False
    wait_s: float = 0.0


WORDS: Final = {
    Outcome.ANSWER: "answered",
    Outcome.REFUSED: "the connection was refused",
    Outcome.UNREACHED: "no connection came about",
    Outcome.CLOSED: "the connection was closed before an answer came",
    Outcome.RESET: "the connection was reset before an answer came",
    Outcome.GARBAGE: "what answered does not speak HTTP",
    Outcome.BODY_CUT: "the answer was cut",
    Outcome.STREAM_CUT: "the stream was cut",
    Outcome.STREAM_ENDED: "the stream ended without its end marker",
    Outcome.SILENT: "no answer came within the deadline",
}


def decide(route: Route, attempt: Attempt, *, counted: int, left_s: float, resumes_left: int = 0) -> Decision:
    """What follows from `attempt`, after `counted` earlier ones that count and with `left_s` seconds to the deadline.
    `resumes_left`: how often the answer may still be continued, 0 where it cannot be.

    Total: there is a decision for every combination of values, and it never raises.
    """
    outcome = attempt.outcome
    why = WORDS[outcome]
    match outcome:
        case Outcome.ANSWER:
            return _answered(route, attempt, counted, left_s)
        case Outcome.STREAM_CUT | Outcome.STREAM_ENDED if attempt.ending is Ending.FAILED and attempt.first_byte:
            # Its caller may have read why, or taken an event without an answer in it for one more piece of it.
            return Decision(Action.INTERRUPTED, "the server said in the stream that it failed", counts=True)
        case Outcome.STREAM_ENDED if attempt.ending is not Ending.OPEN:
            return Decision(Action.DELIVER, "the stream has come to its end", counts=True)
        case Outcome.STREAM_CUT if attempt.ending is Ending.TERMINATED:
            return Decision(Action.DELIVER, "the stream was complete before it was cut", counts=True)
        case Outcome.STREAM_CUT | Outcome.STREAM_ENDED if (
            attempt.first_byte
            and route is Route.REPLAYABLE
            and attempt.ending is Ending.OPEN
            and resumes_left > 0
            and left_s > 0
        ):
            return Decision(Action.RESUME, why, counts=True)
        case _ if attempt.first_byte:
            return Decision(Action.INTERRUPTED, f"{why} after part of it had been delivered", counts=True)
        case Outcome.REFUSED:
            return _again(why, counted, left_s, counts=False, gone=True)
        case Outcome.UNREACHED:
            return _again(why, counted, left_s, counts=False)
        case _ if route is Route.ONCE:
            return Decision(Action.INTERRUPTED, f"{why}; what became of the request is not known", counts=True)
        case Outcome.SILENT:
            return Decision(Action.GIVE_UP, why, counts=True)
        case Outcome.GARBAGE:
            return _again(why, counted, left_s, gone=True)
        case Outcome.CLOSED | Outcome.RESET | Outcome.BODY_CUT | Outcome.STREAM_CUT | Outcome.STREAM_ENDED:
            return _again(why, counted, left_s)
        case _ as never:
            assert_never(never)


def _answered(route: Route, attempt: Attempt, counted: int, left_s: float) -> Decision:
    status, sender = attempt.status, attempt.sender
    passed_on = Decision(Action.DELIVER, f"answered with status {status}", counts=True)
    if attempt.first_byte or route is Route.ONCE:
        return passed_on
    match status, sender:
        case 429, _:  # llama-server has none of its own, and llama-swap v250's does not say whose it is
            # "At once" would be asked again in a tight loop, since this one does not count.
            told = attempt.told_s if attempt.told_s is not None and attempt.told_s > 0 else budgets.TOLD_WAIT
            why = "the proxy has as many requests as it takes"
            if counted >= budgets.REPLAY_ATTEMPTS or not told < left_s:
                return Decision(Action.GIVE_UP, why, counts=False, wait_s=told)
            return Decision(Action.WAIT_AS_TOLD, why, counts=False, wait_s=told)
        case 503, Sender.LOADING:
            return _again("the model is loading", counted, left_s, counts=False)
        case 503, Sender.PROXY:
            return _again("the proxy says that its server is not ready", counted, left_s, counts=False)
        case 500, Sender.PROXY:
            return _again("the proxy could not start its server", counted, left_s)
        case 502, Sender.PROXY | Sender.NOBODY:
            return _again("the server behind the proxy died", counted, left_s)
        case 500 | 503, Sender.NOBODY:
            return _again(f"status {status} without a word", counted, left_s)
        case 401, Sender.PROXY:
            # The key is ours, not the caller's: the proxy on this port is another one than we were told about.
            return _again("the proxy does not know our key", counted, left_s, gone=True)
        case _:
            return passed_on


def _again(why: str, counted: int, left_s: float, *, counts: bool = True, gone: bool = False) -> Decision:
    """Hold and send again, unless the tries or the time are used up."""
    sent = counted + counts
    if sent >= budgets.REPLAY_ATTEMPTS:
        return Decision(Action.GIVE_UP, f"{why}; it was sent {sent} times already", counts=counts, gone=gone)
    if not left_s > 0:
        return Decision(Action.GIVE_UP, f"{why}; the deadline has passed", counts=counts, gone=gone)
    return Decision(Action.HOLD_AND_SEND_AGAIN, why, counts=counts, gone=gone)


# --- what is asked, and who answers ---------------------------------------------------------------------------------

_NO_SIDE_EFFECTS: Final = tuple(
    f"/{name}"
    for name in (
        "apply-template",
        "chat/completions",
        "completion",
        "completions",
        "detokenize",
        "embedding",
        "embeddings",
        "infill",
        "messages",
        "messages/count_tokens",
        "rerank",
        "reranking",
        "responses",
        "tokenize",
    )
)
_REPLAYABLE: Final = frozenset((*_NO_SIDE_EFFECTS, *(f"/v1{name}" for name in _NO_SIDE_EFFECTS)))


def route_of(method: str, path: str) -> Route:
    """The route class of a request by method and URL path (without query).

    `/upstream/<model>/…` is what llama-swap hands to the model's server as `/…`; a model's name may hold slashes.
    """
    if method.upper() != "POST":
        return Route.ONCE
    path = path.rstrip("/")
    if path.startswith("/upstream/"):
        served = path.removeprefix("/upstream/").partition("/")[2]
        return Route.REPLAYABLE if f"/{served}".endswith(_NO_SIDE_EFFECTS) else Route.ONCE
    return Route.REPLAYABLE if path in _REPLAYABLE else Route.ONCE


def sender_of(body: bytes) -> Sender:
    """Who wrote the body of an error. llama-swap up to v250 puts a string in `error`, later ones an object; both carry
    `src`, and for `Accept: text/plain` the text starts with its name (measured). Never raises."""
    text = body.strip()
    if not text:
        return Sender.NOBODY
    if text.startswith((b"llama-swap:", b"llama-swap-error:")):
        return Sender.PROXY
    try:
        said: Any = json.loads(text)
    except (ValueError, RecursionError):
        return Sender.SERVER
    if not isinstance(said, dict):
        return Sender.SERVER
    if said.get("src") == "llama-swap":
        return Sender.PROXY
    error = said.get("error")
    if isinstance(error, dict) and error.get("message") == "Loading model":
        return Sender.LOADING
    return Sender.SERVER
