"""The load of a soak: front ends that are members, one-shot ones, and a caller of the gateway that knows nothing of us.

Each worker asks all kinds of requests in turn, each with an id of its own, and says when it asks and how that ended.
"""

from __future__ import annotations

import time
from contextlib import suppress
from math import inf
from typing import TYPE_CHECKING, Any, Final

from chaos.asking import KINDS, PROMPTS, Asked
from chaos.driving import Driven
from chaos.observer import NotObservedError
from chaos.soak.caller import PAUSE, TOKENS, GatewayCaller
from chaos.soak.seen import Ended

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from pathlib import Path

DEADLINE = 60.0  # budget: one request to its first byte, held and sent again; a load of a model takes seconds
START_LIMIT = 180.0  # budget: what comes before the load: an engine is built, models are read
REST_LIMIT = 60.0  # budget: from the first byte of an answer to its last; a dozen tokens on two busy cores take seconds
STREAMS_EACH: Final = 2
"""Workers of one member: two members, each with some, are two membership locks."""
CONTROLS: Final = 2
"""Times that a control is asked: what differs from itself is no control."""


class Load:
    """Members under load, and the caller of the gateway. `url` gives the gateway's URL: "" where there is to be none, None
    while it is not there yet. `repeatable`: roles whose server computes one request at a time, so that the same one has the
    same answer."""

    def __init__(
        self,
        config: Path,
        streams: int,
        url: Callable[[], str | None],
        *,
        gateway_deadline_s: float = DEADLINE,
        repeatable: Collection[str] = (),
    ) -> None:
        self._config, self._streams, self._repeatable = config, streams, repeatable
        self.members: list[Driven] = []
        self.one_shot: Driven | None = None
        self.gateway = GatewayCaller(url, gateway_deadline_s)
        self.controls: dict[tuple[str, int], str] = {}
        """The text of each kind and prompt, of what is repeatable."""
        self.uncontrolled: dict[str, str] = {}
        """Kinds without one, and why."""
        self._open: dict[str, tuple[Asked, Driven]] = {}
        self._ended: list[Ended] = []
        self._fresh: dict[tuple[str, str], float] = {}

    def start(self) -> None:
        """Have them open the engine, and ask over and over from then on. Raises NotObservedError."""
        for number in range(max(1, self._streams // STREAMS_EACH)):
            self.members.append(Driven(self._config, f"soak-{number}"))
        for member in self.members:
            member.hear("open", START_LIMIT)
        self._take_controls(self.members[0])
        for number, member in enumerate(self.members):
            turns = range(number, self._streams, len(self.members))
            worker = {"tokens": TOKENS, "deadline_s": DEADLINE, "pause_s": PAUSE}
            member.tell(do="load", workers=[{**worker, "turn": n} for n in turns])
        self.gateway.start(START_LIMIT)

    def _take_controls(self, member: Driven) -> None:
        """In calm, before anything is broken."""
        for kind in KINDS:
            if KINDS[kind].role not in self._repeatable:
                self.uncontrolled[kind] = (
                    "its server computes several requests in one batch, which changes the last digits"
                )
                continue
            for prompt in range(len(PROMPTS)):
                texts = {self._control(member, kind, prompt, time_) for time_ in range(CONTROLS)}
                if len(texts) > 1:
                    self.uncontrolled[kind] = (
                        f"in calm, {len(texts)} of {CONTROLS} answers to the same request differed"
                    )
                self.controls[kind, prompt] = texts.pop()
        self.controls = {key: text for key, text in self.controls.items() if key[0] not in self.uncontrolled}

    def _control(self, member: Driven, kind: str, prompt: int, number: int) -> str:
        identifier = f"control.{kind}.{prompt}.{number}"
        member.tell(do="ask", id=identifier, kind=kind, prompt=prompt, tokens=TOKENS, deadline_s=START_LIMIT)
        answer = member.hear("answer", START_LIMIT, id=identifier)
        if answer["outcome"] != "complete":
            raise NotObservedError(f"the control of {kind} was not answered: {answer['outcome']}: {answer['why']}")
        return str(answer["text"])

    def visit(self, number: int) -> None:
        """One front end that joins, asks and leaves."""
        self.one_shot = one = Driven(self._config, f"visitor-{number}")
        asked = Asked(f"visitor-{number}", "embeddings", number % len(PROMPTS), DEADLINE, time.monotonic())
        try:
            one.hear("open", DEADLINE)
            one.tell(do="ask", id=asked.id, kind=asked.kind, prompt=asked.prompt, deadline_s=DEADLINE)
            answer = one.hear("answer", DEADLINE + REST_LIMIT, id=asked.id)
            one.leave()
            self._ended.append(_ended(answer))
        except NotObservedError as error:
            words = str(error)
            self._ended.append(_failed(asked, words))
        finally:
            one.kill()
            self.one_shot = None

    def ended(self) -> list[Ended]:
        """Requests that ended since the last time."""
        self._take()
        found, self._ended = self._ended, []
        return found

    def open(self) -> list[tuple[str, float]]:
        """Requests that are under way, and by how many seconds they are past their time; infinite where their caller is
        gone."""
        self._take()
        now = time.monotonic()
        return [
            *(
                (asked.id, inf if caller.process.poll() is not None else now - latest(asked))
                for asked, caller in self._open.values()
            ),
            *((asked.id, now - latest(asked)) for asked in self.gateway.under_way()),
        ]

    @property
    def known(self) -> set[str]:
        """Ids of requests that are under way, or have ended and were not given out yet."""
        self._take()
        under_way = self._open.keys() | {one.id for one in self.gateway.under_way()}
        return {*under_way, *(one.id for one in self._ended)}

    def _take(self) -> None:
        for member in self.members:
            for said in member.taken("asked", "answer", "first token"):
                if said["what"] == "asked":
                    asked = Asked(*(said[name] for name in Asked._fields))
                    self._open[asked.id] = asked, member
                elif said["what"] == "answer":
                    self._open.pop(said["id"], None)
                    self._ended.append(_ended(said))
                    self._note(self._ended[-1])
        for one in self.gateway.taken():
            self._ended.append(one)
            self._note(one)

    def _note(self, one: Ended) -> None:
        if one.outcome == "complete":
            key = one.way, one.role
            self._fresh[key] = max(self._fresh.get(key, 0.0), one.began)

    def served_since(self, began: float, *, each_role: bool) -> bool:
        """Whether on each way a request that began after that has been answered. With `each_role` one of each role, which is
        for after a fault: what it caught has ended then."""
        self._take()
        ways = ["client", *(["gateway"] if self.gateway.is_asked else [])]
        enough = all if each_role else any
        roles = {kind.role for kind in KINDS.values()}
        return all(enough(self._fresh.get((way, role), 0.0) >= began for role in roles) for way in ways)

    @property
    def pids(self) -> list[int]:
        """Front ends that are members now."""
        return [member.process.pid for member in self.members if member.process.poll() is None]

    def calm(self) -> None:
        """Let what is open end. What ended meanwhile is in `ended`, what did not in `open`."""
        self.gateway.stop(DEADLINE + REST_LIMIT)
        for member in self.members:
            member.tell(do="calm")
        for member in self.members:
            with suppress(NotObservedError):
                member.hear("calm", DEADLINE + REST_LIMIT)

    def leave(self) -> None:
        """The members leave."""
        for member in self.members:
            with suppress(NotObservedError):
                member.leave()

    def kill(self) -> None:
        """End it, whatever it does."""
        self.gateway.stop(0)
        for one in [*self.members, *([self.one_shot] if self.one_shot else [])]:
            one.kill()


def latest(asked: Asked) -> float:
    """When it must be over, on the monotonic clock."""
    return asked.began + asked.deadline_s + REST_LIMIT


def _failed(asked: Asked, why: str) -> Ended:
    seconds = time.monotonic() - asked.began
    return Ended("client", asked.role, "failed", seconds, False, why, asked.id, asked.kind, asked.prompt, asked.began)


def _ended(answer: dict[str, Any]) -> Ended:
    return Ended(
        "client",
        answer["role"],
        answer["outcome"],
        answer["seconds"],
        first_byte=answer["first_s"] is not None,
        why=answer["why"],
        id=answer["id"],
        kind=answer["kind"],
        prompt=answer["prompt"],
        began=answer["began"],
        first_s=answer["first_s"],
        deadline_s=answer["deadline_s"],
        text=answer["text"],
    )
