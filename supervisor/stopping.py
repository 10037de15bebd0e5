"""The off switch, from outside: by the keeper where it answers, else by the warden, else by killing the warden.

Nothing is ever signalled on the word of a record. Who the warden is comes from the kernel: it made the control socket.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from supervisor import budgets, control, identity, journal, leftovers, locks
from supervisor.control import ControlError
from supervisor.errors import NoEngineError, QueenrightError, UnkillableError
from supervisor.wording import WAY_OUT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from supervisor.identity import Identity
    from supervisor.slot import Slot


class Stopped(NamedTuple):
    """What was stopped, how (`keeper`, `warden`, `killed`, or `leftovers` where no warden lived any more), and how long
    it took in seconds."""

    how: str
    seconds: float
    members: tuple[str, ...]


def stop(
    slot: Slot,
    *,
    who: str,
    drain_s: float = 0.0,
    heard: Callable[[dict[str, Any]], None] = lambda _: None,
    only: Identity | None = None,
) -> Stopped:
    """Stop the engine of the slot; returns when its warden is gone. Bounded: STOP_ANSWER for the keeper to answer at
    all, `drain_s` for requests in flight, TEARDOWN for it to be done; then the warden ends everything; then SIGKILL.

    `heard` gets the keeper's snapshots meanwhile. With `only`, nothing but the engine of that warden is stopped: for who
    decided on what it saw, and let go of build.lock since. Raises NoEngineError, UnkillableError when the warden or something of
    the engine outlives even SIGKILL, or QueenrightError when the warden cannot be found. An engine that somebody builds
    meanwhile is not touched.
    """
    began = time.monotonic()
    members: tuple[str, ...] = ()
    if locks.is_held(slot.warden_lock) is False:
        killed = leftovers.clear(slot)
        ended, troubles = leftovers.end_outside(slot)
        if not (killed or ended or troubles):
            raise NoEngineError(f"no engine runs in {slot.path}", "there is nothing to stop")
        how = "leftovers"
    else:
        warden, how = only or find_warden(slot), "keeper"
        for snapshot in _ask(slot, who, drain_s, only):
            members = tuple(f"{member['name']} ({member['pid']})" for member in snapshot["members"]) or members
            heard(snapshot)
        if not _is_gone(slot, warden, budgets.SWEEP_LIMIT):
            # Its keeper would have taken it away: members rebuild what left its contract behind (`tenure`).
            with suppress(OSError):
                slot.contract_record.unlink()
            how = _end_warden(slot, warden)
        leftovers.clear(slot)  # one that was killed, by us or by somebody meanwhile, did not sweep
        _, troubles = leftovers.end_outside(slot)
    _check_left(slot, troubles)
    took = time.monotonic() - began
    if how != "keeper":  # else it said so itself, and of each group
        journal.note(slot, "stopped", why=f"asked by {who}", how=how, took=f"{took:.1f} s")
    return Stopped(how, took, members)


def _check_left(slot: Slot, troubles: list[str]) -> None:
    """Raise UnkillableError where something of the engine is left. What lives where there is a warden again is that one's."""
    left = locks.held_generations(slot) if locks.is_held(slot.warden_lock) is False else []
    if left:
        pids = tuple(sorted(one.pid for one in leftovers.find(slot)))
        named = f"pid {', '.join(map(str, pids))} of " if pids else ""
        raise UnkillableError(
            f"cannot be killed: {named}{', '.join(left)}",
            "`ps` shows its state, probably D; its memory is not free",
            pids,
        )
    if troubles:
        raise UnkillableError(f"no process is left, but {'; '.join(troubles)}", WAY_OUT.format(name="*"))


def _ask(slot: Slot, who: str, drain_s: float, only: Identity | None) -> Iterator[dict[str, Any]]:
    """Have the keeper stop: its snapshots, until it is gone, or does not answer. A keeper that goes away while it still
    drains (it was replaced, or killed) has not begun: its successor is asked."""
    over = time.monotonic() + drain_s
    snapshot: dict[str, Any] = {}
    meant = {"warden": {"pid": only.pid, "ticks": only.ticks}} if only is not None else {}
    while snapshot.get("state") != "stopping":
        left = max(0.0, over - time.monotonic())
        limit = left + budgets.TEARDOWN + budgets.CONTROL_ANSWER
        try:
            for snapshot in control.converse(
                slot, "stop", limit=limit, first=budgets.STOP_ANSWER, who=who, drain_s=left, **meant
            ):
                yield snapshot
        except ControlError:
            return  # it is down, or hangs: the warden is next
        if not left:
            return


def find_warden(slot: Slot) -> Identity | None:
    """The warden that lives in the slot: who made the control socket, as the kernel tells (SO_PEERCRED of unix(7)),
    also while its keeper hangs. Where the socket is gone: who holds warden.lock and is a warden by its command line."""
    for pid in [control.listener(slot), *locks.holders(slot.warden_lock)]:
        found = identity.of(pid) if pid else None
        if found is not None and _is_warden(found, slot):
            return found
    return None


def _is_warden(found: Identity, slot: Slot) -> bool:
    try:
        with open(f"/proc/{found.pid}/cmdline", "rb") as file:
            words = file.read().split(b"\0")
    except OSError:
        return False
    return os.fsencode(slot.path) in words and any(word.endswith(b"/warden.py") for word in words)


def _end_warden(slot: Slot, warden: Identity | None) -> str:
    """Have the warden end everything, else kill it: the kernel takes what is below with it. Says which it was."""
    if warden is None:
        raise QueenrightError(
            f"somebody holds {slot.warden_lock}, and it is no warden that could be found",
            "`fuser` or `lsof` on that file may tell who it is",
        )
    for number in (signal.SIGTERM, signal.SIGINT):  # the second one means now: the keeper had its time
        identity.signal_exact(warden, number)
    if _is_gone(slot, warden, budgets.GROUP_STOP):
        return "warden"
    identity.signal_exact(warden, signal.SIGKILL)
    if not _is_gone(slot, warden, budgets.SWEEP_LIMIT):
        raise UnkillableError(
            f"the warden of {slot.path}, pid {warden.pid}, cannot be killed", "`ps` shows its state", (warden.pid,)
        )
    return "killed"


def _is_gone(slot: Slot, warden: Identity | None, limit: float) -> bool:
    """Wait for this warden to be gone; the next one, that somebody may have started meanwhile, is not ours to end. Its
    lock falls a moment before it is dead: that counts only where its life cannot be told."""
    deadline = time.monotonic() + limit
    while True:
        life = identity.liveness(warden) if warden is not None else identity.Liveness.UNKNOWN
        if life is identity.Liveness.DEAD:
            return True
        if life is identity.Liveness.UNKNOWN and locks.is_held(slot.warden_lock) is False:
            return True
        if time.monotonic() > deadline:
            return False
        time.sleep(budgets.READY_POLL)  # noqa: TID251 - polls a lock that has no event to wait for
