"""A real warden with a scripted keeper: the test speaks the link's protocol through it, line by line.

The keeper is a process of its own, started by the warden. It carries bytes between the link (descriptor 3) and a unix
socket of the test; lines that begin with `!` are for the keeper itself.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from tests.leak_check import MARKER
from tests.process.warden_children import PYTHON
from tests.support import ROOT, Marker, alive, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType

WARDEN = Path(os.environ.get("QUEENRIGHT_TEST_WARDEN", ROOT / "supervisor" / "warden.py"))
"""The one under test. A changed copy in its place shows which tests guard a line."""

PATIENCE_S = 30.0

KEEPER = r"""
import os, select, signal, socket, sys
orders = socket.socket(socket.AF_UNIX)
orders.connect(sys.argv[1])
orders.sendall(b"%d\n" % os.getpid())
pending, readers = b"", [3, orders.fileno()]
while True:
    for ready in select.select(readers, [], [])[0]:
        data = os.read(ready, 65536)
        if ready == 3:
            if not data:
                sys.exit(0)
            orders.sendall(data)
            continue
        if not data:
            sys.exit(0)
        *lines, pending = (pending + data).split(b"\n")
        for line in lines:
            word, _, rest = line.partition(b" ")
            if word == b"!exit":
                os._exit(int(rest))
            elif word == b"!burn":
                while True:
                    pass
            elif word == b"!deaf":
                readers.remove(3)
            elif word == b"!close":
                os.close(3)
                readers.remove(3)
            else:
                left = bytes.fromhex(rest.decode()) if word == b"!raw" else line + b"\n"
                while left:
                    left = left[os.write(3, left):]
"""

SEAM = """
import importlib.util, os, sys
spec = importlib.util.spec_from_file_location("warden", sys.argv[1])
warden = importlib.util.module_from_spec(spec)
spec.loader.exec_module(warden)
del sys.argv[1]
exec(os.environ["QUEENRIGHT_TEST_SEAM"])
warden.main()
"""


class Keeper:
    """One life of the scripted keeper, as the test sees it."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection, self._pending, self._count = connection, bytearray(), 0
        connection.settimeout(PATIENCE_S)
        self.pid = int(self._line())
        self.hello = self.hear("hello")
        self.rows: dict[str, dict[str, Any]] = {}
        while (message := self.hear("row", "listed"))["ev"] == "row":
            self.rows[message["gen"]] = message
        self.listed = message

    def _line(self) -> bytes:
        while (end := self._pending.find(b"\n")) < 0:
            data = self._connection.recv(1 << 20)
            if not data:
                raise EOFError("the keeper is gone")
            self._pending += data
        line = bytes(self._pending[:end])
        del self._pending[: end + 1]
        return line

    def next(self) -> dict[str, Any]:
        """The next event, whatever it is."""
        message: dict[str, Any] = json.loads(self._line())
        return message

    def hear(self, *events: str, **facts: object) -> dict[str, Any]:
        """The next event of these kinds with these facts; others are passed over."""
        while True:
            message = self.next()
            if message["ev"] in events and all(message.get(name) == fact for name, fact in facts.items()):
                return message

    def say(self, line: str) -> None:
        self._connection.sendall(line.encode() + b"\n")

    def raw(self, data: bytes) -> None:
        """Bytes for the link, as they are."""
        self.say(f"!raw {data.hex()}")

    def tell(self, op: str, **facts: Any) -> None:
        self.say(json.dumps({"op": op, **facts}))

    def ask(self, op: str, **facts: Any) -> dict[str, Any]:
        """A command and its answer; events that come between are lost."""
        self._count += 1
        self.tell(op, id=self._count, **facts)
        return self.hear("spawned", "done", "error", "listed", id=self._count)

    def until_gone(self, gen: str) -> dict[str, Any]:
        return self.hear("gone", gen=gen)

    def ended(self) -> None:
        """Wait for its end; what it still said is lost."""
        try:
            while True:
                self.next()
        except (EOFError, ConnectionResetError):
            self._connection.close()

    def close(self) -> None:
        self._connection.close()


class Rig:
    """One slot, its warden, and everything that a test started in it. Checked from outside at the end."""

    def __init__(
        self,
        *,
        seam: str = "",
        before: Callable[[], None] | None = None,
        pass_fds: Sequence[int] = (),
        stderr: int | None = None,
        may_try_again: bool = False,
        program: str = KEEPER,
        **settings: Any,
    ) -> None:
        self.marker = Marker()
        self.slot = Path(tempfile.mkdtemp(prefix="qrw"))  # short: a unix socket's path ends at 108 bytes
        (self.slot / "logs").mkdir()
        self.log = self.slot / "warden.log"
        self.watched: set[int] = set()
        self._last_words = ""
        self._keepers: list[Keeper] = []
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self.slot / "orders.sock"))
        self._listener.listen()
        self._listener.settimeout(PATIENCE_S)
        self.settings = {
            "keeper": [*PYTHON, program, str(self.slot / "orders.sock")],
            "scrub": ["NOTIFY_SOCKET"],
            "stop_limit": 60,
            "sweep_limit": 5,
            "keeper_delays": [0],
            "keeper_stable": 3600,
            "keeper_silence": 3600,
            "keeper_look": 0.1,
            **settings,
        }
        self.killed, self._may_try_again = False, may_try_again
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command(seam=seam),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log if stderr is None else stderr,
                env={**self.marker.env, "NOTIFY_SOCKET": "/x", "QUEENRIGHT_TEST_SEAM": seam},
                start_new_session=True,
                pass_fds=tuple(pass_fds),
                preexec_fn=before,  # the test process has one thread
            )
        self.pid = self.process.pid

    def command(self, *, seam: str = "", **settings: Any) -> list[str]:
        """The warden's command line; with a seam, its module is loaded, changed by it, and run."""
        words = [str(self.slot), json.dumps({**self.settings, **settings})]
        if seam:
            return [*PYTHON, SEAM, str(WARDEN), *words]
        return [sys.executable, "-I", "-S", str(WARDEN), *words]

    def keeper(self) -> Keeper:
        """The next keeper, once it has the table."""
        keeper = Keeper(self._listener.accept()[0])
        self._keepers.append(keeper)
        return keeper

    @property
    def env(self) -> dict[str, str]:
        """For what is spawned."""
        return {MARKER: self.marker.value, "PATH": "/usr/bin:/bin"}

    def order(self, gen: str, argv: Sequence[str], *, group: str = "", **facts: Any) -> dict[str, Any]:
        """A spawn command."""
        order = {"gen": gen, "group": group or gen, "argv": list(argv), "env": self.env, "note": None}
        return {**order, "lock": str(self.lock(gen)), "log": str(self.slot / f"{gen}.log"), **facts}

    def spawn(self, keeper: Keeper, gen: str, argv: Sequence[str], **facts: Any) -> int:
        """Start a generation; its leader's pid."""
        answer = keeper.ask("spawn", **self.order(gen, argv, **facts))
        assert answer["ev"] == "spawned", answer
        pid = int(answer["pid"])
        self.watched.add(pid)
        return pid

    def lock(self, gen: str) -> Path:
        return self.slot / f"{gen}.lock"

    def said(self, gen: str, lines: int = 1) -> list[str]:
        """Wait for so many whole lines in the log of a generation."""
        path = self.slot / f"{gen}.log"
        wait_until(lambda: path.read_bytes().count(b"\n") >= lines, within=PATIENCE_S, what=f"{lines} lines from {gen}")
        return path.read_text().splitlines()

    def pids_said(self, gen: str, lines: int = 1) -> list[int]:
        """The same where each line is the pid of one of its processes."""
        pids = [int(line) for line in self.said(gen, lines)]
        self.watched.update(pids)
        return pids

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL the warden: what is left in the slot then is the next one's to clear."""
        self.killed = True
        self.process.kill()
        self.process.wait(PATIENCE_S)

    def ended(self) -> int:
        """Wait for the warden's own end; its exit status."""
        return self.process.wait(PATIENCE_S)

    def fds(self) -> list[str]:
        """What the warden has open."""
        folder = Path(f"/proc/{self.pid}/fd")
        return sorted(f"{entry.name} {os.readlink(entry)}" for entry in folder.iterdir())

    def close(self, *, within: float = PATIENCE_S) -> None:
        """End the warden if the test did not, and check that nothing is left `within` seconds later."""
        try:
            self._close(within)
        finally:
            self._last_words = self.log.read_text()
            shutil.rmtree(self.slot, ignore_errors=True)

    def _close(self, within: float) -> None:
        for keeper in self._keepers:
            keeper.close()
        self._listener.close()
        if self.process.poll() is None:
            self.signal(signal.SIGTERM)
            self.signal(signal.SIGTERM)
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait(PATIENCE_S)
                self.marker.kill()
                raise AssertionError(f"the warden did not end: {self.log.read_text()}") from None
        self.marker.assert_no_process_left(within=within)
        left = [pid for pid in self.watched if alive(pid)]
        assert not left, f"processes without the marker are left: {left}"
        assert "Traceback" not in self.log.read_text(), self.log.read_text()
        assert self._may_try_again or "trying again" not in self.log.read_text(), self.log.read_text()
        assert is_free(self.slot / "warden.lock")
        assert self.killed or not (self.slot / "control.sock").exists()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except AssertionError as error:
            if value is None:
                raise
            value.add_note(f"and at the end: {error}")
        if value is not None:
            value.add_note(f"the warden said: {self._last_words}")


def is_free(lock: Path) -> bool:
    """Whether nobody holds it; a file that is not there is held by nobody."""
    try:
        with lock.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return True
    except BlockingIOError:
        return False
    return True


def wait_dead(*pids: int) -> None:
    """Wait on pidfds until all are dead: zombies, or gone."""
    deadline = time.monotonic() + PATIENCE_S
    for pid in pids:
        try:
            fd = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        try:
            ready, _, _ = select.select([fd], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"{pid} lives"
        finally:
            os.close(fd)


def state_of(pid: int) -> str:
    """The letter of proc_pid_stat(5), "" once it is reaped."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""
