"""An httpx.AsyncClient on trio, driven from the test's threads: so one set of tests asks both transports.

Trio runs in a thread of its own; every operation is a task there.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import httpx
import trio

from tests.client.scripted import PATIENCE

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from types import TracebackType


class TrioThread:
    """Runs trio until `stop`."""

    def __init__(self) -> None:
        self._ready = threading.Event()
        self._end: trio.Event | None = None
        self._token: trio.lowlevel.TrioToken | None = None
        self._thread = threading.Thread(target=trio.run, args=(self._main,), name="trio-of-a-test")
        self._thread.start()
        assert self._ready.wait(PATIENCE)

    async def _main(self) -> None:
        self._end, self._token = trio.Event(), trio.lowlevel.current_trio_token()
        self._ready.set()
        await self._end.wait()

    def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Await it there."""
        return trio.from_thread.run(function, *arguments, trio_token=self._token)

    def stop(self) -> None:
        """The end."""
        assert self._end is not None
        end = self._end

        async def let_go() -> None:
            end.set()

        self.run(let_go)
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()


class TrioResponse:
    """An httpx response that is read in the other thread."""

    def __init__(self, thread: TrioThread, response: httpx.Response) -> None:
        self._thread, self._response = thread, response
        self.status_code, self.headers = response.status_code, response.headers

    def _each(self, pieces: AsyncIterator[Any]) -> Iterator[Any]:
        async def one() -> Any:
            return await anext(pieces, None)

        while (piece := self._thread.run(one)) is not None:
            yield piece

    def iter_raw(self) -> Iterator[bytes]:
        return self._each(self._response.aiter_raw())

    def iter_lines(self) -> Iterator[str]:
        return self._each(self._response.aiter_lines())

    def read(self) -> bytes:
        content: bytes = self._thread.run(self._response.aread)
        return content

    def close(self) -> None:
        self._thread.run(self._response.aclose)

    @property
    def is_closed(self) -> bool:
        return self._response.is_closed


class TrioClient:
    """As much of httpx.Client as the tests use."""

    def __init__(self, **arguments: Any) -> None:
        self._thread = TrioThread()
        self._http = httpx.AsyncClient(**arguments)
        self._transport = self._http._transport

    def __enter__(self) -> TrioClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._thread.run(self._http.aclose)
        finally:
            self._thread.stop()

    def _request(self, method: str, url: str, arguments: dict[str, Any]) -> httpx.Response:
        async def ask() -> httpx.Response:
            return await self._http.request(method, url, **arguments)

        answer: httpx.Response = self._thread.run(ask)
        return answer

    def post(self, url: str, **arguments: Any) -> httpx.Response:
        content = arguments.get("content")
        if content is not None and not isinstance(content, bytes):
            arguments["content"] = _asynchronous(content)
        return self._request("POST", url, arguments)

    def get(self, url: str, **arguments: Any) -> httpx.Response:
        return self._request("GET", url, arguments)

    def build_request(self, method: str, url: str, **arguments: Any) -> httpx.Request:
        return self._http.build_request(method, url, **arguments)

    def send(self, request: httpx.Request, *, stream: bool = False) -> TrioResponse:
        async def ask() -> httpx.Response:
            return await self._http.send(request, stream=stream)

        return TrioResponse(self._thread, self._thread.run(ask))

    @contextmanager
    def stream(self, method: str, url: str, **arguments: Any) -> Iterator[TrioResponse]:
        response = self.send(self.build_request(method, url, **arguments), stream=True)
        try:
            yield response
        finally:
            response.close()


async def _asynchronous(pieces: Any) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece
