"""File locks: the kernel is the bookkeeper (docs/concepts.md, "Locks").

Whether a lock is held says that its holder lives; what stands in a file never does. A lock that is free is taken by a raw
flock; one that is waited for through filelock, with the settings that were found to be right (docs/adr/0002-locks.md):
holds belong to objects, not to threads, and a filesystem without flock is an error, never a quiet change to another kind
of lock. Looking is a raw flock, too: it costs 0.03 % of a core for 100 looks at 100 locks a second, filelock's 0.93 %
(measured).

A forked child closes its copies of the descriptors of raw locks, or it would go on holding what its parent held when that
was killed; and no thread forks between the opening of one and the note of it. What no hook of Python's sees is left: a fork
by a library's own code that never execs. The copy ends with that child, or at our release, which unlocks for all copies.
"""

from __future__ import annotations

import fcntl
import math
import os
import time
from _thread import RLock, get_ident  # as functools has it: `status` does without `threading`
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from supervisor import budgets, identity
from supervisor.errors import LockTimeoutError, SlotError, system_words

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from types import TracebackType

    from filelock import BaseFileLock

    from supervisor.slot import Slot

LOCK_MODE = 0o600


class Hold:
    """A lock that is held: by this object, whatever thread it is in, until `release` or the end of its `with`.

    A forked child has no part in it, and its copy of the object releases nothing.
    """

    __slots__ = ("_lock", "_seen", "path")

    def __init__(self, path: Path, lock: BaseFileLock | _Flock, seen: list[int]) -> None:
        self.path = path
        self._lock = lock
        self._seen = seen

    @property
    def is_held(self) -> bool:
        """Whether it is still held; in a forked child it is not."""
        return self._lock.is_locked

    def fileno(self) -> int:
        """The locked descriptor, close-on-exec. Raises ValueError when nothing is held any more."""
        if not self._lock.is_locked:
            raise ValueError(f"{self.path} is not held")
        return self._seen[-1]

    def duplicate_inheritable(self) -> int:
        """A second descriptor of the same open file description that survives exec(3), for a program that takes over.

        The kernel keeps the lock until the last of them is closed, but `release` takes it from all of them (flock(2)).
        Call it right before the exec, with no other thread that might fork. The caller closes it, should the exec fail.
        """
        descriptor = os.dup(self.fileno())
        os.set_inheritable(descriptor, True)
        return descriptor

    def release(self) -> None:
        """Let go; once is enough, more does no harm."""
        self._lock.release(force=True)

    def __enter__(self) -> Hold:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def is_held(path: Path) -> bool | None:
    """Whether somebody holds this lock now. False when the file is missing, None when it cannot be told.

    For an instant the look itself holds a shared lock: whoever *tries* a lock tries again before he believes a refusal.
    """
    try:
        descriptor = open_raw(path, os.O_RDONLY | os.O_NONBLOCK)
    except FileNotFoundError:
        return False
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        # A close alone would leave it with a child that another thread is forking just now (rag-rat#410).
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    except BlockingIOError:
        return True
    except OSError:
        return None
    finally:
        close_raw(descriptor)
    return False


def held_generations(slot: Slot) -> list[str]:
    """Generations, as `group.generation`, of which something lives: their lock is held, or that cannot be told. Raises
    SlotError."""
    return [
        f"{group}.{generation}"
        for group, generation in slot.generations()
        if is_held(slot.generation_lock(group, generation)) is not False
    ]


def acquire(
    path: Path,
    *,
    timeout: float,
    poll: float = budgets.BUILD_LOCK_TRY,
    cancelled: Callable[[], bool] | None = None,
) -> Hold:
    """Take the lock, waiting at most `timeout` seconds; blocks the thread. Use: `with acquire(path, timeout=...):`.

    `cancelled` is asked between two tries; when it says True, or raises, the wait ends. The same lock in the same
    process counts as any other holder's. Raises LockTimeoutError, which names the holder if the kernel tells, SlotError
    when the file cannot be locked, ValueError for a wait without end.
    """
    _check_finite(timeout)
    deadline = time.monotonic() + timeout
    if (hold := try_acquire(path)) is not None:
        return hold
    lock, seen = _make(path)
    while True:
        left = max(0.0, deadline - time.monotonic())
        if _take(lock, path, seen, timeout=left, poll=poll, cancelled=cancelled):
            return Hold(path, lock, seen)
        if time.monotonic() >= deadline or (cancelled is not None and cancelled()):
            raise _timeout(path, timeout)


async def acquire_async(path: Path, *, timeout: float, poll: float = budgets.BUILD_LOCK_TRY) -> Hold:  # noqa: ASYNC109 - the wait's limit belongs in the error's text
    """`acquire` for the trio thread: tried there (some 20 µs), and waited for between the tries.

    Use: `with await acquire_async(path, timeout=...):`. Cancelling it never leaves the lock taken.
    """
    import trio

    _check_finite(timeout)
    deadline = trio.current_time() + timeout
    await trio.lowlevel.checkpoint()
    while (hold := try_acquire(path)) is None:
        left = deadline - trio.current_time()
        if left <= 0:
            raise _timeout(path, timeout)
        await trio.sleep(min(poll, left))
    return hold


def try_acquire(path: Path) -> Hold | None:
    """Take the lock if it is free now; None if it is not. Raises SlotError when the file cannot be locked.

    None may come from somebody's look (`is_held`) of some microseconds: try again before believing it.
    """
    try:
        descriptor = open_raw(path, os.O_RDWR | os.O_CREAT)
    except FileNotFoundError:
        raise _homeless(path) from None
    except OSError as error:
        raise _cannot(path, error) from error
    lock = _Flock(descriptor)
    try:
        if lock.take() and _has_its_name(descriptor, path):
            return Hold(path, lock, [descriptor])
    except OSError as error:
        lock.release()
        raise _cannot(path, error) from error
    lock.release()
    return None


class _Flock:
    """A raw flock on a descriptor of `open_raw`, held by this object until `release` or its end. As with filelock's, a forked
    child closes its copy of the descriptor and has no part in the lock."""

    __slots__ = ("_descriptor", "_pid", "is_taken")

    def __init__(self, descriptor: int) -> None:
        self._descriptor, self._pid, self.is_taken = descriptor, os.getpid(), False

    @property
    def is_locked(self) -> bool:
        return self.is_taken and self._pid == os.getpid()

    def take(self) -> bool:
        """Whether it was free. Raises OSError."""
        with suppress(BlockingIOError):
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.is_taken = True
        return self.is_taken

    def release(self, force: bool = True) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor < 0 or self._pid != os.getpid():
            return
        was, self.is_taken = self.is_taken, False
        if was:
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # explicitly: see is_held
        close_raw(descriptor)

    def __del__(self) -> None:
        with suppress(OSError):
            self.release()


@contextmanager
def held_briefly(path: Path, *, timeout: float) -> Iterator[bool]:
    """Hold the lock inside, where it could be taken within `timeout` seconds; says whether. For a process that may not
    import filelock, which takes longer than all it wants to do: a raw flock, that filelock's sees and is seen by (ADR 2).
    A file that is not there is not made. Raises OSError."""
    try:
        descriptor = open_raw(path, os.O_RDWR)
    except FileNotFoundError:
        yield False
        return
    lock, deadline = _Flock(descriptor), time.monotonic() + timeout
    try:
        while not (held := lock.take()) and time.monotonic() <= deadline:
            time.sleep(budgets.READY_POLL_FIRST)  # noqa: TID251 - polls a lock that has no event to wait for
        yield held and _has_its_name(descriptor, path)
    finally:
        lock.release()


_raw: set[int] = set()
"""Descriptors of raw locks, for a forked child to close."""
_raw_guard = RLock()
"""Held where one is opened or closed, and over a fork. Again by the thread that has it: whoever forks in a signal handler
in the middle of that goes on."""
_forks: list[int] = []
"""The thread that holds _raw_guard for a fork; more than once where it forks in a signal handler in the middle of that."""


def open_raw(path: Path | str, flags: int, mode: int = LOCK_MODE) -> int:
    """A descriptor to flock, which a forked child closes; for `close_raw`. Raises OSError."""
    with _raw_guard:
        descriptor = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, mode)
        _raw.add(descriptor)
    return descriptor


def close_raw(descriptor: int) -> None:
    """Whoever has locked it unlocks it before: see `is_held`. Raises OSError."""
    with _raw_guard:
        _raw.discard(descriptor)
        os.close(descriptor)


def _before_fork() -> None:
    if _raw_guard.acquire(timeout=budgets.FORK_WAIT):
        _forks.append(get_ident())


def _after_fork_in_parent() -> None:
    if get_ident() in _forks:
        _forks.pop()
        _raw_guard.release()


def _after_fork_in_child() -> None:
    global _raw_guard
    _raw_guard = RLock()
    _forks.clear()
    while _raw:
        with suppress(OSError):
            os.close(_raw.pop())


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)


def holders(path: Path) -> list[int]:
    """Pids that took the lock, as /proc/locks has it (proc_locks(5)); for messages. Empty when nobody is known.

    The pid of a lock that was handed on is its first holder's, who may be gone. On btrfs nobody is known: stat(2) tells
    another device there than the kernel's table.
    """
    found: list[int] = []
    try:
        facts = os.stat(path)
        known = f"{os.major(facts.st_dev):02x}:{os.minor(facts.st_dev):02x}"
        with open(f"{identity.PROC}/locks", encoding="ascii") as table:
            for line in table:
                fields = line.split()
                if len(fields) < 6 or fields[1] != "FLOCK":
                    continue
                device, inode = fields[5].rpartition(":")[::2]
                # A pid of another namespace is shown as 0 or less.
                if int(inode) == facts.st_ino and device == known and int(fields[4]) > 0:
                    found.append(int(fields[4]))
    except (OSError, ValueError):
        return found
    return found


def _check_finite(timeout: float) -> None:
    if not (0 <= timeout < math.inf):
        raise ValueError(f"a wait for a lock needs a finite limit, not {timeout}")


def _make(path: Path) -> tuple[BaseFileLock, list[int]]:
    # Imported here: it takes longer than all the rest of a quick command (measured: 50 ms).
    from filelock import FileLock

    if not path.parent.is_dir():
        raise _homeless(path)  # filelock would make the directory, and with whatever mode
    seen: list[int] = []
    lock = FileLock(
        path, mode=LOCK_MODE, thread_local=False, fallback_to_soft=False, is_singleton=False, on_acquired=seen.append
    )
    return lock, seen


def _take(
    lock: BaseFileLock,
    path: Path,
    seen: list[int],
    *,
    timeout: float,
    poll: float,
    cancelled: Callable[[], bool] | None,
) -> bool:
    """One wait. False when the lock did not get free, or is another file's."""
    from filelock import Timeout

    try:
        lock.acquire(timeout=timeout, poll_interval=poll, cancel_check=cancelled)
    except Timeout:
        return False
    except OSError as error:
        raise _cannot(path, error) from error
    try:
        if _has_its_name(seen[-1], path):
            return True
    except BaseException:
        lock.release(force=True)
        raise
    lock.release(force=True)
    return False


def _has_its_name(descriptor: int, path: Path) -> bool:
    """The file is left in place when a lock is let go. Whoever else deleted it has parted us from the next one to come
    (filelock#574), so a lock on a file that no longer has its name is no lock."""
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(descriptor), os.stat(path, follow_symlinks=False))
    return False


def _homeless(path: Path) -> SlotError:
    return SlotError(f"{path.parent} is not there, so nothing in it can be locked", "prepare the slot first")


def _cannot(path: Path, error: OSError) -> SlotError:
    return SlotError(
        f"{path} cannot be locked: {system_words(error)}",
        "nothing was done without the lock; put the slot on a local, writable disk (QUEENRIGHT_SLOT)",
    )


def _timeout(path: Path, timeout: float) -> LockTimeoutError:
    who = " and ".join(_describe(pid) for pid in holders(path)) or "a process that the kernel does not name"
    return LockTimeoutError(
        f"{path} was not free within {timeout:g} s: it is held by {who}",
        "look with `queenright status` for what it is doing, and try again",
    )


def _describe(pid: int) -> str:
    try:
        with open(f"{identity.PROC}/{pid}/comm", encoding="utf-8", errors="replace") as file:
            return f"pid {pid} ({file.read().strip()})"
    except OSError:
        return f"pid {pid}"
