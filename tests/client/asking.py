"""How the tests ask: an httpx client on our transport, and the requests and streams they share.

With the fixture `both_worlds` a test is run twice: with a client for threads, and with one for trio.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import httpx

from supervisor.transport import DEADLINE_EXTENSION, AsyncHoldingTransport, HoldingTransport
from tests.client.on_trio import TrioClient

if TYPE_CHECKING:
    from collections.abc import Iterable

    from supervisor.contract import Endpoint
    from tests.client.scripted import FakeDirectory

CHAT = "/v1/chat/completions"
ANSWER = b'{"choices":[{"message":{"content":"hi"}}]}'
DELTA = b'data: {"choices":[{"finish_reason":null,"delta":{"content":"a"}}]}\n\n'
FINISH = b'data: {"choices":[{"finish_reason":"stop","delta":{}}]}\n\n'
DONE = b"data: [DONE]\n\n"

_world: list[str] = ["threads"]


def use_world(name: str) -> None:
    """`threads` or `trio`: which client `client` makes."""
    _world[:] = [name]


def client(
    directory: FakeDirectory,
    *,
    url: str = "",
    timeout_s: float | None = 20.0,
    endpoints: Iterable[Endpoint] | None = None,
) -> Any:
    """A client as a front end makes one (httpx.Client, or what does as one); `url` is what it was handed out once."""
    known = [directory.endpoint] if directory.endpoint is not None else []
    known = known if endpoints is None else list(endpoints)
    arguments: Final = {"base_url": url, "timeout": timeout_s}
    if _world == ["trio"]:
        return TrioClient(transport=AsyncHoldingTransport(directory, known), **arguments)
    return httpx.Client(transport=HoldingTransport(directory, known), base_url=url, timeout=timeout_s)


def ask(http: Any, *, path: str = CHAT, deadline_s: float | None = None) -> httpx.Response:
    extensions = {} if deadline_s is None else {DEADLINE_EXTENSION: deadline_s}
    answer: httpx.Response = http.post(
        path, json={"messages": []}, headers={"X-Request-Id": "r1"}, extensions=extensions
    )
    return answer
