"""The least that passes a request on: Hypercorn's trio worker, httpx, and nothing of ours. `bench gateway` measures beside it.

`python -m chaos.bare_gateway PORT URL KEY` listens on 127.0.0.1:PORT until its standard input ends, which it does with whoever
started it, and sends each request on to URL.
"""

from __future__ import annotations

import os
import sys
import threading
from typing import TYPE_CHECKING, Any

import httpx
import trio
from hypercorn.config import Config
from hypercorn.trio import serve

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    Receive = Callable[[], Awaitable[dict[str, Any]]]
    Send = Callable[[dict[str, Any]], Awaitable[None]]


async def main(port: int, url: str, key: str) -> None:
    """Serve."""
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    async with httpx.AsyncClient(base_url=url, headers=headers, timeout=60) as client:

        async def app(scope: dict[str, Any], receive: Receive, send: Send) -> None:
            if scope["type"] != "http":
                raise NotImplementedError("only http")  # by ASGI, how an application says that it has no lifespan
            body, more = b"", True
            while more:
                message = await receive()
                body, more = body + message.get("body", b""), message.get("more_body", False)
            async with client.stream(scope["method"], scope["path"], content=body) as answer:
                told = [(b"content-type", answer.headers.get("content-type", "application/json").encode())]
                await send({"type": "http.response.start", "status": answer.status_code, "headers": told})
                async for piece in answer.aiter_raw():
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})

        config = Config()
        config.bind, config.accesslog, config.errorlog = [f"127.0.0.1:{port}"], None, None
        await serve(app, config)  # type: ignore[arg-type]  # its types know a scope of each protocol


def _until_end() -> None:
    sys.stdin.buffer.read()
    os._exit(0)


if __name__ == "__main__":
    threading.Thread(target=_until_end, daemon=True).start()
    trio.run(main, int(sys.argv[1]), sys.argv[2], sys.argv[3])
