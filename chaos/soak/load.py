"""The load of a soak: front ends that are members, one-shot ones, and a caller of the gateway that knows nothing of us."""

from __future__ import annotations

import json
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from chaos import observer
from chaos.driving import Driven
from chaos.frontend import PROMPT
from chaos.observer import NotObservedError
from chaos.soak.seen import Ended

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

DEADLINE = 180.0  # budget: one request, held and sent again; on two busy cores a load of a model takes seconds
TOKENS = 12
KINDS: Final[list[dict[str, Any]]] = [
    {"role": "chat", "stream": True, "tokens": TOKENS},
    {"role": "chat", "tokens": TOKENS},
    {"role": "embed"},
]
"""What the members ask, in turn."""


class Load:
    """Members under load, and the caller of the gateway. `url` gives the gateway's URL: "" where there is to be none, None
    while it is not there yet."""

    def __init__(self, config: Path, streams: int, url: Callable[[], str | None]) -> None:
        self._config, self._streams = config, streams
        self.members: list[Driven] = []
        self.one_shot: Driven | None = None
        self._gateway = GatewayCaller(url)
        self._read: list[int] = []

    def start(self) -> None:
        """Have them open the engine, and ask over and over from then on. Raises NotObservedError."""
        for number in range(max(1, self._streams // len(KINDS))):
            self.members.append(Driven(self._config, f"soak-{number}"))
            self._read.append(0)
        for number, member in enumerate(self.members):
            member.hear("open", DEADLINE)
            workers = [KINDS[n % len(KINDS)] for n in range(number, self._streams, len(self.members))]
            member.tell(do="load", workers=workers)
        self._gateway.start()

    def visit(self, number: int) -> list[Ended]:
        """One front end that joins, asks and leaves."""
        self.one_shot = one = Driven(self._config, f"visitor-{number}")
        try:
            one.hear("open", DEADLINE)
            one.tell(do="ask", id="once", role="embed")
            answer = one.hear("answer", DEADLINE, id="once")
            one.leave()
            return [_ended(answer)]
        except NotObservedError as error:
            return [Ended("client", "embed", "failed", DEADLINE, why=str(error))]
        finally:
            one.kill()
            self.one_shot = None

    def ended(self) -> list[Ended]:
        """Requests that ended since the last time."""
        found = self._gateway.taken()
        for number, member in enumerate(self.members):
            answers = member.answers()
            found += [_ended(answer) for answer in answers[self._read[number] :]]
            self._read[number] = len(answers)
        return found

    def served_since(self, began: float) -> bool:
        """Whether each kind of request that began after that has been answered: what a fault caught has ended then."""
        answers = [one for member in self.members for one in member.answers() if one["began"] >= began]
        fresh = {(one["role"], one["stream"]) for one in answers if one["outcome"] == "complete"}
        wanted = {(kind["role"], kind.get("stream", False)) for kind in KINDS[: self._streams]}
        return wanted <= fresh and (not self._gateway.is_asked or self._gateway.last_began >= began)

    @property
    def pids(self) -> list[int]:
        """Front ends that are members now."""
        return [member.process.pid for member in self.members if member.process.poll() is None]

    def stop(self) -> list[Ended]:
        """Let what is open end, and leave. Returns what ended meanwhile."""
        self._gateway.stop()
        for member in self.members:
            member.tell(do="calm")
        for member in self.members:
            with suppress(NotObservedError):
                member.hear("calm", DEADLINE)
        found = self.ended()
        for member in self.members:
            with suppress(NotObservedError):
                member.leave()
        return found

    def kill(self) -> None:
        """End it, whatever it does."""
        self._gateway.stop()
        for one in [*self.members, *([self.one_shot] if self.one_shot else [])]:
            one.kill()


def _ended(answer: dict[str, Any]) -> Ended:
    why = str(answer.get("why", ""))
    outcome = answer["outcome"]
    if outcome == "failed" and why.startswith("RuntimeError: status 503") and "engine_unavailable" in why:
        outcome = "refused"
    first = answer.get("first_s") is not None
    return Ended("client", answer["role"], outcome, answer["seconds"], first_byte=first, why=why)


class GatewayCaller:
    """Streams from the gateway as any OpenAI client does, over and over, in a thread."""

    def __init__(self, url: Callable[[], str | None]) -> None:
        self._find, self._url, self._stop = url, "", threading.Event()
        self._lock, self._ended = threading.Lock(), list[Ended]()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.last_began = 0.0
        """When the last request that was answered in full began."""

    def start(self) -> None:
        """Once there is a gateway, which comes after the engine's own processes; never where there is to be none. Raises
        NotObservedError: a load that was not there would be no proof."""

        def found() -> tuple[str] | None:
            url = self._find()
            return None if url is None else (url,)

        (self._url,) = observer.wait_until("the gateway is there", found, DEADLINE)
        if self._url:
            self._thread.start()

    @property
    def is_asked(self) -> bool:
        """Also where its thread came to an end: then nothing is answered any more, and that is seen."""
        return bool(self._url)

    def taken(self) -> list[Ended]:
        """Requests that ended since the last time."""
        with self._lock:
            found, self._ended = self._ended, []
        return found

    def stop(self) -> None:
        """After the request that is under way."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join(DEADLINE)

    def _run(self) -> None:
        while not self._stop.is_set():
            began = time.monotonic()
            one = ask(self._url, began)
            if one.outcome == "complete":
                self.last_began = began
            else:
                self._url = self._find() or self._url
                if one.outcome != "interrupted":
                    self._stop.wait(0.2)  # a gateway that refuses is not to be asked in a tight loop
            with self._lock:
                self._ended.append(one)


def ask(url: str, began: float) -> Ended:
    """One streamed answer of the gateway, and how it ended. Whole is what has an end marker, and nothing else."""
    import httpx

    body = {
        "model": "chat", "stream": True, "max_tokens": TOKENS, "messages": [{"role": "user", "content": PROMPT}],
    }  # fmt: skip
    first, marker, said = False, False, ""

    def ended(outcome: str, why: str = "") -> Ended:
        return Ended("gateway", "chat", outcome, time.monotonic() - began, first_byte=first, why=why)

    try:
        with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=DEADLINE, trust_env=False) as answer:
            if answer.status_code != 200:
                said = answer.read().decode("utf-8", "replace")
                refused = answer.status_code == 503 and "retry-after" in answer.headers and bool(said)
                return ended("refused" if refused else "failed", f"status {answer.status_code}: {said[:300]}")
            for line in answer.iter_lines():
                if line.startswith("data: {"):
                    event = json.loads(line[6:])
                    if "error" in event:
                        return ended("interrupted" if first else "refused", json.dumps(event["error"])[:300])
                    first = first or '"content"' in line
                elif line == "data: [DONE]":
                    marker = True
    except httpx.ConnectError as error:
        return ended("unreachable", f"{type(error).__name__}: {error}")
    except httpx.HTTPError as error:
        return ended("interrupted", f"{type(error).__name__}: {error}")
    return ended("complete") if marker else ended("failed", "it ended without a marker and without an error")
