"""A front end as others see it: a process of its own that uses the public client, told what to do line by line.

    python -P frontend.py --config FILE --name NAME [--jump SECONDS]

Reads one JSON order a line on stdin and answers with JSON lines on stdout:

    {"do": "ask", "id": 1, "role": "chat", "stream": true, "tokens": 24}
    {"do": "load", "workers": [{"role": "chat", "stream": true, "tokens": 16}, ...]}   ask over and over; a worker without
                                                                                    a role asks all kinds in turn
    {"do": "calm"}                                                                  stop the load, finish what is open
    {"do": "leave"}

With --jump its time of day is wrong by so much, as after a step of the clock.

Each request is told of when it is sent (`asked`), and ends in one `answer` with its outcome: complete, interrupted
(explicitly, after its first byte), refused (503 and Retry-After), or failed.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from pathlib import Path
from typing import Any

from chaos.asking import KINDS, Asked, Reading, carry_out
from supervisor.client import Engine, open_engine
from supervisor.errors import QueenrightError

DEADLINE_EXTENSION = "queenright_deadline"
"""`supervisor.request_loop` has it too; importing that takes httpx, before there is an engine to ask."""


class FrontEnd:
    """One front end. Orders come from one thread; each request runs in its own."""

    def __init__(self, engine: Engine, name: str) -> None:
        self.engine, self.name = engine, name
        self._say_lock = threading.Lock()
        self._calm = threading.Event()
        self._threads: list[threading.Thread] = []

    def say(self, what: str, **facts: Any) -> None:
        """One line for whoever runs us."""
        with self._say_lock:
            print(json.dumps({"what": what, "at": time.monotonic(), **facts}), flush=True)

    def obey(self, order: dict[str, Any]) -> bool:
        """Carry out one order; False when it was the last."""
        match order["do"]:
            case "ask":
                self._start(self.ask, order)
            case "load":
                self._calm.clear()
                for worker in order["workers"]:
                    self._start(self._ask_over_and_over, worker)
            case "calm":
                self._calm.set()
                self._join()
                self.say("calm")
            case "leave":
                self._calm.set()
                self._join()
                return False
            case other:
                raise ValueError(f"unknown order {other!r}")
        return True

    def _start(self, function: Any, order: dict[str, Any]) -> None:
        thread = threading.Thread(target=function, args=(order,))
        self._threads.append(thread)
        thread.start()

    def _join(self) -> None:
        for thread in self._threads:
            thread.join()
        self._threads.clear()

    def _ask_over_and_over(self, worker: dict[str, Any]) -> None:
        number = int(worker.get("turn", 0))
        while not self._calm.is_set():
            self.ask({**worker, "number": number})
            number += 1
            self._calm.wait(float(worker.get("pause_s", 0.0)))

    def ask(self, order: dict[str, Any]) -> None:
        """One request, and how it ended."""
        asked = self._asked(order)
        kind, identifier = KINDS[asked.kind], order.get("id", asked.id)
        self.say("asked", **asked._asdict())

        def first() -> None:
            if kind.stream:
                self.say("first token", id=identifier, seconds=time.monotonic() - asked.began)

        reading = Reading(first)
        outcome, why = self._carry_out(asked, reading, int(order.get("tokens", 24)))
        self.say(
            "answer",
            **{**asked._asdict(), "id": identifier},
            role=kind.role,
            stream=kind.stream,
            outcome=outcome,
            why=why,
            seconds=time.monotonic() - asked.began,
            first_s=None if reading.began_at is None else reading.began_at - asked.began,
            size=reading.pieces,
            text=reading.text,
        )

    def _asked(self, order: dict[str, Any]) -> Asked:
        limit = float(order.get("deadline_s", self.engine.deadline_s))
        if "kind" in order:
            return Asked(order["id"], order["kind"], order["prompt"], limit, time.monotonic())
        if "role" not in order:
            return Asked.in_turn(f"{self.name}.{order['turn']}", order["number"], limit)
        kind = "embeddings" if order["role"] == "embed" else "chat stream" if order.get("stream") else "chat"
        identifier = order.get("id") or f"{self.name}.{kind}.{order.get('number', 0)}"
        return Asked(str(identifier), kind, 0, limit, time.monotonic())

    def _carry_out(self, asked: Asked, reading: Reading, tokens: int) -> tuple[str, str]:
        try:
            base = self.engine.base_url(asked.role)
        except QueenrightError as error:
            return "failed", f"{type(error).__name__}: {error}"
        deadline = {DEADLINE_EXTENSION: asked.deadline_s}
        return carry_out(asked, self.engine.http, base, reading, tokens, lost="failed", extensions=deadline)


def jump(seconds: int) -> None:
    """Have this process's time of day ahead, or behind, of everybody else's."""
    wall, nanoseconds = time.time, time.time_ns
    time.time = lambda: wall() + seconds
    time.time_ns = lambda: nanoseconds() + seconds * 10**9


def main() -> int:
    """Open, obey, leave. Exit status: 0, or the error's."""
    parser = argparse.ArgumentParser(description="A front end told what to do on stdin; see chaos/frontend.py.")
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--jump", type=int, default=0)
    args = parser.parse_args()
    if args.jump:
        jump(args.jump)
    began = time.monotonic()
    try:
        with open_engine(args.config, program=args.name) as engine:
            front_end = FrontEnd(engine, args.name)
            front_end.say("open", how=engine.how, seconds=time.monotonic() - began)
            for line in sys.stdin:
                if not front_end.obey(json.loads(line)):
                    break
        front_end.say("left")
    except QueenrightError as error:
        print(json.dumps({"what": "error", **error.as_dict()}), flush=True)
        return int(error.exit_code)
    return 0


if __name__ == "__main__":
    sys.exit(main())
