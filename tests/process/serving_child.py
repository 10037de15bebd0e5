"""A front end that serves, for test_serving.py: `python serving_child.py DATA_DIR JSON`. It says one JSON object a line."""

from __future__ import annotations

import json
import os
import sys
import threading
from functools import partial
from pathlib import Path
from typing import Any

from supervisor.errors import QueenrightError
from supervisor.serving import ServeLock, ShutdownRoute, serve_lock


def tell(did: str, **facts: Any) -> None:
    print(json.dumps({"did": did, **facts}), flush=True)


async def hang(*_: object) -> None:
    """An application that never answers."""
    import trio

    await trio.sleep_forever()


def clean_slowly() -> None:
    tell("cleaning")
    sys.stdin.readline()
    tell("cleaned")


def until_told(lock: ServeLock, ways: dict[str, Any]) -> None:
    """Serve until SIGTERM, or hold the lock until a line comes."""
    if ways.get("listens"):
        import trio

        from tests.fakes.asgi_server import serve

        app = hang if ways.get("hangs") else ShutdownRoute(lock.token)

        def listening(url: str) -> None:
            lock.announce(url)
            tell("listening", url=url)

        trio.run(partial(serve, app, listening))
        return
    tell("held")
    line = sys.stdin.readline().strip()
    if line == "_exit":
        os._exit(7)
    if line == "fork":
        pid = os.fork()
        if pid == 0:
            lock.__exit__(None, None, None)
            lock.__exit__(None, None, None)
            tell("forked", held=lock.is_held, pid=os.getpid())
            sys.stdin.read()  # lives on after its parent
            os._exit(0)
        sys.stdin.read(1)
    if line == "thread":
        thread = threading.Thread(target=lock.__exit__, args=(None, None, None))
        thread.start()
        thread.join()
        tell("released")
        sys.stdin.readline()


def main() -> int:
    data_dir, ways = Path(sys.argv[1]), json.loads(sys.argv[2])
    options = {key: ways[key] for key in ("scope", "take_over", "wait_s", "token", "url", "cleanup_s") if key in ways}
    program = ways.get("program", "first")
    try:
        with serve_lock(data_dir, program=program, say=lambda text: tell("said", text=text), **options) as lock:
            until = ways.get("cleanup")
            if until == "slow":
                lock.callback(clean_slowly)
            if until == "tells":
                lock.callback(tell, "cleaned")
            if until == "fails":
                lock.callback(lambda: 1 / 0)
            until_told(lock, ways)
    except QueenrightError as error:
        tell("error", **error.as_dict())
        return int(error.exit_code)
    except ZeroDivisionError:
        tell("raised")
        sys.stdin.readline()
        return 1
    if ways.get("lingers"):
        tell("left")
        sys.stdin.readline()
    return 0


if __name__ == "__main__":
    sys.exit(main())
