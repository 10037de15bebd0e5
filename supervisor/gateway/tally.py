"""What became of the gateway's requests, counted. Pure, and owned by the keeper's gateway: a keeper begins at nothing.

Who forwards a request says what happens to it; nobody else counts.

    with tally.asked(group) as asking:
        asking.runs() … asking.held() … asking.replayed() … asking.tokens(12, 34)
        asking.ended(Ending.ANSWERED)
"""

from __future__ import annotations

from collections import Counter
from enum import StrEnum
from typing import Final, Self


class Ending(StrEnum):
    """How a request ended, as its caller saw it."""

    ANSWERED = "answered"
    """Whole, and with a status below 400."""
    REJECTED = "rejected"
    """4xx: the server's own, or ours for a prompt that does not fit."""
    ERROR = "error"
    """The server said 5xx, or in a stream that it failed, and another try would not have helped; or the gateway itself failed."""
    UNAVAILABLE = "unavailable"
    """Held in vain, until its deadline."""
    OVERLOADED = "overloaded"
    """Sent away with 429: too many waited already."""
    INTERRUPTED = "interrupted"
    """Cut after its first byte was delivered."""
    LEFT = "left"
    """The caller hung up first."""


SAID: Final = frozenset({Ending.ANSWERED, Ending.REJECTED, Ending.ERROR})
"""Endings after which no server has anything more to do for the request."""


def ending_of(status: int) -> Ending:
    """Of a whole answer with that status."""
    return Ending.ANSWERED if status < 400 else Ending.REJECTED if status < 500 else Ending.ERROR


class Asking:
    """One request on its way. Leaving the `with` without `ended` means that the caller went away, or, by an exception,
    that the gateway failed."""

    def __init__(self, tally: Tally, group: str) -> None:
        self._tally, self._group = tally, group
        self._is_held = False
        self.ending: Ending | None = None
        self._in = tally.waiting
        self._in[group] += 1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.ended(Ending.ERROR if kind is not None and issubclass(kind, Exception) else Ending.LEFT)

    def runs(self) -> None:
        """It was given to the engine: it waits for its turn no more."""
        self._be_in(self._tally.running)

    def waits(self) -> None:
        """It waits for its turn again."""
        self._be_in(self._tally.waiting)

    def held(self) -> None:
        """It is held because its group is down. A request counts once, however often that happens."""
        if not self._is_held:
            self._is_held = True
            self._tally.held[self._group] += 1

    def replayed(self) -> None:
        """It was sent once more."""
        self._tally.replayed[self._group] += 1

    def tokens(self, prompt: int, completion: int) -> None:
        """What the server says that it read and wrote (`usage` of its answer)."""
        self._tally.prompt_tokens[self._group] += max(0, prompt)
        self._tally.completion_tokens[self._group] += max(0, completion)

    def ended(self, how: Ending) -> None:
        """It is over. The first word on that counts."""
        if self.ending is None:
            self.ending = how
            self._in[self._group] -= 1
            self._tally.ended[self._group, how] += 1

    def _be_in(self, place: Counter[str]) -> None:
        if self.ending is None and place is not self._in:
            self._in[self._group] -= 1
            self._in = place
            self._in[self._group] += 1


class Tally:
    """All of them, by group."""

    def __init__(self) -> None:
        self.waiting: Counter[str] = Counter()
        self.running: Counter[str] = Counter()
        self.ended: Counter[tuple[str, Ending]] = Counter()
        self.held: Counter[str] = Counter()
        self.replayed: Counter[str] = Counter()
        self.prompt_tokens: Counter[str] = Counter()
        self.completion_tokens: Counter[str] = Counter()
        self.refusals: Counter[str] = Counter()
        """Requests that were not let in, by the code of the refusal."""

    def asked(self, group: str) -> Asking:
        """A request for that group came in."""
        return Asking(self, group)

    def refused(self, code: str) -> None:
        """A request was not let in."""
        self.refusals[code] += 1
