"""What servers write down of the requests they served: whose answer was made, how often, and of whom nobody asked.

A server that keeps receipts appends JSON lines to a file: `{"id": X-Request-Id, "pid": ..., "at": monotonic time, "tokens":
null}` when a request comes, and the same with a number of tokens right before the last byte of its answer. The fakes of our
tests do; llama-server does not, and then this is not judged.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from chaos.soak.seen import Execution

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from chaos.soak.seen import Ended

OURS: Final = ("soak-", "visitor-", "gateway.", "control.")
"""How the ids of the load begin. Who asks without one is a canary of the keeper's, and a fault may have front ends of its own."""
KEPT: Final = 20_000
"""Requests that are over and are remembered: a late execution comes within seconds, and a round has some hundred."""


class Receipts:
    """Reads the files on, and keeps what belongs to requests that have not ended."""

    def __init__(self, files: Iterable[Path]) -> None:
        self._files = {path: 0 for path in files}
        self._executions: dict[str, list[Execution]] = {}
        self._over: dict[str, float] = {}
        self._readable = True
        self._late: list[str] = []

    @property
    def are_kept(self) -> bool:
        """Whether there is anything to read."""
        return bool(self._files)

    def read(self) -> None:
        """What was written since the last time."""
        for path, offset in self._files.items():
            try:
                with path.open("rb") as file:
                    file.seek(offset)
                    text = file.read()
            except FileNotFoundError:
                continue  # nobody was served yet
            except OSError:
                self._readable = False
                continue
            whole = text.rpartition(b"\n")[0]
            self._files[path] += len(whole) + 1 if whole else 0
            for line in whole.splitlines():
                self._take(json.loads(line))

    def _take(self, said: dict[str, object]) -> None:
        identifier, at = str(said["id"]), float(str(said["at"]))
        if not identifier.startswith(OURS):
            return
        if said["tokens"] is None and at > self._over.get(identifier, at):
            self._late.append(f"{identifier} again {at - self._over[identifier]:.2f} s after it had ended")
        if identifier in self._over:
            return
        pid = int(str(said["pid"]))
        mine = self._executions.setdefault(identifier, [])
        if said["tokens"] is None:
            mine.append(Execution(at, pid))
            return
        for number, one in reversed(list(enumerate(mine))):
            if one.pid == pid and one.tokens is None:
                mine[number] = one._replace(tokens=int(str(said["tokens"])))
                return
        mine.append(Execution(at, pid, int(str(said["tokens"]))))

    def of(self, ended: Sequence[Ended]) -> dict[str, Sequence[Execution]] | None:
        """The executions of those requests; None where they could not be read."""
        return {one.id: self._executions.get(one.id, []) for one in ended} if self._readable else None

    def strays(self, asked: Iterable[str], ended: Sequence[Ended]) -> list[str]:
        """Executions that belong to none of the requests that are open or have just ended."""
        known = {*asked, *(one.id for one in ended)}
        return [*(f"{identifier}, which nobody asked" for identifier in self._executions.keys() - known), *self._late]

    def settle(self, ended: Sequence[Ended]) -> None:
        """They were judged. From now on another execution of one of them is late."""
        for one in ended:
            self._executions.pop(one.id, None)
            self._over[one.id] = one.ended_at
        self._late.clear()
        while len(self._over) > KEPT:
            del self._over[next(iter(self._over))]
