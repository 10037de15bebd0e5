"""What `queenright demo` tells, and what of it was observed."""

from __future__ import annotations

import time
from typing import Any

from chaos.observer import NotObservedError


class Story:
    """What is told, and what was observed."""

    def __init__(self, stream: Any) -> None:
        self._stream, self._began = stream, time.monotonic()
        self.steps: list[dict[str, Any]] = []

    def step(self, title: str) -> None:
        """A new step begins. It counts as observed once `seen` says so."""
        self.steps.append({"step": len(self.steps) + 1, "title": title, "observed": False, "facts": {}})
        self._write(f"\n{len(self.steps)}. {title}")

    def say(self, text: str) -> None:
        """Something worth telling."""
        self._write(f"   {text}")

    def fact(self, name: str, value: Any, text: str) -> None:
        """Something that was measured or seen."""
        self.steps[-1]["facts"][name] = value
        self.say(f"{time.monotonic() - self._began:7.2f} s  {text}")

    def seen(self) -> None:
        """The step's claims were all observed."""
        self.steps[-1]["observed"] = True

    def fail(self, why: str) -> None:
        """The step's claim was not observed."""
        self.steps[-1]["failure"] = why
        self.say(f"NOT OBSERVED: {why}")

    @property
    def all_observed(self) -> bool:
        """Whether all five steps were."""
        return len(self.steps) == 5 and all(step["observed"] for step in self.steps)

    def end(self) -> None:
        """The last line."""
        count = sum(step["observed"] for step in self.steps)
        self._write(f"\n{count} of 5 steps observed, {time.monotonic() - self._began:.1f} s")

    def _write(self, text: str) -> None:
        print(text, file=self._stream, flush=True)


def require(holds: bool, claim: str) -> None:
    """Raise NotObservedError unless the claim holds."""
    if not holds:
        raise NotObservedError(claim)


def require_there(found: Any, what: str) -> Any:
    """The same for something that must be there."""
    require(found is not None, f"there is a {what}")
    return found
