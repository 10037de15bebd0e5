"""The keeper's end of the control socket: commands in, snapshots out. It answers from memory, in every state."""

from __future__ import annotations

import json
import os
import socket
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Protocol

import trio

from supervisor import budgets, draining
from supervisor.control import MAX_LINE, PEER_CREDENTIALS
from supervisor.errors import QueenrightError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping

    from supervisor.draining import InFlight

CONTROL_FD = 4

CONNECTIONS_MOST = 4096
"""At once. Each front end follows its engine on one of its own, so this is far more than one machine has; and one that runs
wild takes no descriptors from the gateway and from those who stop the engine after it ends."""


class Served(Protocol):
    """What the control socket needs of the keeper."""

    change: trio.Event

    @property
    def acts(self) -> Mapping[str, object]:
        """Questions that `act` takes."""

    def snapshot(self) -> dict[str, Any]: ...

    def brief(self) -> dict[str, Any]: ...

    def is_settled(self, groups: list[str]) -> bool: ...

    @property
    def is_at_rest(self) -> bool: ...

    def begin_stop(self, why: str) -> None: ...

    @property
    def draining(self) -> str: ...

    def drains(self, who: str) -> None: ...

    def in_flight(self) -> InFlight: ...

    async def act(self, op: str, question: dict[str, Any]) -> None: ...


async def serve(served: Served, descriptor: int = CONTROL_FD) -> None:
    """Serve until cancelled. The listener is the warden's: it outlives us, and closing ours refuses nobody."""
    stdlib = socket.socket(fileno=descriptor)
    stdlib.set_inheritable(False)
    listener = trio.SocketListener(trio.socket.from_stdlib_socket(stdlib))

    room = trio.CapacityLimiter(CONNECTIONS_MOST)

    async def handle(stream: trio.SocketStream) -> None:
        try:
            async with stream:
                try:
                    room.acquire_on_behalf_of_nowait(stream)
                except trio.WouldBlock:
                    with trio.move_on_after(budgets.TURN_AWAY):  # what is unread at the close undoes the answer
                        await stream.receive_some(MAX_LINE)
                    most = f"the keeper has {CONNECTIONS_MOST} connections already, which is the most"
                    await _send(stream, {"error": most, "next_step": "`queenright ps` shows who uses the engine"})
                    return
                try:
                    await _converse(stream, served)
                finally:
                    room.release_on_behalf_of(stream)
        except* (trio.BrokenResourceError, trio.ClosedResourceError, OSError):
            pass  # the caller hung up; that is its right

    await trio.serve_listeners(handle, [listener])


async def _converse(stream: trio.SocketStream, served: Served) -> None:
    credentials = stream.socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, PEER_CREDENTIALS.size)
    uid = PEER_CREDENTIALS.unpack(credentials)[1]
    if uid not in (0, os.geteuid()):
        return  # the socket is 0600 already; this is for a descriptor that was passed on
    line = b""
    with trio.move_on_after(budgets.QUESTION_LIMIT):
        while not line.endswith(b"\n"):
            data = await stream.receive_some(MAX_LINE)
            line += data
            if not data or len(line) > MAX_LINE:
                return
    if not line.endswith(b"\n"):
        return
    answers = _understand(served, line)
    if answers is None:
        known = ", ".join(sorted([*COMMANDS, *served.acts]))
        await _send(stream, {"error": "not a question of this protocol", "next_step": f"known: {known}"})
        return
    async with aclosing(answers), trio.open_nursery() as nursery:
        nursery.start_soon(_until_hangup, stream, nursery.cancel_scope)
        async for answer in answers:
            await _send(stream, answer)
        nursery.cancel_scope.cancel()


def _understand(served: Served, line: bytes) -> AsyncGenerator[dict[str, Any], None] | None:
    """The answers to a question; None for anything that is none, whatever bytes they are."""
    try:
        question = json.loads(line)
        groups = question.setdefault("groups", [])
        if not all(isinstance(name, str) for name in groups):
            return None
        return (_act if question["op"] in served.acts else COMMANDS[question["op"]])(served, question)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


async def _until_hangup(stream: trio.SocketStream, scope: trio.CancelScope) -> None:
    """A caller who leaves in the middle of a long answer must not be waited for."""
    while await stream.receive_some(4096):
        pass
    scope.cancel()


async def _send(stream: trio.SocketStream, answer: dict[str, Any]) -> None:
    await stream.send_all(json.dumps(answer, separators=(",", ":")).encode() + b"\n")


def who(question: dict[str, Any]) -> str:
    """Who asks, as he says himself."""
    return str(question.get("who", "an unnamed caller"))[:200]


def _refusal(error: QueenrightError) -> dict[str, Any]:
    return error.as_dict() | {"error": error.what}


async def _status(served: Served, question: dict[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
    yield served.brief() if question.get("brief") is True else served.snapshot()


async def _follow(served: Served, _: dict[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
    """A snapshot now and after each change; several changes in a row make one."""
    while True:
        change = served.change  # before the snapshot: what changes while it is being sent must not be missed
        yield served.snapshot()
        await change.wait()


async def _wait(served: Served, question: dict[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
    """One snapshot, as soon as every group named is up, given up, or not going to be up."""
    while not served.is_settled(list(question["groups"])):
        await served.change.wait()
    yield served.snapshot()


async def _rest(served: Served, _: dict[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
    """One snapshot, as soon as nothing of the engine runs."""
    while not served.is_at_rest:
        await served.change.wait()
    yield served.snapshot()


async def _stop(served: Served, question: dict[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
    """Snapshots while it stops; the end of the connection is the end of the keeper. With `drain_s`, a caller who hangs up
    before the stop has begun calls it off; and where somebody drains it already, it begins now: two mean it. With
    `warden`, only if that is ours: the caller means no engine that came after the one it saw."""
    why = f"asked by {who(question)}"
    try:
        limit_s = draining.seconds_of(question)
    except QueenrightError as error:
        yield _refusal(error)
        return
    if (meant := question.get("warden")) is not None and meant != served.brief()["warden"]:
        yield {"error": "the engine that was to be stopped is gone, and this is another one", "next_step": ""}
        return
    yield served.snapshot()
    if limit_s and not served.draining:
        served.drains(f"{why}; it waits for requests in flight, {limit_s:g} s at most")
        try:
            yield served.snapshot()
            why += f"; {await draining.wait_idle(served.in_flight, limit_s)}"
        finally:
            served.drains("")
    served.begin_stop(why)
    while True:
        change = served.change
        yield served.snapshot()
        await change.wait()


async def _act(served: Served, question: dict[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
    """Have the keeper do it: a snapshot once it is noted and begun, or why it is not."""
    try:
        await served.act(question["op"], question)
    except QueenrightError as error:
        yield _refusal(error)
        return
    yield served.snapshot()


COMMANDS = {"status": _status, "follow": _follow, "wait": _wait, "rest": _rest, "stop": _stop}
