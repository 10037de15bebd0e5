"""Tickets: who comes with a configuration that was worked out before binds without doing so again, and only then."""

from __future__ import annotations

import os
import shutil
import sys
import time
from typing import TYPE_CHECKING

import pytest

from supervisor import locks, membership, records, resolving, ticket
from tests.engine.kit import Launch
from tests.engine.seen import Deaths, kill
from tests.engine.test_exec import ASKER, WHOLE, end, question, start
from tests.support import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.engine.place import Place

pytestmark = pytest.mark.process

LATER = 60_000_000_000
"""Nanoseconds added to `began_ns`: the files of a test are never quiet for as long as a ticket asks for."""


def leave(place: Place, later: int = LATER) -> None:
    spec = resolving.resolve(resolving.load(place.config))
    ticket.leave(place.slot, place.config, spec, time.time_ns() + later)


def binds(place: Place, role: str = "chat") -> bool:
    seat = ticket.bind(place.slot, place.config, role, program="by a ticket")
    if seat is None:
        return False
    try:
        assert "by a ticket" in [member.program for member in membership.members(place.slot)]
        assert seat.url == place.group("chat")["url"]
        assert seat.key == place.slot.group_key("chat").read_text(encoding="ascii").strip()
    finally:
        os.close(seat.warden)
        seat.membership.leave()
    return True


@pytest.fixture
def served(place: Place) -> Iterator[Place]:
    place.configure({"chat": (Launch("chat"),)})
    front = place.member("keeps-it-up")
    place.family()
    yield place
    front.end()
    place.wait_empty()


def test_a_ticket_holds_until_something_that_it_was_left_for_is_another(
    served: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = served
    assert not binds(place), "nobody has left one"
    leave(place, later=-LATER)
    assert not place.slot.tickets.exists(), "files that were just written may change unseen"
    leave(place)
    assert binds(place)
    assert place.slot.tickets.stat().st_mode & 0o777 == 0o600
    assert not binds(place, "embed")
    with monkeypatch.context() as changed:
        changed.setenv("QUEENRIGHT_LLAMA_SERVER", "/another")
        assert not binds(place)
    with monkeypatch.context() as changed:
        changed.setattr("sys.path", [*sys.path, "/another"])
        assert not binds(place)
    assert binds(place)
    written = place.config.read_bytes()
    place.config.write_bytes(written + b"# more\n")
    assert not binds(place)
    leave(place)
    assert binds(place), "and the next one left is for the file as it is now"
    for looked_at in ("files", "contract"):
        fields = records.read_fields(place.slot.tickets, version=ticket.VERSION)
        assert fields is not None
        fields["tickets"][0][looked_at] = {**fields["tickets"][0][looked_at], "/": None}
        records.write(place.slot.tickets, fields, version=ticket.VERSION)
        assert not binds(place), "as where a program changed, or the engine serves something else"
        leave(place)
        assert binds(place)
    place.slot.tickets.write_text("no record")
    assert not binds(place)


def test_who_comes_by_a_ticket_takes_the_lock_that_all_take(served: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place = served
    leave(place)
    monkeypatch.setattr("supervisor.budgets.TICKET_LOCK_WAIT", 0.05)
    with locks.acquire(place.slot.build_lock, timeout=10):
        assert not binds(place)
    with locks.held_briefly(place.slot.build_lock, timeout=1) as held:
        assert held
        assert locks.try_acquire(place.slot.build_lock) is None
    assert binds(place)


def test_no_ticket_makes_an_engine(place: Place) -> None:
    place.configure({"chat": (Launch("chat"),)})
    front = place.member("keeps-it-up")
    leave(place)
    front.end()
    place.wait_empty()
    assert not binds(place)
    shutil.rmtree(place.slot.path)
    assert not binds(place)
    assert not place.slot.path.exists()


@pytest.mark.long
def test_a_program_that_came_by_a_ticket_works_over_a_kill_of_the_warden(served: Place) -> None:
    place = served
    wait_until(lambda: place.cli("exec", "--", "true").returncode == 0 and place.slot.tickets.exists(), within=30)
    program = start(place, "python3", "-c", ASKER)
    url, text = question(program)
    assert text == WHOLE
    assert "as a ticket says" in place.slot.events.read_text(encoding="utf-8")
    family = place.family()
    with Deaths(family.everybody) as deaths:
        kill(family.warden)
        deaths.wait(within=5.0)
    assert question(program) == [url, WHOLE]
    place.family()
    assert end(program)[0] == 0
