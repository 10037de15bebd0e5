"""A front end as others see it: a process of its own that uses the public client, told what to do line by line.

    python -P frontend.py --config FILE --name NAME [--jump SECONDS]

Reads one JSON order a line on stdin and answers with JSON lines on stdout:

    {"do": "ask", "id": 1, "role": "chat", "stream": true, "tokens": 24}
    {"do": "load", "workers": [{"role": "chat", "stream": true, "tokens": 16}, ...]}   ask over and over
    {"do": "calm"}                                                                  stop the load, finish what is open
    {"do": "leave"}

With --jump its time of day is wrong by so much, as after a step of the clock.

Each request ends in one `answer` with its outcome: complete, interrupted (explicitly, after its first byte), or failed.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from supervisor.client import Engine, open_engine
from supervisor.errors import InterruptedAnswerError, QueenrightError

if TYPE_CHECKING:
    import httpx

PROMPT = "Tell me a short story about bees."


class FrontEnd:
    """One front end. Orders come from one thread; each request runs in its own."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
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
        while not self._calm.is_set():
            self.ask(worker)

    def ask(self, order: dict[str, Any]) -> None:
        """One request, and how it ended."""
        began = time.monotonic()
        facts: dict[str, Any] = {
            "id": order.get("id"),
            "role": order["role"],
            "stream": bool(order.get("stream")),
            "began": began,
            "first_s": None,
        }
        try:
            self._send(order, facts, began)
            outcome = "complete"
        except InterruptedAnswerError as error:
            outcome, facts["why"] = "interrupted", str(error)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is a request that failed, and is counted
            outcome, facts["why"] = "failed", f"{type(error).__name__}: {error}"
        self.say("answer", outcome=outcome, seconds=time.monotonic() - began, **facts)

    def _send(self, order: dict[str, Any], facts: dict[str, Any], began: float) -> None:
        http, base = self.engine.http, self.engine.base_url(order["role"])
        if order["role"] == "embed":
            response = http.post(f"{base}/embeddings", json={"model": "embed", "input": PROMPT})
            check(response)
            facts["first_s"], facts["size"] = time.monotonic() - began, len(response.json()["data"][0]["embedding"])
            return
        body = {
            "model": order["role"],
            "messages": [{"role": "user", "content": PROMPT}],
            "max_tokens": order.get("tokens", 24),
            "stream": bool(order.get("stream")),
        }
        if not body["stream"]:
            response = http.post(f"{base}/chat/completions", json=body)
            check(response)
            facts["first_s"], facts["size"] = time.monotonic() - began, response.json()["usage"]["completion_tokens"]
            return
        facts["size"] = 0
        with http.stream("POST", f"{base}/chat/completions", json=body) as response:
            check(response)
            for line in response.iter_lines():
                if line.startswith("data: {") and '"content"' in line:
                    if facts["first_s"] is None:
                        facts["first_s"] = time.monotonic() - began
                        self.say("first token", id=order.get("id"), seconds=facts["first_s"])
                    facts["size"] += 1


def check(response: httpx.Response) -> None:
    """Raise with what the answer says, unless it is a good one."""
    if response.is_error:
        raise RuntimeError(f"status {response.status_code}: {response.read().decode('utf-8', 'replace')[:600]}")


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
            front_end = FrontEnd(engine)
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
