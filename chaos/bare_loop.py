"""The floor of `queenright bench peers`: what a page of trio does, with no supervision worth the name. It starts its
children, starts each again that ends, and ends with SIGTERM, a grace and SIGKILL. It knows no port, no backoff, no
grandchild and no log, and its children outlive its death. Run as `python bare_loop.py COMMANDS GRACE_S`, as JSON."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import trio

STOPPED = trio.Event()


async def keep(argv: list[str], grace: float) -> None:
    """One child, until told to stop."""
    while not STOPPED.is_set():
        child = await trio.lowlevel.open_process(argv, stdin=subprocess.DEVNULL)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(end, child, grace)
            await child.wait()
            nursery.cancel_scope.cancel()


async def end(child: trio.Process, grace: float) -> None:
    """SIGTERM when it is time, SIGKILL a grace later."""
    await STOPPED.wait()
    child.terminate()
    await trio.sleep(grace)
    child.kill()


async def main(commands: list[list[str]], grace: float) -> None:
    """All of them, until SIGTERM."""
    with trio.open_signal_receiver(signal.SIGTERM) as signals:
        async with trio.open_nursery() as nursery:
            for argv in commands:
                nursery.start_soon(keep, argv, grace)
            async for _ in signals:
                STOPPED.set()
                break


if __name__ == "__main__":
    trio.run(main, json.loads(sys.argv[1]), float(sys.argv[2]))
