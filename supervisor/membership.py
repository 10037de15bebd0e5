"""Who uses the engine: one locked file per process, which the kernel lets go when the process dies, however it dies.

The file is made and locked in `joining/` and only then renamed into `members/`: what can be seen there is locked, or
its process is dead. Nobody ever locks a file that is in sight, except a prober who found it free, to delete it while he
holds it; so a look never makes a joiner fail, and a live member cannot become invisible (docs/concepts.md, "Locks").

Within a process the holds are counted: however many handles, in however many threads, there is one file and one lock
per slot, which goes with the last handle. A forked child has no part in it.

Over 300 lines: joining and probing are one protocol, and each is only right beside the other.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections import deque
from contextlib import contextmanager, suppress
from threading import Lock, get_ident
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import finalize

from supervisor import budgets, identity, locks
from supervisor.errors import SlotError, system_words

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

    from supervisor.identity import Identity
    from supervisor.slot import Slot

MEMBER_LIMIT = 64 * 1024
"""Bytes read of a member's file. Ours have some 250."""

LOOK = os.O_RDONLY | os.O_NONBLOCK
TRY_SHARED = fcntl.LOCK_SH | fcntl.LOCK_NB
"""Put together once: a look is made at a thousand files in a row."""


class Member(NamedTuple):
    """A member seen from outside. `identity` is None, and the rest empty, when its file says nothing of sense."""

    id: str
    identity: Identity | None
    program: str
    since: float
    """Seconds since the epoch when it joined, by its clock: for people, never for decisions."""
    since_boot: float
    """Seconds since the boot (CLOCK_BOOTTIME) when it joined."""
    last_use: float | None = None
    """Seconds since the epoch when it last began a request through the client library, to within USE_STEP. None where it
    never did, which is no proof: a program that has URL and key goes to the proxy by itself."""

    @property
    def pid(self) -> int | None:
        """Its pid in its own namespace; None when its file says nothing of sense."""
        return self.identity.pid if self.identity else None

    def describe(self) -> dict[str, Any]:
        """For `status`."""
        return {"pid": self.pid, "name": self.program, "since": self.since, "last_use": self.last_use}


class _Hold:
    """The one file and lock of this process in one slot, and the handles that count on it."""

    __slots__ = ("descriptor", "handles", "path")

    def __init__(self, path: str, descriptor: int) -> None:
        self.path = path
        self.descriptor = descriptor
        self.handles: set[object] = set()

    def is_in_sight(self) -> bool:
        """Whether the file still has its name: somebody may have cleared the whole slot away."""
        try:
            return os.path.samestat(os.fstat(self.descriptor), os.stat(self.path, follow_symlinks=False))
        except OSError:
            return False

    def release(self) -> None:
        """Delete the file while it is locked, then unlock: explicitly, since a child that another thread is forking
        just now shares the lock until its exec (rag-rat#410)."""
        with suppress(OSError):
            if self.is_in_sight():
                os.unlink(self.path)
        with suppress(OSError):
            fcntl.flock(self.descriptor, fcntl.LOCK_UN)
        os.close(self.descriptor)


_guard = Lock()
_holds: dict[str, _Hold] = {}
"""By the real path of the slot. Guarded by _guard, as are the holds in it."""
_dropped: deque[tuple[str, object]] = deque()
"""Handles that went without `leave`. The collector may say so in the middle of anything, also of what is done under
_guard by the same thread: so it only adds to this queue, and whoever has the guard works it off."""
_forking: int | None = None
"""The thread that holds _guard for a fork."""


class Membership:
    """A handle on this process's membership of a slot. `leave` ends it; so do `with`, and dropping the last reference.

    In a forked child it is no longer held, and leaving does nothing there.
    """

    __slots__ = ("__weakref__", "_finalizer", "_key", "_token", "slot")

    def __init__(self, slot: Slot, key: str, token: object) -> None:
        self.slot = slot
        self._key = key
        self._token = token
        # Runs at a regular exit of the interpreter, too; at any other the kernel drops the lock.
        self._finalizer = finalize(self, _abandon, key, token)

    def note_use(self) -> None:
        """The process uses the engine now: the time of its member file is set, for whoever looks. A system call and no write,
        3 us (measured). Where the file is gone, or another thread has the guard, it is not noted."""
        if _guard.acquire(blocking=False):
            try:
                if (hold := _holds.get(self._key)) is not None:
                    with suppress(OSError):
                        os.utime(hold.descriptor)
            finally:
                _guard.release()
            _settle()

    @property
    def is_held(self) -> bool:
        """Whether this handle still counts."""
        with _guarded():
            hold = _holds.get(self._key)
            return hold is not None and self._token in hold.handles

    @property
    def is_only_one(self) -> bool:
        """Whether nobody but the owner of this handle uses the engine by this process's membership."""
        with _guarded():
            hold = _holds.get(self._key)
            return hold is not None and hold.handles == {self._token} and hold.is_in_sight()

    def leave(self) -> None:
        """Give the handle back; with the last one of the process the file goes and the lock falls. Once is enough."""
        if self._finalizer.detach() is not None:
            with _guarded():
                _drop(self._key, self._token)

    def __enter__(self) -> Membership:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leave()


def join(slot: Slot, *, program: str) -> Membership:
    """Become a member, or count one more handle if this process is one. `program` is the name shown to people.

    The caller holds the slot's build.lock: the keeper counts again under it before it stops, so nobody joins an engine
    that is leaving. The slot is prepared. Raises SlotError when the member's file cannot be made or locked.
    """
    key = os.path.realpath(slot.path)
    token = object()
    with _guarded():
        hold = _holds.get(key)
        if hold is None or not hold.is_in_sight():
            fresh = _enter(slot, program)
            if hold is not None:
                # The handles of before count on; their file is gone, and its lock says nothing to anybody.
                fresh.handles |= hold.handles
                hold.release()
            _holds[key] = hold = fresh
        hold.handles.add(token)
    return Membership(slot, key, token)


def _enter(slot: Slot, program: str) -> _Hold:
    """Make and lock the file out of sight, then show it."""
    _clear_joining(slot)
    name = os.urandom(16).hex()
    hidden = slot.joining / name
    path = slot.members / name
    descriptor = -1
    try:
        content = json.dumps(
            {
                "identity": identity.own()._asdict(),
                "program": program,
                "since": time.time(),
                "since_boot": time.clock_gettime(time.CLOCK_BOOTTIME),
            }
        )
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(hidden, flags, 0o600)
        view = memoryview(content.encode("ascii"))
        while view:
            view = view[os.write(descriptor, view) :]
        os.utime(descriptor, (0, 0))  # not used yet: `note_use`
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.rename(hidden, path)
    except (OSError, ValueError) as error:
        if descriptor >= 0:
            with suppress(OSError):
                os.unlink(hidden)
            os.close(descriptor)
        reason = system_words(error) if isinstance(error, OSError) else str(error)
        raise SlotError(
            f"cannot become a member of {slot.path}: {reason}",
            "the slot must be a writable directory on a local disk with space left",
        ) from error
    return _Hold(str(path), descriptor)


def _clear_joining(slot: Slot) -> None:
    """Whatever stands in `joining/` is of somebody who died there: joins are made under build.lock, and that is ours."""
    with suppress(OSError):
        for name in os.listdir(slot.joining):
            with suppress(OSError):
                os.unlink(slot.joining / name)


@contextmanager
def _guarded() -> Iterator[None]:
    """Hold the guard; afterwards work off the handles that were dropped meanwhile."""
    try:
        with _guard:
            yield
    finally:
        _settle()


def _abandon(key: str, token: object) -> None:
    """What the collector calls: never waits."""
    _dropped.append((key, token))
    _settle()


def _settle() -> None:
    """Work off the dropped handles, unless somebody has the guard: he does it after giving it back."""
    while _dropped and _guard.acquire(blocking=False):
        try:
            with suppress(IndexError):
                _drop(*_dropped.popleft())
        finally:
            _guard.release()


def _drop(key: str, token: object) -> None:
    hold = _holds.get(key)
    if hold is None or token not in hold.handles:
        return
    hold.handles.discard(token)
    if not hold.handles:
        del _holds[key]
        hold.release()


def _before_fork() -> None:
    global _forking
    if _guard.acquire(timeout=budgets.FORK_WAIT):
        _forking = get_ident()


def _after_fork_in_parent() -> None:
    global _forking
    if _forking == get_ident():
        _forking = None
        _guard.release()


def _after_fork_in_child() -> None:
    """The child shares the open file descriptions: kept open, they would keep its parent a member after its death.
    They are closed, not unlocked: an unlock would end the parent's membership."""
    global _guard, _forking
    _guard = Lock()
    _forking = None
    _dropped.clear()
    for hold in _holds.values():
        with suppress(OSError):
            os.close(hold.descriptor)
    _holds.clear()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)


def members(slot: Slot) -> list[Member]:
    """The live members, by their locks. Files of dead ones are deleted on the way. Any process may ask.

    A member that cannot be looked at counts: unknown means alive. Raises SlotError when the directory cannot be read.
    """
    found: list[Member] = []
    folder = str(slot.members)
    for name in _names(slot):
        descriptor = _probe(folder, name)
        if descriptor is None:
            continue
        content, used = b"", 0.0
        if descriptor >= 0:
            try:
                with suppress(OSError):
                    content = os.read(descriptor, MEMBER_LIMIT)
                    used = os.fstat(descriptor).st_mtime
            finally:
                locks.close_raw(descriptor)
        found.append(_parse(name, content, used))
    return found


def held_here() -> bool:
    """Whether this process is a member of any slot."""
    with _guarded():
        return bool(_holds)


def count(slot: Slot) -> int:
    """How many members live. As `members`, without reading what their files say."""
    return sum(_each_alive(slot))


def is_used(slot: Slot) -> bool:
    """Whether there is a live member: as `count`, and it looks no further than the first one."""
    return any(_each_alive(slot))


def _each_alive(slot: Slot) -> Iterator[bool]:
    folder = str(slot.members)
    for name in _names(slot):
        descriptor = _probe(folder, name)
        if descriptor is not None and descriptor >= 0:
            locks.close_raw(descriptor)
        yield descriptor is not None


def _names(slot: Slot) -> list[str]:
    try:
        return os.listdir(slot.members)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise SlotError(
            f"{slot.members} cannot be read: {system_words(error)}",
            "make it readable; until then nobody can say whether the engine is in use",
        ) from error


def _probe(folder: str, name: str) -> int | None:
    """None when that member is dead or gone, else a descriptor to read from, or -1 when it cannot be looked at."""
    path = f"{folder}/{name}"
    try:
        descriptor = locks.open_raw(path, LOOK)
    except FileNotFoundError:
        return None
    except OSError:
        return -1
    try:
        fcntl.flock(descriptor, TRY_SHARED)
    except BlockingIOError:
        try:
            # Locked and without a name: on its way out, or another prober is deleting it.
            if os.fstat(descriptor).st_nlink > 0:
                return descriptor
        except OSError:
            return descriptor
        locks.close_raw(descriptor)
        return None
    except OSError:
        locks.close_raw(descriptor)
        return -1
    try:
        _bury(descriptor, path)
    finally:
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_UN)
        locks.close_raw(descriptor)
    return None


def _bury(descriptor: int, path: str) -> None:
    """Delete a dead member's file: only while we alone hold it, and only if the name still means this file."""
    with suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(descriptor), os.stat(path, follow_symlinks=False)):
            os.unlink(path)


def _parse(name: str, content: bytes, used: float = 0.0) -> Member:
    try:
        data = json.loads(content)
        return Member(
            name,
            identity.parse(data["identity"]),
            str(data["program"]),
            float(data["since"]),
            float(data["since_boot"]),
            used or None,
        )
    except (ValueError, TypeError, KeyError, RecursionError):
        return Member(name, None, "", 0.0, 0.0)
