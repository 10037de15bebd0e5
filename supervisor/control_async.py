"""One question to the control socket from a trio task; `control.ask` is the same for threads."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import trio

from supervisor import budgets
from supervisor.control import ControlError, checked
from supervisor.slot import Slot, connectable

if TYPE_CHECKING:
    from collections.abc import Iterable


async def ask(
    slot: Slot, op: str, *, limit: float = budgets.CONTROL_ANSWER, groups: Iterable[str] = ()
) -> dict[str, Any]:
    """The keeper's answer, within `limit` seconds. Raises ControlError. Cancelling hangs up."""
    line = b""
    question = json.dumps({"op": op, "groups": list(groups)}).encode() + b"\n"
    with trio.move_on_after(limit) as scope:
        with trio.socket.socket(trio.socket.AF_UNIX, trio.socket.SOCK_STREAM) as connection:
            try:
                with connectable(slot.control_socket) as path:
                    await connection.connect(path)
                await trio.SocketStream(connection).send_all(question)
            except (FileNotFoundError, ConnectionRefusedError) as error:
                raise ControlError.nobody(slot) from error
            except (OSError, trio.BrokenResourceError) as error:
                raise ControlError.broken(slot, error) from error
            while not line.endswith(b"\n"):
                try:
                    data = await connection.recv(65536)
                except OSError:
                    data = b""
                if not data:
                    raise ControlError.hung_up(slot)
                line += data
    if scope.cancelled_caught:
        raise ControlError.late(slot)
    return checked(slot, line)
