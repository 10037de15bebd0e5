"""What the observer says of a slot, with small real processes in the roles of a warden's family."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from chaos import observer
from chaos.observer import NotObservedError, Sighting
from supervisor import identity, locks, membership
from supervisor.contract import GENERATION_VARIABLE
from supervisor.slot import Slot
from tests.process.children import Child
from tests.support import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from supervisor.identity import Identity

pytestmark = pytest.mark.process

WARDEN = """
import fcntl, json, os, subprocess, sys
lock = open(sys.argv[1], "w")
fcntl.flock(lock, fcntl.LOCK_EX)
WAIT = "import os; os.read(0, 1)"
SERVER = "import os, subprocess, sys; print(subprocess.Popen([sys.executable, '-c', sys.argv[1]]).pid); " \\
    "sys.stdout.flush(); os.read(0, 1)"
def start(mark, code, **options):
    return subprocess.Popen([sys.executable, "-c", code, WAIT], env={"QUEENRIGHT_GENERATION": mark}, **options)
keeper = start(f"keeper.{os.getpid()}.1", SERVER, stdout=subprocess.PIPE)  # with a child of the same mark
keeper.stdout.readline()
leader = start("g1", SERVER, stdout=subprocess.PIPE)
other = start("of-another-slot", WAIT)
pids = {"keeper": keeper.pid, "leader": leader.pid, "server": int(leader.stdout.readline()), "other": other.pid}
print(json.dumps({"warden": os.getpid(), **pids}), flush=True)
os.read(0, 1)
"""
"""Holds the lock, and below it a keeper, and a group's leader with a server. All of them end when their stdin does."""


@pytest.fixture
def slot(tmp_path: Path) -> Slot:
    slot = Slot(tmp_path / "slot")
    slot.prepare()
    slot.generation_lock("chat", "g1").touch()
    slot.generation_lock("embed", "g2").touch()
    return slot


@contextmanager
def family(slot: Slot) -> Iterator[tuple[Child, dict[str, Identity]]]:
    """A warden with its own, by role."""
    with Child(WARDEN, slot.warden_lock) as warden:
        pids = json.loads(warden.hear())
        for role in ("keeper", "leader", "server", "other"):  # right after an exec the kernel shows no environment yet
            wait_until(lambda pid=pids[role]: identity.marker(pid, GENERATION_VARIABLE), what="its mark is seen")  # type: ignore[misc]
        known = {role: identity.of(pid) for role, pid in pids.items()}
        yield warden, {role: who for role, who in known.items() if who is not None}


def test_each_process_of_a_slot_has_its_role(slot: Slot) -> None:
    with family(slot) as (_, who):
        seen = observer.look(slot)
        assert seen == Sighting(who["warden"], who["keeper"], {"chat": who["leader"]}, {"chat": (who["server"],)})
        assert seen.engine == seen.group("chat") == {who["leader"], who["server"]}
        assert seen.group("embed") == frozenset()
        assert seen.everything == {who[role] for role in ("warden", "keeper", "leader", "server")}
        assert observer.memory(seen.everything) > observer.memory(seen.engine) > 0


def test_without_a_warden_nobody_leads_and_what_is_left_is_seen(slot: Slot) -> None:
    with family(slot) as (warden, who):
        warden.kill()
        seen = observer.look(slot)
        assert (seen.warden, seen.keeper, seen.leaders) == (None, None, {})
        assert set(seen.servers["chat"]) == seen.everything == {who["leader"], who["server"]}


def test_an_empty_slot_has_nobody(slot: Slot) -> None:
    assert observer.look(slot) == Sighting(None, None, {}, {})


@contextmanager
def dying() -> Iterator[tuple[subprocess.Popen[bytes], Identity]]:
    """A marked process that a test may end when it likes."""
    command = [sys.executable, "-c", "import os; os.read(0, 1)"]
    environment = {GENERATION_VARIABLE: "g1"}
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE) as process:
        try:
            # Right after an exec the kernel shows no environment yet.
            wait_until(lambda: identity.marker(process.pid, GENERATION_VARIABLE), what="its mark is seen")
            who = identity.of(process.pid)
            assert who is not None
            yield process, who
        finally:
            process.kill()


def end(process: subprocess.Popen[bytes], *, reap: bool) -> None:
    """Kill it, and wait until it is a zombie, or gone."""
    process.kill()
    if reap:
        process.wait(10)
    else:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)


@pytest.mark.parametrize("reap", [False, True], ids=["a zombie", "gone"])
def test_who_dies_between_two_looks_is_left_out(slot: Slot, monkeypatch: pytest.MonkeyPatch, reap: bool) -> None:
    real = identity.with_marker
    with dying() as (process, who):
        assert observer.look(slot).servers == {"chat": (who,)}

        def then_it_dies(name: str) -> list[tuple[Identity, str]]:
            found = real(name)
            end(process, reap=reap)
            return found

        monkeypatch.setattr(identity, "with_marker", then_it_dies)
        assert observer.look(slot) == Sighting(None, None, {}, {})
        assert observer.memory(frozenset([who])) == 0
        assert observer.listening_ports(who) == []


def test_a_warden_that_dies_between_two_looks_is_none(slot: Slot, monkeypatch: pytest.MonkeyPatch) -> None:
    with dying() as (process, who):
        end(process, reap=True)
        monkeypatch.setattr(locks, "holders", lambda _: [who.pid])
        assert observer.look(slot).warden is None


def test_held_locks_are_named(slot: Slot) -> None:
    assert observer.held_locks(slot) == []
    with family(slot), locks.acquire(slot.generation_lock("embed", "g2"), timeout=0):
        assert observer.held_locks(slot) == ["warden.lock", "embed.g2.lock"]
        with locks.acquire(slot.build_lock, timeout=0):
            member = membership.join(slot, program="a front end")
        with member, locks.acquire(slot.keeper_lock, timeout=0):
            held = observer.held_locks(slot)
            assert held == ["warden.lock", "keeper.lock", "embed.g2.lock", "member a front end"]
    assert observer.held_locks(slot) == []


def test_listening_ports_are_those_of_the_process_alone() -> None:
    with socket.create_server(("127.0.0.1", 0)) as ours, dying() as (_, other):
        assert ours.getsockname()[1] in observer.listening_ports(identity.own())
        assert observer.listening_ports(other) == []


def test_what_was_not_seen_in_time_is_named() -> None:
    looks: list[Callable[[], None]] = []

    def seen() -> str | None:
        looks.append(lambda: None)
        return "there" if len(looks) == 3 else None

    assert observer.wait_until("the third look", seen, 10) == "there"
    with pytest.raises(NotObservedError, match=r"not seen within 0 s: a miracle"):
        observer.wait_until("a miracle", lambda: None, 0)
