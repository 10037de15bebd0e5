"""The control socket, seen from outside: one JSON object a line, a question and its answers.

Standard library only and cheap to import: `queenright status` and the client stand on it. The warden holds the
listener, so connecting works while a keeper is being replaced, and the answer comes from the next one. Why this is
not HTTP: ADR 3. The protocol is in docs/reference/control-protocol.md.
"""

from __future__ import annotations

import json
import math
import socket
import struct
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from supervisor import budgets
from supervisor.errors import ExitCode, QueenrightError
from supervisor.slot import Slot, connectable

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_LINE = 1 << 20
PEER_CREDENTIALS = struct.Struct("3i")
"""pid, uid, gid: SO_PEERCRED of unix(7)."""


class ControlError(QueenrightError):
    """The control socket gave no usable answer. `listening` says whether somebody listens there at all."""

    def __init__(self, what: str, next_step: str = "", *, listening: bool = False) -> None:
        super().__init__(what, next_step)
        self.listening = listening

    @classmethod
    def nobody(cls, slot: Slot) -> ControlError:
        """Nobody listens."""
        return cls(f"nothing listens on {slot.control_socket}", "`queenright status` says whether an engine runs there")

    @classmethod
    def broken(cls, slot: Slot, error: Exception) -> ControlError:
        """Somebody does, and cannot be spoken to."""
        return cls(f"{slot.control_socket}: {error}", "`queenright status` says what is known", listening=True)

    @classmethod
    def late(cls, slot: Slot) -> ControlError:
        """The keeper is silent."""
        step = "`queenright status` says what it is doing; `queenright stop` works all the same"
        return cls(f"the keeper of {slot.path} did not answer in time", step, listening=True)

    @classmethod
    def hung_up(cls, slot: Slot) -> ControlError:
        """It went away, as one does that is replaced."""
        what = f"the keeper of {slot.path} closed the connection without an answer"
        return cls(what, "it is being replaced, or leaves: try again", listening=True)


def ask(slot: Slot, op: str, *, limit: float = budgets.CONTROL_ANSWER, **arguments: Any) -> dict[str, Any]:
    """One question, one answer, within `limit` seconds. Raises ControlError, or the keeper's error as one."""
    for answer in converse(slot, op, limit=limit, **arguments):
        return answer
    raise ControlError.hung_up(slot)


def listener(slot: Slot) -> int | None:
    """Pid of whoever made the control socket listen, as the kernel tells; None where nobody listens."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        try:
            connection.settimeout(budgets.CONTROL_ANSWER)
            with connectable(slot.control_socket) as path:
                connection.connect(path)
            credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, PEER_CREDENTIALS.size)
        except OSError:
            return None
    return int(PEER_CREDENTIALS.unpack(credentials)[0]) or None


def converse(
    slot: Slot, op: str, *, limit: float, first: float = math.inf, **arguments: Any
) -> Iterator[dict[str, Any]]:
    """One question and all its answers, until the keeper closes. `limit` seconds for the whole, of which `first` for
    the first answer. Raises ControlError."""
    began = time.monotonic()
    deadline = began + min(first, limit)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        try:
            connection.settimeout(None if limit == math.inf else max(0.001, limit))
            with connectable(slot.control_socket) as path:
                connection.connect(path)
            connection.sendall(json.dumps({"op": op, **arguments}).encode() + b"\n")
        except (FileNotFoundError, ConnectionRefusedError) as error:
            raise ControlError.nobody(slot) from error
        except OSError as error:
            raise ControlError.broken(slot, error) from error
        pending = b""
        while True:
            try:
                left = deadline - time.monotonic()
                if left <= 0:
                    raise TimeoutError  # also where there always is something more to read
                connection.settimeout(None if left == math.inf else left)
                data = connection.recv(65536)
            except TimeoutError as error:
                raise ControlError.late(slot) from error
            except OSError:
                data = b""
            if not data:
                return
            *lines, pending = (pending + data).split(b"\n")
            for line in lines:
                yield checked(slot, line)
                deadline = began + limit


def checked(slot: Slot, line: bytes) -> dict[str, Any]:
    """A line of the keeper as data. Raises ControlError for what is none, and for an error that it says."""
    try:
        answer: dict[str, Any] = {} | json.loads(line)
    except (ValueError, TypeError) as error:
        what = f"what answers on {slot.control_socket} is not a keeper's"
        raise ControlError(what, "`queenright stop` does without it", listening=True) from error
    if "error" in answer:
        refusal = ControlError(answer["error"], answer.get("next_step", ""), listening=True)
        with suppress(ValueError, TypeError):
            refusal.exit_code = ExitCode(answer.get("exit_code", refusal.exit_code))
        raise refusal
    return answer
