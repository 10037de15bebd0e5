"""How the tests ask: a plain httpx client on our transport, and the requests and streams they share."""

from __future__ import annotations

import httpx

from supervisor.transport import DEADLINE_EXTENSION, Directory, HoldingTransport

CHAT = "/v1/chat/completions"
ANSWER = b'{"choices":[{"message":{"content":"hi"}}]}'
DELTA = b'data: {"choices":[{"finish_reason":null,"delta":{"content":"a"}}]}\n\n'
FINISH = b'data: {"choices":[{"finish_reason":"stop","delta":{}}]}\n\n'
DONE = b"data: [DONE]\n\n"


def client(directory: Directory, *, url: str, timeout_s: float | None = 20.0) -> httpx.Client:
    """A client as a front end makes one; `url` is what it was handed out once."""
    transport = HoldingTransport(directory)
    endpoint = directory.current("chat")
    if endpoint is not None:
        transport.learn(endpoint)
    return httpx.Client(transport=transport, base_url=url, timeout=timeout_s)


def ask(http: httpx.Client, *, path: str = CHAT, deadline_s: float | None = None) -> httpx.Response:
    extensions = {} if deadline_s is None else {DEADLINE_EXTENSION: deadline_s}
    return http.post(path, json={"messages": []}, headers={"X-Request-Id": "r1"}, extensions=extensions)
