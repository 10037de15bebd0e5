"""Real child processes for tests: a Python program that talks by lines, and is gone when the `with` ends."""

from __future__ import annotations

import select
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from types import TracebackType

ROOT = Path(__file__).resolve().parents[2]

PATIENCE_S = 30.0
"""How long a test waits for a line or an end before it fails. No test is meant to come near it."""


class Child:
    """`python -c code *arguments`, started in the checkout. Says lines to us, hears lines from us."""

    def __init__(self, code: str, *arguments: object, environment: dict[str, str] | None = None) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-u", "-c", code, *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
            env=environment,
        )

    @property
    def pid(self) -> int:
        return self.process.pid

    def hear(self) -> str:
        """The next line it says. Lines are read unbuffered, so that waiting for one is waiting for the pipe."""
        assert self.process.stdout is not None
        line = b""
        while not line.endswith(b"\n"):
            ready, _, _ = select.select([self.process.stdout], [], [], PATIENCE_S)
            assert ready, f"nothing said within {PATIENCE_S} s, after {line!r}"
            byte = self.process.stdout.raw.read(1)  # type: ignore[attr-defined]
            assert byte, f"the child ended instead of speaking, after {line!r}"
            line += byte
        return line.decode().rstrip("\n")

    def say(self, text: str = "") -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(text.encode() + b"\n")
        self.process.stdin.flush()

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        self.process.kill()
        self.process.wait(PATIENCE_S)

    def end(self) -> int:
        """Wait for its own end."""
        return self.process.wait(PATIENCE_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.kill()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()
