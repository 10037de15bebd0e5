"""One request of a load: what is sent, with its id, and how its answer is read. The same for members and for the gateway.

Every request carries an `X-Request-Id`, which client, gateway and proxy pass on: whoever served it can say so.
"""

from __future__ import annotations

import hashlib
import json
import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from supervisor.errors import InterruptedAnswerError, QueenrightError

if TYPE_CHECKING:
    from collections.abc import Callable

    import httpx

ID_HEADER: Final = "X-Request-Id"
SEED: Final = 7
PROMPTS: Final = (
    "Tell me a short story about bees.",
    "What does a beekeeper do in winter?",
    "Count from one to ten.",
    "Name three flowers.",
    "Why is honey sweet?",
)
"""Several, so that an answer that went to the wrong caller differs from the one it should have had."""


class Kind(NamedTuple):
    """A kind of request: who serves it, where it goes, and whether its answer streams."""

    role: str
    path: str
    stream: bool = False


KINDS: Final = {
    "chat stream": Kind("chat", "chat/completions", stream=True),
    "embeddings": Kind("embed", "embeddings"),
    "completions": Kind("chat", "completions"),
    "chat": Kind("chat", "chat/completions"),
    "completions stream": Kind("chat", "completions", stream=True),
}
TURN: Final = ("chat stream", "embeddings", "completions", "chat", "embeddings", "completions stream")
"""The order in which they are asked: whoever waits for each role to answer waits for three requests at most."""


class RefusedError(QueenrightError):
    """The engine said no, with a word on when to come again (503 and Retry-After)."""


class Reading:
    """An answer while it is read: `text` is what of it has come, also where it ends badly (of embeddings a digest of the
    vector), `pieces` how many tokens or numbers that is. `first` is called at its first piece."""

    def __init__(self, first: Callable[[], None] = lambda: None) -> None:
        self._first = first
        self.text = ""
        self.pieces = 0
        self.began_at: float | None = None
        """When the first piece came, on the monotonic clock."""

    def take(self, text: str) -> None:
        """A piece of it, also one without text: an answer has begun with it."""
        if self.began_at is None:
            self.began_at = time.monotonic()
            self._first()
        self.text += text
        self.pieces += bool(text)


def body_of(kind: Kind, prompt: str, tokens: int) -> dict[str, Any]:
    """What is asked: greedy and with a seed, so that the answer is a function of the prompt wherever one can be."""
    if kind.path == "embeddings":
        return {"model": kind.role, "input": prompt}
    asked = {"messages": [{"role": "user", "content": prompt}]} if "chat" in kind.path else {"prompt": prompt}
    return {"model": kind.role, **asked, "max_tokens": tokens, "temperature": 0, "seed": SEED, "stream": kind.stream}


def ask(
    http: httpx.Client,
    base: str,
    kind: Kind,
    prompt: str,
    reading: Reading,
    *,
    identifier: str,
    tokens: int,
    extensions: dict[str, Any] | None = None,
) -> None:
    """One request, read into `reading` to its end.

    Raises RefusedError, InterruptedAnswerError for a stream that tells of its end, RuntimeError for any other answer that is
    none and for a stream without an end marker, and what `http` raises.
    """
    body, headers = body_of(kind, prompt, tokens), {ID_HEADER: identifier}
    if not kind.stream:
        response = http.post(f"{base}/{kind.path}", json=body, headers=headers, extensions=extensions)
        _check(response)
        found = response.json()
        if kind.path == "embeddings":
            vector = json.dumps(found["data"][0]["embedding"])
            reading.take(hashlib.sha256(vector.encode()).hexdigest()[:16])
            reading.pieces = len(found["data"][0]["embedding"])
        else:
            reading.take(_said(found["choices"][0]))
            reading.pieces = found["usage"]["completion_tokens"]
        return
    with http.stream("POST", f"{base}/{kind.path}", json=body, headers=headers, extensions=extensions) as response:
        _check(response)
        _read_events(response, reading)


def _read_events(response: httpx.Response, reading: Reading) -> None:
    """To the end of the body: a caller who hangs up at the end marker looks to a server like one that left."""
    is_whole = False
    for line in response.iter_lines():
        if is_whole and line:
            raise RuntimeError(f"the stream went on after its end marker: {line[:100]}")
        is_whole = is_whole or line == "data: [DONE]"
        if not line.startswith("data: {"):
            continue
        event = json.loads(line[6:])
        if "error" in event:
            words = json.dumps(event["error"])[:300]
            if reading.began_at is not None:
                raise InterruptedAnswerError(f"the stream told of its end: {words}", "ask again")
            raise RefusedError(f"the stream began with an error: {words}", "ask again later")
        if choices := event.get("choices"):
            reading.take(_said(choices[0]))
    if not is_whole:
        raise RuntimeError("the stream ended without an end marker and without an error")


def _said(choice: dict[str, Any]) -> str:
    """The text of a choice, in any of its shapes."""
    inner = choice.get("delta") or choice.get("message") or choice
    return str(inner.get("content") or inner.get("text") or "")


def _check(response: httpx.Response) -> None:
    if not response.is_error:
        return
    words = response.read().decode("utf-8", "replace")
    if response.status_code == 503 and response.headers.get("retry-after", "").isdigit() and words:
        raise RefusedError(f"status 503: {words[:300]}", f"ask again in {response.headers['retry-after']} s")
    raise RuntimeError(f"status {response.status_code}: {words[:600]}")


class Asked(NamedTuple):
    """A request as its caller keeps it: `began` is on the monotonic clock, which all processes share (clock_gettime(2)).
    `prompt` is a number of PROMPTS, `deadline_s` what it may take to its first byte or its refusal."""

    id: str
    kind: str
    prompt: int
    deadline_s: float
    began: float

    @classmethod
    def in_turn(cls, name: str, number: int, deadline_s: float) -> Asked:
        """The next of a caller who asks all kinds in turn, and all prompts."""
        prompt = number // len(TURN) % len(PROMPTS)
        return cls(f"{name}.{number}", TURN[number % len(TURN)], prompt, deadline_s, time.monotonic())

    @property
    def role(self) -> str:
        """Who serves it."""
        return KINDS[self.kind].role


def carry_out(
    asked: Asked,
    http: httpx.Client,
    base: str,
    reading: Reading,
    tokens: int,
    *,
    lost: str,
    extensions: dict[str, Any] | None = None,
) -> tuple[str, str]:
    """Ask, and say how it ended (`seen.Ended.outcome`) and why. `lost` is what a lost connection amounts to: a caller of the
    gateway is told of the end by it, a member never is."""
    import httpx

    kind, prompt = KINDS[asked.kind], PROMPTS[asked.prompt]
    try:
        ask(http, base, kind, prompt, reading, identifier=asked.id, tokens=tokens, extensions=extensions)
    except InterruptedAnswerError as error:
        return "interrupted", str(error)
    except RefusedError as error:
        return "refused", str(error)
    except httpx.ConnectError as error:
        return "unreachable", f"{type(error).__name__}: {error}"
    except httpx.TransportError as error:
        return lost, f"{type(error).__name__}: {error}"
    except Exception as error:  # noqa: BLE001 - whatever it is, it is a request that failed, and is counted
        return "failed", f"{type(error).__name__}: {error}"
    return "complete", ""
