#!/usr/bin/env python3
"""A fake llama-server whose model can do one thing: the task of chaos/agents/tasks.py, by calling tools as opencode names them.

It knows what was read already from the messages alone, as a model does. A request without tools (a title, a summary) gets a
word. Everything else is the fake llama-server's.
"""

from __future__ import annotations

import json
import os
import re
import sys
from typing import Any

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from tests.fakes import llama_server as base  # - it is run by its path

HIVES = ("linden", "clover", "heather", "thyme", "willow", "sage", "amber", "orchard")
CODE = re.compile(r"\b[A-Z]{2}\d{4}\b")


def text_of(content: Any) -> str:
    """A message's content, which may be a list of parts."""
    if isinstance(content, list):
        return "\n".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return str(content or "")


def next_call(messages: list[dict[str, Any]]) -> tuple[str, dict[str, str]] | None:
    """What to call now; None when the task is done."""
    called = {
        call["id"]: json.loads(call["function"]["arguments"])
        for message in messages
        for call in message.get("tool_calls") or ()
    }
    read = {
        os.path.basename(called[message["tool_call_id"]].get("filePath", "")): text_of(message["content"])
        for message in messages
        if message.get("role") == "tool" and message.get("tool_call_id") in called
    }
    system = "\n".join(text_of(message["content"]) for message in messages if message["role"] == "system")
    found = re.search(r"Working directory: (\S+)", system)
    root = found[1] if found else "."
    if "ANSWER.md" in read:
        return None
    if "QUESTIONS.txt" not in read:
        return "read", {"filePath": f"{root}/QUESTIONS.txt"}
    asked = [word for word in re.findall(r"[a-z]+", read["QUESTIONS.txt"].rpartition(root)[2]) if word in HIVES]
    for hive in asked:
        if f"{hive}.md" not in read:
            return "read", {"filePath": f"{root}/notes/{hive}.md"}
    codes = {hive: CODE.search(read[f"{hive}.md"]) for hive in asked}
    lines = "".join(f"{hive}: {code[0] if code else '?'}\n" for hive, code in codes.items())
    return "write", {"filePath": f"{root}/ANSWER.md", "content": lines}


class Handler(base.Handler):
    """The fake's, but for chat with tools."""

    def completion(self, body: dict[str, object], *, chat: bool, native: bool) -> None:
        messages, tools = body.get("messages"), body.get("tools")
        if not chat or not isinstance(messages, list) or not tools:
            super().completion(body, chat=chat, native=native)
            return
        call = next_call(messages)
        number = sum(message.get("role") == "tool" for message in messages)
        delta: dict[str, object] = {"role": "assistant", "content": "It is written."}
        if call is not None:
            function = {"name": call[0], "arguments": json.dumps(call[1])}
            delta = {
                "role": "assistant",
                "tool_calls": [{"index": 0, "id": f"call{number}", "type": "function", "function": function}],
            }
        reason = "stop" if call is None else "tool_calls"
        usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
        facts = {"id": "fake", "object": "chat.completion.chunk", "created": 1, "model": str(body.get("model"))}
        if not body.get("stream"):
            choice = {"index": 0, "message": delta, "finish_reason": reason}
            self.json({**facts, "object": "chat.completion", "choices": [choice], "usage": usage})
            return
        self.start(200, "text/event-stream", None)
        self.event(json.dumps({**facts, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}))
        self.event(
            json.dumps({**facts, "choices": [{"index": 0, "delta": {}, "finish_reason": reason}], "usage": usage})
        )
        if self.event("[DONE]"):
            self.end()


if __name__ == "__main__":
    base.Handler = Handler  # type: ignore[misc]
    base.main(sys.argv[1:])
