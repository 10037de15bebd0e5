"""Runs front ends as processes of their own, and collects what they say."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from chaos.observer import NotObservedError

FRONT_END = Path(__file__).resolve().parent / "frontend.py"
LEAVE_LIMIT = 30.0  # budget: a front end that was told to leave finishes what it has open first


class Driven:
    """A front-end process. Lines it said are kept in order; anybody may wait for one. `jump`: seconds by which its time of
    day is wrong."""

    def __init__(
        self,
        config: Path,
        name: str,
        environment: dict[str, str] | None = None,
        *,
        jump: int | None = None,
        script: Path | None = None,
        words: tuple[str, ...] = (),
    ) -> None:
        self.name = name
        self.said: list[dict[str, Any]] = []
        self._news = threading.Condition()
        self._ended = False
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-P", str(script or FRONT_END), "--config", str(config), "--name", name, *words),
                *(() if jump is None else ("--jump", str(jump))),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **(environment or {})},
            process_group=0,  # a Ctrl-C is ours: it is told to leave, and has no traceback to show
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None  # noqa: S101 - a pipe was asked for
        for line in self.process.stdout:
            with self._news:
                self.said.append(json.loads(line))
                self._news.notify_all()
        with self._news:
            self._ended = True
            self._news.notify_all()

    def tell(self, **order: Any) -> None:
        """Give one order. A front end that is gone hears nothing; what waits for its answer says so."""
        assert self.process.stdin is not None  # noqa: S101 - a pipe was asked for
        try:
            self.process.stdin.write(json.dumps(order) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass

    def hear(self, what: str, limit_s: float, **wanted: Any) -> dict[str, Any]:
        """The first line of that kind with these facts, said already or within `limit_s`. Raises NotObservedError."""

        def found() -> dict[str, Any] | None:
            for line in self.said:
                if line["what"] == what and all(line.get(key) == value for key, value in wanted.items()):
                    return line
            return None

        with self._news:
            self._news.wait_for(lambda: found() or self._ended, limit_s)
            line = found()
        if line is not None:
            return line
        errors = [str(line["error"]) + ": " + str(line["what"]) for line in self.said if "error" in line]
        why = f"; it ended: {'; '.join(errors) or 'without a word'}" if self._ended else ""
        raise NotObservedError(f"front end {self.name} did not say {what!r} within {limit_s:g} s{why}")

    def taken(self, *whats: str) -> list[dict[str, Any]]:
        """The lines of those kinds that were said since the last time. They are forgotten: a front end under load says some
        ten thousand an hour."""
        with self._news:
            found = [line for line in self.said if line["what"] in whats]
            if found:
                self.said = [line for line in self.said if line["what"] not in whats]
        return found

    def answers(self) -> list[dict[str, Any]]:
        """Every request that ended so far."""
        with self._news:
            return [line for line in self.said if line["what"] == "answer"]

    def leave(self) -> int:
        """Have it leave and wait for its end; the exit status."""
        self.tell(do="leave")
        assert self.process.stdin is not None  # noqa: S101 - a pipe was asked for
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        try:
            status = self.process.wait(LEAVE_LIMIT)
        except subprocess.TimeoutExpired as error:
            raise NotObservedError(f"front end {self.name} did not leave within {LEAVE_LIMIT:g} s") from error
        self._reader.join(LEAVE_LIMIT)
        return status

    def kill(self) -> None:
        """End it, whatever it does."""
        self.process.kill()
        self.process.wait()
        self._reader.join(LEAVE_LIMIT)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):  # it may have an order left that nobody heard
                    pipe.close()
