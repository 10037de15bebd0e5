#!/usr/bin/env python3
"""In opencode's place: does the task of chaos/agents/tasks.py with its own hands, and asks the model about each hive on the way.

With FAKE_TURNS, a file, it asks while it holds a lock on that, so that of several only one is ever asking: each of them runs
all the while, and none asks beside another.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import sys
from http.client import HTTPConnection
from urllib.parse import urlsplit

CODE = re.compile(r"\b[A-Z]{2}\d{4}\b")


def ask(url: str, text: str) -> None:
    body = {"model": "chat", "stream": True, "max_tokens": 16, "messages": [{"role": "user", "content": text}]}
    place = urlsplit(url)
    connection = HTTPConnection(place.netloc, timeout=600)
    connection.request("POST", f"{place.path}/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
    with connection.getresponse() as answer:
        answer.read()
    connection.close()


def main() -> int:
    if sys.argv[1:] == ["--version"]:
        print("fake")
        return 0
    with open(os.environ["OPENCODE_CONFIG"], encoding="utf-8") as file:
        url = json.load(file)["provider"]["queenright"]["options"]["baseURL"]
    root = os.environ["PWD"]
    with open(f"{root}/QUESTIONS.txt", encoding="utf-8") as file:
        hives = file.read().split()
    with open(os.environ.get("FAKE_TURNS", os.devnull), "ab") as turns:
        if "FAKE_TURNS" in os.environ:
            fcntl.flock(turns, fcntl.LOCK_EX)
        for hive in hives:
            ask(url, f"Which code has the {hive} hive?")
    lines = []
    for hive in hives:
        with open(f"{root}/notes/{hive}.md", encoding="utf-8") as file:
            found = CODE.search(file.read())
        lines.append(f"{hive}: {found[0] if found else '?'}\n")
    with open(f"{root}/ANSWER.md", "w", encoding="utf-8") as file:
        file.writelines(lines)
    return 0


if __name__ == "__main__":
    sys.exit(main())
