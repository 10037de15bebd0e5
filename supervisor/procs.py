"""The keeper's side of the warden: commands out, news in (docs/reference/warden-protocol.md).

A handle of a process here is data plus messages; the process itself is the warden's. One task writes and is never
cancelled in the middle of a line (a cancelled send left 8,064 of 20,001 bytes on the wire: measured), one task reads.
"""

from __future__ import annotations

import json
import math
import socket
import struct
from typing import TYPE_CHECKING, Any, NamedTuple

import trio

from supervisor import budgets, logfiles
from supervisor.channels import at_hand
from supervisor.contract import Exit
from supervisor.errors import LinkError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

PROTOCOL = 1
LINK_FD = 3


class Row(NamedTuple):
    """One generation as the warden knows it."""

    gen: str
    group: str
    pid: int
    ticks: int
    state: str
    exit: Exit
    note: Mapping[str, Any] | None


class Hello(NamedTuple):
    """Who the warden is, and what became of the keeper before this one."""

    pid: int
    ticks: int
    incarnation: int
    crashes: int
    last_keeper: Exit | None


class Spawned(NamedTuple):
    """The leader of a new generation. `ticks`: clock ticks from the boot to its start (proc_pid_stat(5))."""

    pid: int
    ticks: int


class Exited(NamedTuple):
    """The leader is dead; its sweep has begun."""

    exit: Exit


class Gone(NamedTuple):
    """Everything of the generation is dead and reaped; `killed` processes had to be swept, in `ms` milliseconds."""

    killed: int
    ms: float


class Unkillable(NamedTuple):
    """The sweep's limit is over, and these live; with none of them the generation's lock is held by somebody unseen. It
    goes on being swept, and Gone may follow."""

    pids: tuple[int, ...]


News = Exited | Gone | Unkillable


class SpawnRefusedError(LinkError):
    """The warden could not start a process; the reason is the operating system's."""


class _Answer:
    """A command's answer, once it is here."""

    def __init__(self) -> None:
        self.arrived = trio.Event()
        self.message: dict[str, Any] = {}


class Procs:
    """The link. `run` it in a nursery first; then everything but `spawn`, `replace` and `quit` returns at once.

    `rows`, `notes` and `strays` are what the warden had when we came; news of a generation goes to who follows it.
    """

    def __init__(self, descriptor: int = LINK_FD) -> None:
        stdlib = socket.socket(fileno=descriptor)
        stdlib.set_inheritable(False)
        self._stream = trio.SocketStream(trio.socket.from_stdlib_socket(stdlib))
        self._out, self._outbox = trio.open_memory_channel[bytes](math.inf)
        self._to_keep: socket.socket | None = None
        self._signals_in, self.signals = trio.open_memory_channel[int](math.inf)
        self._news: dict[str, tuple[trio.MemorySendChannel[News], trio.MemoryReceiveChannel[News]]] = {}
        self._waiting: dict[int, _Answer] = {}
        self._count = 0
        self._listed = trio.Event()
        self.hello = Hello(0, 0, 0, 0, None)
        self.rows: dict[str, Row] = {}
        self.notes: dict[str, Any] = {}
        self.strays: list[tuple[int, int]] = []

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve the link until the warden is gone. Raises LinkError then, and on a protocol that is not ours."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._write)
            nursery.start_soon(self._read)
            nursery.start_soon(self._beat)
            await self._listed.wait()
            task_status.started()

    async def _beat(self) -> None:
        """Show the warden that this loop turns: it replaces a keeper that is silent and does nothing."""
        while True:
            self._post(op="beat")
            await trio.sleep(budgets.KEEPER_BEAT)

    async def _write(self) -> None:
        """Only the sending is shielded, never the wait for something to send: else a keeper that fails could not end.
        What was posted together is sent together, with what those who are about to run post: each piece wakes the
        warden, which takes the processor from us where there are few (5 ms until the next line: measured)."""
        async for line in self._outbox:
            for _ in range(2):
                await trio.lowlevel.cancel_shielded_checkpoint()
            lines = [line, *at_hand(self._outbox)]
            try:
                with trio.CancelScope(shield=True):
                    await self._stream.send_all(b"".join(lines))
                    await self._hand_over()
            except trio.BrokenResourceError:
                return  # the reader says that the warden is gone

    async def _hand_over(self) -> None:
        """Give the warden what it is to keep, with a beat: a descriptor travels with bytes only (unix(7))."""
        if (kept := self._to_keep) is not None:
            self._to_keep = None
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("i", kept.fileno()))]
            with kept:
                await self._stream.socket.sendmsg([b'{"op":"beat"}\n'], rights)

    async def _read(self) -> None:
        pending = b""
        while data := await self._receive():
            *lines, pending = (pending + data).split(b"\n")
            for line in lines:
                self._take(json.loads(line))
        raise LinkError("the warden is gone")

    async def _receive(self) -> bytes:
        try:
            return bytes(await self._stream.receive_some())
        except trio.BrokenResourceError:
            return b""

    def _take(self, message: dict[str, Any]) -> None:
        match message["ev"]:
            case "hello":
                if message["protocol"] != PROTOCOL:
                    raise LinkError(f"the warden speaks protocol {message['protocol']}, we speak {PROTOCOL}")
                last = message["last_keeper"]
                ended = Exit(last["code"], last["status"]) if last else None
                self.hello = Hello(message["pid"], message["ticks"], message["incarnation"], message["crashes"], ended)
            case "row":
                ended = Exit(message["code"], message["status"])
                self.rows[message["gen"]] = Row(
                    message["gen"], message["group"], message["pid"], message["ticks"], message["state"], ended,
                    message["note"],
                )  # fmt: skip
            case "listed":
                self.notes, self.strays = message["notes"], [tuple(stray) for stray in message["strays"]]
                self._listed.set()
                self._answer(message)
            case "exit":
                self._tell(message["gen"], Exited(Exit(message["code"], message["status"])))
            case "gone":
                self._tell(message["gen"], Gone(message["killed"], message["ms"]))
            case "unkillable":
                self._tell(message["gen"], Unkillable(tuple(message["pids"])))
            case "signal":
                self._signals_in.send_nowait(message["sig"])
            case "spawned" | "done" | "error":
                if not self._answer(message) and message["ev"] == "error":
                    logfiles.complain(f"the warden did not take a command: {message['why']}")
            case _:
                pass  # what a newer warden may tell

    def _answer(self, message: dict[str, Any]) -> bool:
        """Give it to who asked; False where nobody did."""
        answer = self._waiting.pop(message["id"] or 0, None)
        if answer is not None:
            answer.message = message
            answer.arrived.set()
        return answer is not None

    def _tell(self, generation: str, news: News) -> None:
        self._channel(generation)[0].send_nowait(news)

    def _channel(self, generation: str) -> tuple[trio.MemorySendChannel[News], trio.MemoryReceiveChannel[News]]:
        if generation not in self._news:
            self._news[generation] = trio.open_memory_channel[News](math.inf)
        return self._news[generation]

    def _post(self, **message: Any) -> None:
        self._out.send_nowait(json.dumps(message, separators=(",", ":")).encode() + b"\n")

    async def _ask(self, **message: Any) -> dict[str, Any]:
        self._count += 1
        answer = self._waiting[self._count] = _Answer()
        self._post(id=self._count, **message)
        await answer.arrived.wait()
        return answer.message

    def follow(self, generation: str) -> trio.MemoryReceiveChannel[News]:
        """News of a generation, from its start or from ours on: none is lost before it is followed. One follower."""
        return self._channel(generation)[1]

    async def spawn(
        self,
        *,
        gen: str,
        group: str,
        argv: list[str],
        env: Mapping[str, str],
        lock: Path,
        log: Path,
        note: Mapping[str, Any],
        cwd: str = "/",
    ) -> Spawned:
        """Start a generation. Follow it first. Raises SpawnRefusedError."""
        message = await self._ask(
            op="spawn", gen=gen, group=group, argv=argv, env=dict(env), lock=str(lock), log=str(log), note=dict(note),
            cwd=cwd,
        )  # fmt: skip
        if message["ev"] != "spawned":
            raise SpawnRefusedError(f"cannot start {argv[0]}: {message['why']}")
        return Spawned(message["pid"], message["ticks"])

    def kill(self, generation: str, number: int, *, everybody: bool = False) -> None:
        """Signal its leader, or the leader and all that belongs to the generation. A dead one is left alone."""
        self._post(op="kill", id=0, gen=generation, sig=number, scope="all" if everybody else "leader")

    def note_generation(self, generation: str, value: Mapping[str, Any]) -> None:
        """Leave word for the next keeper. The link is ordered: a note comes before what is posted after it."""
        self._post(op="note", gen=generation, value=dict(value))

    def note_slot(self, key: str, value: Any) -> None:
        """The same for the whole slot. None takes the note away."""
        self.notes[key] = value
        self._post(op="note", key=key, value=value)

    def keep(self, listener: socket.socket) -> None:
        """Have the warden hold a listening socket, in place of the one it may hold, and give it to each keeper after us as
        descriptor 5. It is duplicated: ours stays ours."""
        if self._to_keep is not None:
            self._to_keep.close()
        self._to_keep = listener.dup()
        self._post(op="beat")  # wakes the writer

    def notify(self, line: str) -> None:
        """Tell the service manager that runs the warden, if one does; newlines separate assignments (sd_notify(3))."""
        self._post(op="notify", line=line)

    def forget(self, generation: str) -> None:
        """Drop a dead generation from the warden's table."""
        self._news.pop(generation, None)
        self.rows.pop(generation, None)
        self._post(op="forget", gen=generation)

    async def settle(self) -> None:
        """Until the warden has read all that was posted: before that, it dies with us."""
        await self._ask(op="list")

    async def replace(self, argv: list[str] | None = None) -> str:
        """Have another keeper follow this one at once: "" when the warden will start it after our end, which is then
        the caller's to bring about; else why not. `argv`: its command line, where it is not to be ours (an upgrade may
        have moved Python); the first word is an absolute path. The engine is not touched, and no crash is counted."""
        message = await self._ask(op="replace", argv=argv)
        return "" if message["ev"] == "done" else str(message["why"])

    async def quit(self) -> str:
        """End the slot: "" when the warden will leave after us, else why it refuses."""
        message = await self._ask(op="quit")
        return "" if message["ev"] == "done" else str(message["why"])
