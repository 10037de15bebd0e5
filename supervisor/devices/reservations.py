"""The machine's book of promised memory: one lock under which whoever plans does so alone, and a record for each promise.

It lies in /dev/shm, which all users of a machine share and a reboot empties; a container with a /dev/shm of its own has its
own book, and its engines are seen in what is free only. Between users it is an agreement, not a wall: whoever wants to can
hold the lock, which ends in an error that names him, or write a record of his own. Nobody's memory is at stake in that,
only the next plan.

A record is written, locked, and only then given its name, as a member's file is: a visible one is locked, or its maker is
gone. The kernel's locks say what lives (`promises.lives`); what is dead is removed by the next one who plans.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import stat
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from supervisor import budgets, identity, locks
from supervisor.devices import promises
from supervisor.devices.promises import Grant, Reservation
from supervisor.errors import LockTimeoutError, SlotError
from supervisor.identity import Identity, Liveness

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

VARIABLE = "QUEENRIGHT_RESERVATIONS"
"""Environment variable that moves the book. Only those who name the same place see each other."""

SHARED = Path("/dev/shm")  # noqa: S108 - meant to be seen by everybody; what is in it is checked
NAME = "queenright-reservations"
VERSION = 1
RECORD_MOST_BYTES = 64 * 1024


def place() -> Path:
    """Where the book is. It need not be there yet."""
    named = os.environ.get(VARIABLE, "").strip()
    if named:
        return Path(named).absolute()
    if SHARED.is_dir():
        return SHARED / NAME
    import tempfile  # where there is no /dev/shm

    return Path(tempfile.gettempdir()) / NAME


class Promise:
    """A reservation that we made, alive as long as this object holds it, or the generation it names lives."""

    def __init__(self, path: Path, descriptor: int, reservation: Reservation) -> None:
        self.path = path
        self.reservation = reservation
        self._descriptor = descriptor

    def release(self, *, keep: bool = False) -> None:
        """Let go. With `keep` the record stays, and counts while the generation that it names lives."""
        if self._descriptor < 0:
            return
        if not keep:
            with suppress(OSError):
                self.path.unlink()
        os.close(self._descriptor)
        self._descriptor = -1

    def __enter__(self) -> Promise:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class Planning:
    """The book while its lock is ours."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.unreadable: list[str] = []
        """Records that are alive and cannot be read: what they promise is unknown."""

    def live(self) -> dict[str, Reservation]:
        """All that count now, by their files' names. The dead are removed."""
        found = {}
        self.unreadable = []
        for path in sorted(self.folder.glob("*.json")):
            reservation, own = _read(path)
            if reservation is None:
                if own:
                    self.unreadable.append(path.name)
                elif own is False:
                    _remove(path)
                continue
            if promises.lives(own, _generation_lives(reservation), _maker(reservation)):
                found[path.name] = reservation
            else:
                _remove(path)
        return found

    def reserve(
        self, slot: Path, group: str, grants: Iterable[Grant], *, generation_lock: Path | None = None
    ) -> Promise:
        """Write a promise down. Raises SlotError when that cannot be done."""
        maker = identity.own()
        lock = str(generation_lock) if generation_lock is not None else ""
        reservation = Reservation(str(slot), group, tuple(grants), *maker, generation_lock=lock)
        return self._write(reservation)

    def settle(self, promise: Promise, grants: Iterable[Grant], generation_lock: Path) -> Promise:
        """The engine has loaded: `grants` is what it really holds. From here on its generation's lock keeps the record.
        The promise given is no more. Raises SlotError."""
        old = promise.reservation
        fresh = Reservation(
            old.slot, old.group, tuple(grants), old.boot_id, old.pid_namespace, old.pid, old.ticks,
            generation_lock=str(generation_lock), settled=True,
        )  # fmt: skip
        made = self._write(fresh)
        promise.release()
        return made

    def settle_left(self, generation_lock: Path) -> Promise | None:
        """The same of a promise that another process made for that generation, and is no more. None where there is none."""
        for name, found in self.live().items():
            if found.generation_lock == str(generation_lock) and not found.settled:
                made = self._write(found._replace(settled=True))
                _remove(self.folder / name)
                return made
        return None

    def _write(self, reservation: Reservation) -> Promise:
        name = os.urandom(16).hex()
        draft, path = self.folder / f".{name}", self.folder / f"{name}.json"
        body = {"version": VERSION, **_plain(reservation)}
        try:
            descriptor = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
            try:
                os.write(descriptor, json.dumps(body).encode())
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.rename(draft, path)
            except BaseException:
                os.close(descriptor)
                with suppress(OSError):
                    draft.unlink()
                raise
        except OSError as error:
            raise _no_book(self.folder, error) from error
        return Promise(path, descriptor, reservation)


@contextmanager
def planning(folder: Path | None = None, *, wait: float = budgets.PLANNING_WAIT) -> Iterator[Planning]:
    """The book, ours alone: look at the devices, decide and reserve within. Blocks for up to `wait` seconds; never held
    over a load.

    Raises LockTimeoutError naming who holds it, SlotError when there can be no book.
    """
    folder = folder if folder is not None else place()
    descriptor = _open(folder)
    try:
        _take(folder / "lock", descriptor, wait)
        yield Planning(folder)
    finally:
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # explicitly: see locks.is_held
        locks.close_raw(descriptor)


def _open(folder: Path) -> int:
    """The lock's descriptor; directory and file are made where they are missing. Read-only is enough for flock(2), and
    another user's file is never opened for creation (fs.protected_regular of proc_sys_fs(5) refuses that)."""
    try:
        with suppress(FileExistsError):
            folder.mkdir(mode=0o1777)
            folder.chmod(0o1777)  # whatever the umask
        facts = folder.lstat()
        if not stat.S_ISDIR(facts.st_mode):
            raise NotADirectoryError(errno.ENOTDIR, "it is not a directory")
        if facts.st_uid not in (0, os.geteuid()) and not facts.st_mode & stat.S_ISVTX:
            raise PermissionError(errno.EPERM, "others may rename what is in it: it lacks the sticky bit")
        flags = os.O_NONBLOCK  # nobody's pipe is waited for
        while True:
            with suppress(FileNotFoundError):
                descriptor = locks.open_raw(folder / "lock", os.O_RDONLY | flags)
                if stat.S_ISREG(os.fstat(descriptor).st_mode):
                    return descriptor
                locks.close_raw(descriptor)
                raise OSError(errno.EINVAL, "its lock is not a file")
            with suppress(FileExistsError):
                descriptor = locks.open_raw(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_EXCL | flags, 0o644)
                os.fchmod(descriptor, 0o644)
                return descriptor
    except OSError as error:
        raise _no_book(folder, error) from error


def _take(path: Path, descriptor: int, wait: float) -> None:
    deadline = time.monotonic() + wait
    pause = threading.Event()
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() >= deadline:
                who = (
                    ", ".join(f"pid {pid}" for pid in locks.holders(path)) or "a process that the kernel does not name"
                )
                raise LockTimeoutError(
                    f"{path} was not free within {wait:g} s: {who} is planning",
                    "two engines are not planned at once on one machine; try again when that one is done",
                ) from None
        except OSError as error:
            raise _no_book(path.parent, error) from error
        pause.wait(budgets.BUILD_LOCK_TRY)


def _read(path: Path) -> tuple[Reservation | None, bool | None]:
    """The record, None where it is none of ours; and whether its own lock is held."""
    own = locks.is_held(path)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            said = json.loads(os.read(descriptor, RECORD_MOST_BYTES))
        finally:
            os.close(descriptor)
        if said.pop("version") != VERSION:
            return None, True  # a newer program's: it cannot be told dead by us
        grants = tuple(Grant(str(one["device"]), int(one["bytes"])) for one in said.pop("grants"))
        found = Reservation(grants=grants, **said)
        texts = (found.slot, found.group, found.boot_id, found.generation_lock)
        numbers = (found.pid_namespace, found.pid, found.ticks, *(grant.bytes for grant in grants))
        # Anybody can write here: what is no record must be none, and never an error.
        if any(type(one) is not str or "\0" in one for one in texts) or type(found.settled) is not bool:
            return None, own
        if any(type(one) is not int or one < 0 for one in numbers):
            return None, own
        return found, own
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError, OverflowError):
        return None, own


def _plain(reservation: Reservation) -> dict[str, object]:
    return {**reservation._asdict(), "grants": [grant._asdict() for grant in reservation.grants]}


def _generation_lives(reservation: Reservation) -> bool | None:
    if not reservation.generation_lock:
        return False
    path = Path(reservation.generation_lock)
    try:
        path.parent.stat()
    except PermissionError:
        return None  # another user's slot
    except OSError:
        pass
    return locks.is_held(path)


def _maker(reservation: Reservation) -> Liveness:
    who = Identity(reservation.boot_id, reservation.pid_namespace, reservation.pid, reservation.ticks)
    return identity.liveness(who)


def _remove(path: Path) -> None:
    with suppress(OSError):
        path.unlink()


def _no_book(folder: Path, error: OSError) -> SlotError:
    return SlotError(
        f"memory cannot be reserved in {folder}: {error.strerror or error}",
        f"set {VARIABLE} to a directory that all engines of this machine can use",
    )
