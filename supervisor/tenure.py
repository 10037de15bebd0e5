"""A process's use of an engine over all the engine's lives: its membership, and who rebuilds what is gone.

One thread, made when it is first wanted, watches the warden (by pidfd: it costs the keeper nothing, however many members
there are) and is the only one that rebuilds: so fifty requests that find the engine gone cause one build, and one that
failed late cannot take down what was just rebuilt. The membership is kept meanwhile: the new handle is there before the
old one is given back.

An engine that died is rebuilt at once, before a request has to fail. One that was stopped on purpose is rebuilt when it
is needed again, and one that is held is not rebuilt at all.
"""

from __future__ import annotations

import os
import select
import threading
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING

from supervisor import budgets, departing, holding, identity, locks, records
from supervisor.contract import Lifetime
from supervisor.errors import NoEngineError, QueenrightError, RecordError

if TYPE_CHECKING:
    from collections.abc import Callable

    from supervisor.acquire import Acquired
    from supervisor.identity import Identity
    from supervisor.membership import Membership
    from supervisor.slot import Slot


class Tenure:
    """See the module. Any thread may use it. Give it back with `leave`; dropping it does so, too."""

    def __init__(self, acquired: Acquired, again: Callable[[Membership], Acquired]) -> None:
        """`again` acquires the same once more, maybe in another slot, for whoever holds that membership and gives it back
        once the new one is there; it may block and raise QueenrightError."""
        self._membership: Membership = acquired.membership
        self._again = again
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._left = False
        self._wanted = False
        self._failure: tuple[int, QueenrightError] | None = None
        self._used = -budgets.USE_STEP
        self.attempts = 0
        """How often a rebuild was begun."""
        self._wake_read, self._wake_write = os.pipe()
        self._thread: threading.Thread | None = None
        # What ends the thread of a Tenure that was dropped: the end of the pipe.
        self._finalizer = weakref.finalize(self, os.close, self._wake_write)
        self._finalizer_read = weakref.finalize(self, os.close, self._wake_read)

    @property
    def slot(self) -> Slot:
        """Where the engine is now."""
        return self._membership.slot

    def watch(self) -> None:
        """Rebuild the engine from now on when it dies. Cheap to call again; nothing in a forked child."""
        with self._lock:
            if self._left or self._thread is not None or os.getpid() != self._pid:
                return
            self._finalizer_read.detach()
            arguments = (weakref.ref(self), self._wake_read)
            self._thread = threading.Thread(target=_watch, args=arguments, name="queenright-watch", daemon=True)
            self._thread.start()

    def note_use(self, now: float) -> None:
        """A request begins at `now`, of time.monotonic(). Every USE_STEP the membership says so; else it is a comparison."""
        if now - self._used >= budgets.USE_STEP:
            self._used = now
            if os.getpid() == self._pid:
                self._membership.note_use()

    def need(self, since: int) -> None:
        """The engine was found gone, and is wanted: have it rebuilt. Returns at once.

        `since` is what `attempts` was when the caller began to look. Raises what an attempt after that failed with, and
        NoEngineError in a forked child, which is no member.
        """
        if os.getpid() != self._pid:
            what = f"the engine in {self.slot.path} is gone, and this process is a fork of its member"
            raise NoEngineError(what, "open the engine in this process")
        with self._lock:
            failure = self._failure
            if failure is not None and failure[0] > since:
                raise failure[1]
            self._wanted = True
        self.watch()
        self._poke()

    def leave(self, *, wait: bool = False) -> bool:
        """Give the membership back. With `wait`: when nobody else uses the engine, wait until it is gone, for at most
        HANDOFF_WAIT. True when it is known that no engine is left in the slot."""
        if os.getpid() != self._pid:
            return False  # a fork has no part in it; and the lock may have been held by a thread that it has not
        slot = self.slot
        with self._lock:
            was, self._left = self._left, True
        if not was:
            self._poke()
            if self._thread is not None and self._thread is not threading.current_thread():
                self._thread.join(budgets.WATCH_END)
            with self._lock:
                self._membership.leave()
        return wait and departing.is_empty(slot, budgets.HANDOFF_WAIT)

    # --- on the thread ----------------------------------------------------------------------------------------------

    def _poke(self) -> None:
        with suppress(OSError):
            os.write(self._wake_write, b"x")

    def _warden(self) -> Identity | None:
        from supervisor import stopping

        with suppress(OSError, QueenrightError):
            return stopping.find_warden(self.slot)
        return None

    def _look(self) -> None:
        """Rebuild, if the engine is gone and should not be."""
        with self._lock:
            wanted, self._wanted = self._wanted, False
            if self._left:
                return
        if locks.is_held(self.slot.warden_lock) is not False or holding.is_held(self.slot):
            return
        if not wanted and (self._failure is not None or not _died(self.slot)):
            return  # what failed once is tried again for who needs it, not for its own sake
        with self._lock:
            self.attempts += 1
        try:
            acquired = self._again(self._membership)
        except QueenrightError as error:
            with self._lock:
                self._failure = (self.attempts, error)
            return
        with self._lock:
            self._membership, self._failure, gone = acquired.membership, None, self._is_left()
        if gone:  # while it was being rebuilt
            acquired.membership.leave()

    def _is_left(self) -> bool:
        return self._left


def _watch(reference: weakref.ref[Tenure], wake: int) -> None:
    """The thread. It holds no reference while it waits, so that a tenure that is dropped can go."""
    try:
        while True:
            tenure = reference()
            if tenure is None or tenure._left:
                return
            warden = tenure._warden()  # before the look: one that ends in between is noticed by the wait
            tenure._look()
            del tenure
            # Without one: stopped, or being built by somebody else, or in another pid namespace. The next one is found.
            _wait(warden, wake, budgets.SLOT_POLL if warden is None else None)
    finally:
        os.close(wake)


def _wait(warden: Identity | None, wake: int, limit_s: float | None) -> None:
    """Until this warden ends, or somebody pokes. Without one: a poke, or `limit_s`."""
    poll = select.poll()
    poll.register(wake, select.POLLIN)
    descriptor = -1
    if warden is not None:
        with suppress(OSError):
            descriptor = identity.open_pidfd(warden)
            poll.register(descriptor, select.POLLIN)
        if descriptor < 0:
            return  # it has just ended
    try:
        if any(number == wake for number, _ in poll.poll(None if limit_s is None else limit_s * 1000)):
            os.read(wake, 4096)
    finally:
        if descriptor >= 0:
            os.close(descriptor)


def _died(slot: Slot) -> bool:
    """Whether the engine that is gone ended by accident. One that is stopped takes its contract away with it; and one
    that `queenright run` kept is for whoever keeps that up to start again."""
    with suppress(RecordError):
        contract = records.read_fields(slot.contract_record, version=records.CONTRACT_VERSION)
        return contract is not None and contract.get("lifetime") == Lifetime.MEMBERS
    return False
