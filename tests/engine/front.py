"""A front end for tests: a process of its own that does what it is told, through the public client alone.

One JSON object a line on stdin, `{"id": 1, "do": "open", ...}`; answers on stdout carry the same id. Every order runs
in a thread of its own, so a front end can stream and ask at once. It ends when its stdin does.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from supervisor.client import Engine

# httpx's own command line needs click, which a tool of ours brings and no user has to have: it is a seventh of what a front
# end imports, and hundreds are started here.
sys.modules["httpx._main"] = None  # type: ignore[assignment]

_say = threading.Lock()
_engines: list[Engine] = []


def say(number: int, **facts: Any) -> None:
    """One line to the test."""
    with _say:
        sys.stdout.write(json.dumps({"id": number, **facts}) + "\n")
        sys.stdout.flush()


def do_warm_up(_: int) -> dict[str, Any]:
    """Import what opening needs, so that many of us can ask in the same moment."""
    from supervisor import acquire, config_check, resolving, transport
    from workers import gguf_header, llama_swap, pins

    return {"imported": len([acquire, config_check, resolving, transport, gguf_header, llama_swap, pins])}


def do_open(
    _: int, config: str, program: str, wait: bool = True, deadline: float = 60.0, keeper: list[str] | None = None
) -> dict[str, Any]:
    """Get the engine; with `wait`, until all of it serves. `keeper`: a script that is to be its keeper, and its words."""
    from supervisor.client import open_engine

    if keeper is not None:
        use_keeper(keeper)
    engine = open_engine(Path(config), program=program, deadline_s=deadline)
    _engines.append(engine)
    if wait:
        engine.wait_ready(60.0)
    return {"how": engine.how}


def use_keeper(words: list[str]) -> None:
    """Have the wardens that this process starts use another keeper."""
    from supervisor import wardens

    command = wardens.command

    def with_it(slot: Any, **options: Any) -> list[str]:
        *rest, text = command(slot, **options)
        argv = [sys.executable, "-P", words[0], str(slot.path), *words[1:]]
        return [*rest, json.dumps({**json.loads(text), "keeper": argv})]

    wardens.command = with_it


def do_use_warden(_: int, script: str) -> dict[str, Any]:
    """Start this one where a warden is wanted."""
    from supervisor import wardens

    command = wardens.command

    def with_it(slot: Any, **options: Any) -> list[str]:
        *_, place, settings = command(slot, **options)
        return [sys.executable, "-P", script, place, settings]

    wardens.command = with_it
    return {}


def do_pretend(_: int, cgroup: str) -> dict[str, Any]:
    """Believe to be in this control group."""
    from supervisor import units

    units.cgroup_of = lambda pid: cgroup if pid else ""
    return {}


def do_ready(_: int) -> dict[str, Any]:
    """Wait until all of it serves."""
    _engines[-1].wait_ready(60.0)
    return {}


def do_endpoint(_: int, role: str) -> dict[str, Any]:
    """Where a role is served."""
    endpoint = _engines[-1].endpoint(role)
    return {"url": endpoint.url, "generation": endpoint.generation, "group": endpoint.group}


def do_close(_: int) -> dict[str, Any]:
    """Leave, with one handle."""
    _engines.pop().close()
    return {}


def do_die(_: int, code: int) -> dict[str, Any]:
    """End without any clean-up."""
    os._exit(code)


def do_ask(_: int, role: str, prompt: str, tokens: int = 8) -> dict[str, Any]:
    """A completion, whole."""
    engine = _engines[-1]
    body = {"model": role, "prompt": prompt, "max_tokens": tokens}
    response = engine.http.post(engine.base_url(role) + "/completions", json=body)
    text = response.json()["choices"][0]["text"] if response.status_code == 200 else ""
    return {"status": response.status_code, "text": text, "body": response.text}


def do_post(_: int, role: str, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """Any request, and its answer."""
    engine = _engines[-1]
    response = engine.http.post(engine.base_url(role) + path, json={"model": role, **body})
    return {"status": response.status_code, "answer": response.json()}


def do_stream(number: int, role: str, prompt: str, tokens: int) -> dict[str, Any]:
    """A completion as it comes. Says `first` at its first token, and at the end what had come and what ended it."""
    from supervisor.transport import AnswerInterrupted

    engine = _engines[-1]
    body = {"model": role, "prompt": prompt, "max_tokens": tokens, "stream": True}
    text, finished, cut = "", False, ""
    try:
        with engine.http.stream("POST", engine.base_url(role) + "/completions", json=body) as response:
            for line in response.iter_lines():
                if line == "data: [DONE]":
                    finished = True
                elif line.startswith("data: "):
                    choice = json.loads(line.removeprefix("data: "))["choices"][0]
                    if not text:
                        say(number, first=choice["text"])
                    text += choice["text"]
    except AnswerInterrupted as error:
        cut = error.what
    return {"text": text, "finished": finished, "interrupted": cut}


ORDERS: dict[str, Callable[..., dict[str, Any]]] = {
    name.removeprefix("do_"): function for name, function in dict(globals()).items() if name.startswith("do_")
}


def obey(number: int, order: str, arguments: dict[str, Any]) -> None:
    """Do it, and say what came of it."""
    from supervisor.errors import QueenrightError

    try:
        say(number, done=ORDERS[order](number, **arguments))
    except QueenrightError as error:
        say(number, failed=error.as_dict())
    except Exception as error:  # noqa: BLE001 - the test is told, whatever it is
        say(number, failed={"error": type(error).__name__, "what": str(error)})


def main() -> None:
    """Until stdin ends, or the order `exit`: with every clean-up, as only this thread can."""
    for line in sys.stdin:
        message = json.loads(line)
        number, order = message.pop("id"), message.pop("do")
        if order == "exit":
            sys.exit(message["code"])
        threading.Thread(target=obey, args=[number, order, message], daemon=True).start()


if __name__ == "__main__":
    main()
