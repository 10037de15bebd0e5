"""An agent: a process of its own with a project, that has the model work on it with tools, and its notes embedded meanwhile.

    python -P agent.py --config FILE --name NAME --project DIR [--opencode PROGRAM]

It is told what to do by lines of JSON on stdin (`open`, `go`, `leave`) and tells by lines of JSON on stdout how it came to
the engine, and of each request when it began, when it ended, and how. With `--opencode` the work is done by that program,
through the gateway; else by a script that asks the model at each step, executes the tools that it calls, and goes on by its
own plan where it calls none: so the work is the same whatever the model is worth. The embeddings are asked for at the same
time, over and over until the work is done, as by an index that is kept up to date.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from chaos.agents import opencode, tasks
from supervisor.client import Engine, open_engine
from supervisor.errors import QueenrightError

if TYPE_CHECKING:
    from collections.abc import Callable

TOKENS: Final = 24
PAUSE: Final = 0.1  # budget: between two passes of the index; without it a fast engine would do nothing else
HISTORY: Final = 4
"""Messages that a step takes along: a small context has room for no more."""
RESULT: Final = 400
"""Characters of a tool's result that the model is shown."""
SYSTEM: Final = "You work on a project of notes about bee hives. Use the tools."


def _tool(name: str, what: str, **properties: str) -> dict[str, Any]:
    parameters = {
        "type": "object",
        "properties": {key: {"type": "string", "description": text} for key, text in properties.items()},
        "required": list(properties),
    }
    return {"type": "function", "function": {"name": name, "description": what, "parameters": parameters}}


TOOLS: Final = [
    _tool("search", "Find the note that a text is about.", text="what to look for"),
    _tool("read", "Read a file of the project.", path="path, relative to the project"),
    _tool("write", "Write the file of answers.", text="all of its text"),
]


class Agent:
    """One agent at work. Requests may be made from two threads."""

    def __init__(self, engine: Engine, project: Path, home: Path) -> None:
        self.engine, self.project = engine, project
        self._index_file = home / "index.json"
        self._index: dict[str, list[float]] = {}
        self._say = threading.Lock()
        self._worked = threading.Event()
        self._indexed = threading.Event()
        self._broken: Exception | None = None
        self.steps: list[dict[str, Any]] = []

    def say(self, what: str, **facts: Any) -> None:
        """One line for whoever runs us."""
        with self._say:
            print(json.dumps({"what": what, "at": time.monotonic(), **facts}), flush=True)

    # --- requests ---------------------------------------------------------------------------------------------------

    def _post(self, role: str, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """One request, told of however it ends. Raises RuntimeError for a bad answer, or what the client raises."""
        began, outcome, why = time.monotonic(), "failed", ""
        try:
            answer = self.engine.http.post(f"{self.engine.base_url(role)}/{path}", json={"model": role, **body})
            if answer.is_error:
                raise RuntimeError(f"status {answer.status_code}: {answer.text[:300]}")
            outcome = "complete"
            return dict(answer.json())
        except Exception as error:
            why = f"{type(error).__name__}: {error}"
            raise
        finally:
            self.say("request", role=role, began=began, ended=time.monotonic(), outcome=outcome, why=why)

    def embed(self, text: str) -> list[float]:
        """The vector of a text."""
        return list(self._post("embed", "embeddings", {"input": text})["data"][0]["embedding"])

    # --- the index --------------------------------------------------------------------------------------------------

    def keep_index(self) -> None:
        """Embed all notes, over and over until the work is done, and keep the vectors on disk, in the agent's own HOME."""
        try:
            while not self._worked.is_set():
                for note in sorted((self.project / tasks.NOTES).glob("*.md")):
                    first = note.read_text(encoding="utf-8").partition("\n")[0]
                    self._index[note.name] = self.embed(first)
                fresh = self._index_file.with_suffix(".new")
                fresh.write_text(json.dumps(self._index), encoding="utf-8")
                fresh.replace(self._index_file)  # it is read meanwhile
                self._indexed.set()
                self._worked.wait(PAUSE)
        except Exception as error:  # noqa: BLE001 - the work ends with it, and tells of it
            self._broken = error
            self._indexed.set()

    def nearest(self, text: str) -> str:
        """The note that is about it, by the index on disk. Raises what broke the index."""
        self._indexed.wait()
        if self._broken is not None:
            raise self._broken
        asked = self.embed(text)
        index = json.loads(self._index_file.read_text(encoding="utf-8"))
        return str(max(index, key=lambda name: _cosine(asked, index[name])))

    # --- the work ---------------------------------------------------------------------------------------------------

    def work(self, do: Callable[[], None]) -> None:
        """The work, and the index at the same time. Raises what either of them raises."""
        keeper = threading.Thread(target=self.keep_index, daemon=True)
        keeper.start()
        try:
            do()
        finally:
            self._worked.set()
            keeper.join()
        if self._broken is not None:
            raise self._broken

    def scripted(self) -> None:
        """The tool loop. Raises what a request or a tool raises."""
        asked = (self.project / tasks.QUESTIONS).read_text(encoding="utf-8").split()
        messages: list[dict[str, Any]] = []
        lines = []
        for hive in asked:
            found = self._step(messages, f"Find the note of the {hive} hive.", "search", {"text": tasks.title(hive)})
            text = self._step(messages, "Read it.", "read", {"path": f"{tasks.NOTES}/{found}"})
            code = tasks.CODE.search(text)
            lines.append(f"{hive}: {code[0] if code else 'none'}\n")
        self._step(messages, "Write the answers.", "write", {"text": "".join(lines)})
        (self.project / tasks.STEPS).write_text(json.dumps(self.steps), encoding="utf-8")

    def _step(self, messages: list[dict[str, Any]], wanted: str, tool: str, words: dict[str, str]) -> str:
        """Ask the model; do what it calls for; then what the plan says, which is told to it as a call of its own."""
        messages.append({"role": "user", "content": wanted})
        body = {
            "messages": [{"role": "system", "content": SYSTEM}, *messages[-HISTORY:]],
            "tools": TOOLS,
            "max_tokens": TOKENS,
            "temperature": 0,
        }
        said = self._post("chat", "chat/completions", body)["choices"][0]["message"]
        calls = said.get("tool_calls") or []
        text = said.get("content") or said.get("reasoning_content") or ""
        self.steps.append({"wanted": wanted, "text": text, "calls": len(calls)})
        for call in calls[:1]:
            self._called(call)
        result = self._do(tool, words)
        messages.append({"role": "assistant", "content": f"{tool} {json.dumps(words)}"[:RESULT]})
        messages.append({"role": "user", "content": result[:RESULT]})
        return result

    def _called(self, call: dict[str, Any]) -> None:
        """What a model calls for is done in its own place, and may be nonsense: then it is told of and nothing else."""
        function = call.get("function", {})
        try:
            words = json.loads(function.get("arguments") or "{}")
            result = self._do(str(function.get("name")), words) if function.get("name") != "write" else "later"
        except (ValueError, KeyError, OSError) as error:
            result = f"{type(error).__name__}: {error}"
        self.say("tool", name=function.get("name"), result=result[:RESULT])

    def _do(self, tool: str, words: dict[str, str]) -> str:
        if tool == "search":
            return self.nearest(words["text"])
        if tool == "read":
            return self._inside(words["path"]).read_text(encoding="utf-8")
        if tool == "write":
            (self.project / tasks.ANSWER).write_text(words["text"], encoding="utf-8")
            return "written"
        raise ValueError(f"there is no tool {tool}")

    def _inside(self, path: str) -> Path:
        """Raises ValueError for a path that leads out of the project."""
        found = (self.project / path).resolve()
        if not found.is_relative_to(self.project.resolve()):
            raise ValueError(f"{path} is not in the project")
        return found


def _cosine(a: list[float], b: list[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True)) / (math.hypot(*a) * math.hypot(*b) or 1)


def main() -> int:
    """Open when told, work when told, leave when told. Exit status: 0, the error's, or 1 for work that failed."""
    parser = argparse.ArgumentParser(description="An agent told what to do on stdin; see chaos/agents/agent.py.")
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--project", type=Path, required=True)
    parser.add_argument("--opencode", default="")
    args = parser.parse_args()
    home = Path(os.environ["HOME"])
    print(json.dumps({"what": "here"}), flush=True)
    sys.stdin.readline()  # `open`
    status = 0
    try:
        with open_engine(args.config, program=args.name) as engine:
            agent = Agent(engine, args.project, home)
            roles = ("chat", "embed")
            agent.say("open", how=engine.how, urls={role: engine.endpoint(role).url for role in roles})
            sys.stdin.readline()  # `go`
            try:
                if args.opencode:
                    agent.work(lambda: opencode.work(agent, args.opencode, home))
                else:
                    agent.work(agent.scripted)
                agent.say("done", why="")
            except Exception as error:  # noqa: BLE001 - whatever it is, the work was not done, and why is told
                agent.say("done", why=f"{type(error).__name__}: {error}")
                status = 1
            sys.stdin.readline()  # `leave`
    except QueenrightError as error:
        print(json.dumps({"what": "error", **error.as_dict()}), flush=True)
        return int(error.exit_code)
    return status


if __name__ == "__main__":
    sys.exit(main())
