"""The load of `bench sweep`, in a process of its own: `python -m chaos.bench_streams`, told what to do by lines of JSON.

The first line says where each way goes: `{"client": {"config", "slot", "role", "port"}, "ways": {NAME: {"url", "key"}},
"model"}`. Each further one is a load: `{"way", "streams", "tokens", "words", "round"}`; it is answered with what came of
it, or with `{"error": TEXT}`. Every way is driven by the same code, a thread with an httpx client for each stream, so
that what differs between two ways is the way. The process ends with its standard input.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from attrs import asdict, frozen

if TYPE_CHECKING:
    import httpx

STREAM_LIMIT: Final = 300.0  # budget: nothing is heard of one stream; 16 long prompts on one core take a minute
CLIENT: Final = "client"
MOST: Final = 64
"""Streams at once that the plain client keeps connections for."""
VERSE: Final = "In the hive {number} of meadow {round} the bees count clover, amber, linden, thyme and heather. "


@frozen
class Streamed:
    """What came of one load. `firsts`: seconds to the first token, of each stream. `rates`: tokens a second of each stream,
    from its first token to its last. `tokens` of all together in `seconds`, from the sending of the first request to the
    last token. `prompt`: tokens of one prompt, where the server tells."""

    firsts: tuple[float, ...]
    rates: tuple[float, ...]
    tokens: int
    seconds: float
    prompt: int


def prompt(words: int, number: int, round_: int) -> str:
    """About so many words, and none that begins as another does: no server can answer from its cache of prompts."""
    verse = VERSE.format(number=number, round=round_)
    return (verse * (words // len(verse.split()) + 1)).strip() + " What do they make?"


def one(client: httpx.Client, url: str, key: str, body: dict[str, Any]) -> tuple[float, float, float, int, int]:
    """One stream: when it was sent, when its first and last token came, how many, and how many were in the prompt.
    Raises RuntimeError for anything but a whole answer."""
    began = time.monotonic()
    first = last = 0.0
    events = counted = asked = 0
    ended = False
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    with client.stream("POST", f"{url}/v1/chat/completions", json=body, headers=headers) as answer:
        if answer.status_code != 200:
            raise RuntimeError(f"status {answer.status_code}: {answer.read().decode('utf-8', 'replace')[:300]}")
        for line in answer.iter_lines():
            if line == "data: [DONE]":
                ended = True
            elif line.startswith("data: {"):
                now = time.monotonic()
                event = json.loads(line[6:])
                if "error" in event:
                    raise RuntimeError(json.dumps(event["error"])[:300])
                choices = event.get("choices") or [{}]
                delta = choices[0].get("delta") or {}
                if delta.get("content") or delta.get("reasoning_content"):
                    first, last, events = first or now, now, events + 1
                usage, timings = event.get("usage") or {}, event.get("timings") or {}
                counted = timings.get("predicted_n") or usage.get("completion_tokens") or counted
                asked = usage.get("prompt_tokens") or timings.get("prompt_n") or asked
    if not ended or not events:
        raise RuntimeError(f"a stream ended after {events} tokens, with{'' if ended else 'out'} its end marker")
    return began, first, last, max(counted, events), asked


def load(client: httpx.Client, url: str, key: str, model: str, order: dict[str, Any]) -> Streamed:
    """So many streams at once. Raises RuntimeError if one is not answered in full."""
    streams, found, wrong = order["streams"], list[tuple[float, float, float, int, int]](), list[str]()
    barrier = threading.Barrier(streams)

    def run(number: int) -> None:
        body = {
            "model": model,
            "stream": True,
            "stream_options": {"include_usage": True},
            "max_tokens": order["tokens"],
            "temperature": 0,
            "ignore_eos": True,
            "cache_prompt": False,
            "messages": [{"role": "user", "content": prompt(order["words"], number, order["round"])}],
        }
        barrier.wait()
        try:
            found.append(one(client, url, key, body))
        except Exception as error:  # noqa: BLE001 - whatever it is, this load gives no figure, and why is told
            wrong.append(f"{type(error).__name__}: {error}")

    threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(streams)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if wrong:
        raise RuntimeError(f"{len(wrong)} of {streams} streams were not answered in full; {wrong[0]}")
    return summed(found)


def summed(found: list[tuple[float, float, float, int, int]]) -> Streamed:
    """Of streams as `one` tells them."""
    total = sum(count for *_, count, _ in found)
    rates = [(count - 1) / (last - first) for _, first, last, count, _ in found if last > first]
    return Streamed(
        tuple(first - began for began, first, *_ in found),
        tuple(rates),
        total,
        max(last for _, _, last, *_ in found) - min(began for began, *_ in found),
        max(asked for *_, asked in found),
    )


def main() -> None:
    """See the module."""
    import httpx

    from chaos.bench_sweep import wanted
    from supervisor.client import open_engine

    places = json.loads(sys.stdin.readline())
    ours = places["client"]
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=MOST)
    config = wanted(Path(ours["config"]), ours["role"], ours["port"])
    with (
        open_engine(config, program="queenright bench", slot=Path(ours["slot"])) as engine,
        httpx.Client(limits=limits, timeout=STREAM_LIMIT, trust_env=False) as plain,
    ):
        clients = {name: (plain, way["url"], way["key"]) for name, way in places["ways"].items()}
        clients[CLIENT] = (engine.http, engine.base_url(ours["role"]).removesuffix("/v1"), "")
        print(json.dumps({"how": engine.how}), flush=True)
        for line in sys.stdin:
            order = json.loads(line)
            try:
                print(json.dumps(asdict(load(*clients[order["way"]], places["model"], order))), flush=True)
            except RuntimeError as error:
                print(json.dumps({"error": str(error)}), flush=True)


if __name__ == "__main__":
    main()
