"""For front ends that serve: one server for each data directory, and for a scope where one is named.

    with serve_lock(data_dir, program="lilbee serve", say=print) as lock:
        engine = lock.use_engine(open_engine())
        app = ShutdownRoute(lock.token, app=my_app)
        ...  # listen
        lock.announce("http://127.0.0.1:8080")
        ...  # serve until SIGTERM

A second one waits for a hand-off, then gets ServedElsewhereError, which says who serves and has exit code 3. The locks
are the kernel's: a server that was killed leaves nothing that is in the way. How to use all of it:
docs/guides/front-ends.md.
"""

from __future__ import annotations

import os
import secrets
import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from supervisor import budgets, holders, identity, locks, membership, records, scopes, takeover
from supervisor.errors import LockTimeoutError, RecordError, ServedElsewhereError
from supervisor.holders import Holder
from supervisor.parents import ParentWatch, wait_parent, watch_parent
from supervisor.shutdown_route import ShutdownRoute, stop_this_process

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from types import TracebackType

    from supervisor.client import Engine
    from supervisor.locks import Hold
    from supervisor.scopes import Place

__all__ = [
    "Holder",
    "ParentWatch",
    "ServeLock",
    "ServedElsewhereError",
    "ShutdownRoute",
    "serve_lock",
    "stop_this_process",
    "wait_parent",
    "watch_parent",
]

T = TypeVar("T")
P = ParamSpec("P")

_kept: dict[str, Hold] = {}
"""Locks that could not be released in order, by path: the kernel has them until this process ends, unless it serves
there again."""
_keeping = threading.Lock()


def serve_lock(
    data_dir: Path,
    *,
    program: str,
    scope: str | None = None,
    url: str | None = None,
    token: str | None = None,
    take_over: bool = False,
    wait_s: float = budgets.HANDOFF_WAIT,
    cleanup_s: float = budgets.SERVER_CLEANUP,
    say: Callable[[str], None] = lambda _: None,
) -> ServeLock:
    """The right to serve `data_dir`, to be used in a `with`: entering waits for at most `wait_s` seconds, and says what
    for and who serves there.

    `scope` is a second lock over several data directories: a plain name (one for each OS user) or the absolute path of
    a directory; without it, QUEENRIGHT_EXCLUSIVE_SCOPE or LILBEE_EXCLUSIVE_SCOPE. `token` is what ends this server
    (`ShutdownRoute`); by default a fresh one. `take_over` asks whoever serves to shut down, with the token from its
    file, and then waits in the same way. Nobody is ever signalled.

    Raises UsageError for a scope that is none; entering raises ServedElsewhereError, or SlotError for a directory where
    locks cannot be relied on.
    """
    chosen = scope if scope is not None else scopes.scope_of_environment()
    data_dir = Path(os.path.abspath(data_dir))
    # The scope first, in every process: two that want both never wait for each other.
    places = [*([scopes.of_scope(chosen)] if chosen else []), scopes.of_data(data_dir)]
    return ServeLock(
        places, data_dir, program, url, token or secrets.token_urlsafe(32), take_over, wait_s, cleanup_s, say
    )


class ServeLock:
    """Held while this process serves. What is entered here is ended before another server can begin.

    Held by this object, whatever thread it is in; a forked child has no part in it.
    """

    def __init__(
        self,
        places: list[Place],
        data_dir: Path,
        program: str,
        url: str | None,
        token: str,
        take_over: bool,
        wait_s: float,
        cleanup_s: float,
        say: Callable[[str], None],
    ) -> None:
        self.data_dir, self.program, self.token = data_dir, program, token
        self.token_file = data_dir / holders.TOKEN_NAME
        self._places, self._url, self._take_over, self._say = places, url, take_over, say
        self._wait_s, self._cleanup_s = wait_s, cleanup_s
        self._holds: list[tuple[Place, Hold]] = []
        self._stack = ExitStack()
        self._pid = 0
        self._since = 0.0

    @property
    def is_held(self) -> bool:
        """Whether this process serves by it."""
        return bool(self._holds) and all(hold.is_held for _, hold in self._holds)

    def announce(self, url: str) -> None:
        """Say where we listen: to people who find us in their way, and to a successor who wants to ask us to end, for
        whom it must be a loopback address. Raises ValueError when the lock is not held."""
        if not self.is_held:
            raise ValueError("nothing can be announced without the lock")
        self._url = url
        self._name_us()

    def enter_context(self, manager: AbstractContextManager[T]) -> T:
        """Enter something that is left before the locks are released, as of `contextlib.ExitStack`.

        It is left in a thread of its own, so that one that hangs can be noticed.
        """
        return self._stack.enter_context(manager)

    def callback(self, function: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
        """Call something before the locks are released: the last one given is the first. As `enter_context`."""
        self._stack.callback(function, *args, **kwargs)

    def use_engine(self, engine: Engine) -> Engine:
        """Close the engine before the locks are released, and wait until its memory is free if we were its last user."""
        from supervisor import departing

        self._stack.callback(departing.wait_settled, engine.slot)
        return self._stack.enter_context(engine)

    def __enter__(self) -> ServeLock:
        deadline = time.monotonic() + self._wait_s
        self._pid, self._since = os.getpid(), time.time()
        try:
            for place in self._places:
                scopes.prepare(place.lock.parent)
                self._holds.append((place, self._acquire(place, deadline)))
            self._name_us()
        except BaseException:
            self._release()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if os.getpid() != self._pid:
            return False  # a forked child: neither the locks nor what was entered are its own
        trouble = "it was interrupted while it ended"
        try:
            swallowed, trouble, error = self._clean_up(kind, value, trace)
        finally:
            if not trouble and membership.held_here():
                trouble = "this process still uses an engine (open it inside: lock.use_engine)"
            if trouble:
                self._say(f"{self.program} keeps its serving locks until its process ends: {trouble}")
                self._keep()
            else:
                self._release()
        if error is not None:
            raise error
        return swallowed

    # --- taking -----------------------------------------------------------------------------------------------------

    def _acquire(self, place: Place, deadline: float) -> Hold:
        if (kept := _take_kept(place)) is not None:
            return kept
        said, answer = "", ""
        asked: set[tuple[identity.Identity, str]] = set()
        # Not a bare try: somebody's look at the lock may refuse it for an instant.
        patience = budgets.BUILD_LOCK_TRY
        while True:
            left = max(0.0, deadline - time.monotonic())
            try:
                return locks.acquire(place.lock, timeout=min(patience, left), poll=budgets.BUILD_LOCK_TRY)
            except LockTimeoutError:
                holder = holders.find(place)
            words = holders.name(place, holder)
            if time.monotonic() >= deadline:
                raise _served_elsewhere(place, holder, words, answer, self._wait_s)
            if words != said:
                said = words
                self._say(f"{place.what} is served by {words}; waiting up to {self._wait_s:g} s for it to end")
            if self._take_over and holder is not None and holder.url is not None and holder.pid != self._pid:
                key = (holder.identity, holder.url)
                if key not in asked:
                    before, (_, answer, sent) = answer, takeover.ask(holder)
                    if sent:  # else it may not listen yet: ask at the next look
                        asked.add(key)
                    if answer != before:
                        self._say(f"{holder.program} (pid {holder.pid}): {answer}")
            patience = budgets.HOLDER_LOOK

    def _name_us(self) -> None:
        """Write who we are beside the locks. A full disk keeps nobody from serving: it is said, and the locks hold."""
        try:
            records.write_text_private(self.token_file, self.token)
            us = Holder(identity.own(), self.program, self._since, str(self.data_dir), self._url, str(self.token_file))
            for place, _ in self._holds:
                holders.write(place.sidecar, us)
        except (RecordError, OSError) as error:
            words = error.what if isinstance(error, RecordError) else str(error)
            self._say(f"{self.program} serves, but others cannot see who it is: {words}")

    # --- releasing --------------------------------------------------------------------------------------------------

    def _clean_up(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> tuple[bool, str, BaseException | None]:
        """Leave what was entered, within the budget. Whether that swallowed the error of the `with`; what went wrong, in
        words; and what it raised instead."""
        outcome: list[tuple[bool, str, BaseException | None]] = []

        def work() -> None:
            try:
                outcome.append((bool(self._stack.__exit__(kind, value, trace)), "", None))
            except BaseException as error:  # noqa: BLE001 - raised again where the `with` is left
                words = getattr(error, "what", "") or str(error) or type(error).__name__
                outcome.append((False, f"ending failed: {words}", error))

        # In a thread, which can be left behind: nothing else bounds what a front end does there.
        thread = threading.Thread(target=work, name="serving-cleanup", daemon=True)
        thread.start()
        thread.join(self._cleanup_s)
        return outcome[0] if outcome else (False, f"not all was ended within {self._cleanup_s:g} s", None)

    def _release(self) -> None:
        """The names go while the locks are held, so nobody's but ours is removed."""
        for place, hold in reversed(self._holds):
            if hold.is_held:
                holders.remove(place.sidecar)
                if place is self._places[-1]:
                    with suppress(OSError):
                        self.token_file.unlink()
                hold.release()
        self._holds.clear()

    def _keep(self) -> None:
        with _keeping:
            _kept.update({str(place.lock): hold for place, hold in self._holds})
        self._holds.clear()


def _take_kept(place: Place) -> Hold | None:
    with _keeping:
        kept = _kept.pop(str(place.lock), None)
    return kept if kept is not None and kept.is_held else None


def _served_elsewhere(
    place: Place, holder: Holder | None, words: str, answer: str, wait_s: float
) -> ServedElsewhereError:
    what = f"{place.what} is served by {words}, and was not given up within {wait_s:g} s"
    if answer:
        what += f"; {answer}"
    if holder is None:
        return ServedElsewhereError(what, "end that process, or serve another data directory")
    use = f"use it at {holder.url}, or " if holder.url else ""
    facts: dict[str, Any] = holder.as_dict()
    return ServedElsewhereError(what, f"{use}end it (`kill {holder.pid}`), or start with taking over", facts)
