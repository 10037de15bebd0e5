"""Front ends of a test: how they are told what to do (front.py is what they run)."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.engine.place import Place

HERE = Path(__file__).resolve().parent
PATIENCE = 60.0
"""How long a test waits for what must come. No test is meant to get near it."""


class OrderFailedError(AssertionError):
    """A front end could not do what it was told; `facts` is its error as data."""

    def __init__(self, facts: dict[str, Any]) -> None:
        super().__init__(facts)
        self.facts = facts


class Front:
    """A front end: front.py in a process of its own."""

    def __init__(self, place: Place, name: str, environment: Mapping[str, str]) -> None:
        self.place, self.name = place, name
        self.stderr_path = place.home / f"{name}.stderr"
        with self.stderr_path.open("ab") as stderr:
            self.process = subprocess.Popen(
                [*place.prefix, sys.executable, "-P", str(HERE / "front.py")],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                cwd=place.home,
                env=dict(environment),
            )
        self._count = 0
        self._heard: list[dict[str, Any]] = []
        self._pending = b""

    @property
    def pid(self) -> int:
        """Its pid."""
        return self.process.pid

    def begin(self, order: str, **arguments: Any) -> int:
        """Give an order; the number is for `first` and `result`."""
        assert self.process.stdin is not None
        self._count += 1
        self.process.stdin.write(json.dumps({"id": self._count, "do": order, **arguments}).encode() + b"\n")
        self.process.stdin.flush()
        return self._count

    def do(self, order: str, *, within: float = PATIENCE, **arguments: Any) -> dict[str, Any]:
        """Give an order and wait for what came of it. Raises OrderFailedError."""
        return self.result(self.begin(order, **arguments), within=within)

    def result(self, number: int, *, within: float = PATIENCE) -> dict[str, Any]:
        """What came of an order. Raises OrderFailedError."""
        answer = self._hear(number, ("done", "failed"), within)
        if "failed" in answer:
            raise OrderFailedError(answer["failed"])
        done: dict[str, Any] = answer["done"]
        return done

    def first(self, number: int, *, within: float = PATIENCE) -> str:
        """The first token of a stream."""
        return str(self._hear(number, ("first",), within)["first"])

    def open(self, *, wait: bool = True, **arguments: Any) -> str:
        """Get the engine; which rung it was."""
        done = self.do("open", config=str(self.place.config), program=self.name, wait=wait, **arguments)
        return str(done["how"])

    def ask(self, role: str, prompt: str, tokens: int = 8) -> str:
        """A completion that must succeed."""
        done = self.do("ask", role=role, prompt=prompt, tokens=tokens)
        assert done["status"] == 200, done["body"]
        return str(done["text"])

    def kill(self) -> None:
        """SIGKILL, and wait."""
        self.process.kill()
        self.process.wait(PATIENCE)

    def end(self) -> None:
        """Let it come to its end; kill it if it does not."""
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.kill()

    def _hear(self, number: int, kinds: tuple[str, ...], within: float) -> dict[str, Any]:
        deadline = time.monotonic() + within
        while True:
            for index, message in enumerate(self._heard):
                if message["id"] == number and any(kind in message for kind in kinds):
                    return self._heard.pop(index)
            self._read(deadline, number)

    def _read(self, deadline: float, number: int) -> None:
        assert self.process.stdout is not None
        readable, _, _ = select.select([self.process.stdout], [], [], max(0.0, deadline - time.monotonic()))
        assert readable, f"{self.name} said nothing of order {number} in time; the slot: {self.place.slot_words()}"
        data = os.read(self.process.stdout.fileno(), 65536)
        assert data, f"{self.name} ended without a word on order {number}: {self.stderr_path.read_text()}"
        *lines, self._pending = (self._pending + data).split(b"\n")
        self._heard += [json.loads(line) for line in lines]
