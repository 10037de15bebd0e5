"""Promised memory: one plans at a time, promises live as long as who they were made to, and a successor waits for what is
really coming back."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import pytest

from supervisor.devices import reservations
from supervisor.devices.promises import Grant, Reservation, attempts, grantable, lives
from supervisor.errors import LockTimeoutError, SlotError
from supervisor.identity import Liveness
from tests.support import Marker, end, spawn, wait_until

if TYPE_CHECKING:
    from pathlib import Path

GIB = 2**30
MIB = 2**20
CARD = "GPU-a"


def a_promise(size: int, *, settled: bool = False) -> Reservation:
    return Reservation("/slot", "chat", (Grant(CARD, size),), "boot", 1, 2, 3, settled=settled)


def test_the_sum_of_grants_stays_within_the_device_whatever_its_free_figure_does__vllm_55827() -> None:
    """24 GiB. The first gets 16 and loads: free falls from 24 to 8 meanwhile. Whenever the second asks, 8 at most are left,
    and all of these once the first has loaded."""
    first = a_promise(16 * GIB)
    for loaded in range(0, 17, 4):
        got = grantable(CARD, 24 * GIB, (24 - loaded) * GIB, [first])
        assert 16 * GIB + got.bytes <= 24 * GIB
        assert got.pending == 16 * GIB
        assert "chat" in got.text
    assert grantable(CARD, 24 * GIB, 24 * GIB, [first]).bytes == 8 * GIB
    done = a_promise(16 * GIB, settled=True)
    assert grantable(CARD, 24 * GIB, 8 * GIB, [done]).bytes == 8 * GIB
    # The free figure lags or wobbles: what was promised is not there to be promised again.
    assert grantable(CARD, 24 * GIB, 9 * GIB, [done]).bytes == 8 * GIB
    assert grantable("GPU-b", 24 * GIB, 24 * GIB, [first, done]).bytes == 24 * GIB


@pytest.mark.parametrize(
    ("own", "generation", "maker", "alive"),
    [
        (True, False, Liveness.DEAD, True),
        (False, True, Liveness.DEAD, True),
        (False, False, Liveness.ALIVE, False),
        (False, None, Liveness.DEAD, False),
        (False, None, Liveness.UNKNOWN, True),
        (None, False, Liveness.ALIVE, True),
        (None, None, Liveness.UNKNOWN, True),
    ],
)
def test_what_counts_is_what_the_kernel_holds(
    own: bool | None, generation: bool | None, maker: Liveness, alive: bool
) -> None:
    assert lives(own, generation, maker) is alive


def test_a_promise_is_seen_until_it_is_released_or_its_generation_is_gone(tmp_path: Path) -> None:
    from supervisor import locks

    book, lock = tmp_path / "book", tmp_path / "generation.lock"
    with reservations.planning(book) as mine:
        promise = mine.reserve(tmp_path / "slot", "chat", [Grant(CARD, GIB)])
        (seen,) = mine.live().values()
        assert (seen.of(CARD), seen.settled, seen.pid) == (GIB, False, os.getpid())
    with locks.acquire(lock, timeout=1):
        with reservations.planning(book) as mine:
            settled = mine.settle(promise, [Grant(CARD, GIB // 2)], lock)
            assert [(one.of(CARD), one.settled) for one in mine.live().values()] == [(GIB // 2, True)]
        settled.release(keep=True)  # the front end that built it goes; the engine stays
        with reservations.planning(book) as mine:
            assert len(mine.live()) == 1
    with reservations.planning(book) as mine:
        assert mine.live() == {}
        assert list(book.glob("*.json")) == []
    with reservations.planning(book) as mine, mine.reserve(tmp_path, "x", []):
        assert len(mine.live()) == 1
    with reservations.planning(book) as mine:
        assert mine.live() == {}


def test_a_record_that_says_nothing_is_removed_when_dead_and_named_when_alive(tmp_path: Path) -> None:
    book = tmp_path / "book"
    with reservations.planning(book) as mine:
        (book / "a.json").write_text("{")
        (book / "b.json").write_text('{"version": 99}')
        assert mine.live() == {}
        assert mine.unreadable == ["b.json"]
        assert sorted(path.name for path in book.glob("*.json")) == ["b.json"]


@pytest.mark.parametrize(
    "text",
    [f'{{"version": 1, "grants": [], "slot": "s", "group": "g", "boot_id": "b", "pid_namespace": 1, "pid": 1, "ticks": 1, {one}}}'
     for one in ('"generation_lock": 5', '"generation_lock": "\\u0000"', '"settled": "yes"', '"pid": -1')] + ["[" * 60_000],
    ids=["a number", "a NUL", "no bool", "below 0", "deep"],
)  # fmt: skip
def test_whatever_a_stranger_writes_into_the_book_is_no_record_and_no_error(tmp_path: Path, text: str) -> None:
    book = tmp_path / "book"
    with reservations.planning(book) as mine:
        (book / "a.json").write_text(text)
        assert mine.live() == {}


def test_a_pipe_in_place_of_the_lock_is_waited_for_by_nobody(tmp_path: Path) -> None:
    book = tmp_path / "book"
    with reservations.planning(book):
        pass
    (book / "lock").unlink()
    os.mkfifo(book / "lock")
    with pytest.raises(SlotError, match="not a file"), reservations.planning(book, wait=0.05):
        pass


def test_what_a_dead_keeper_promised_to_a_generation_that_lives_is_settled_by_the_next(tmp_path: Path) -> None:
    from supervisor import locks

    book, lock = tmp_path / "book", tmp_path / "generation.lock"
    with locks.acquire(lock, timeout=1):
        with reservations.planning(book) as mine:
            mine.reserve(tmp_path / "slot", "chat", [Grant(CARD, GIB)], generation_lock=lock).release(keep=True)
            settled = mine.settle_left(lock)
            assert settled is not None
            assert [(one.of(CARD), one.settled) for one in mine.live().values()] == [(GIB, True)]
            assert mine.settle_left(lock) is None
        settled.release()


def test_while_one_plans_no_other_does_and_is_told_who(tmp_path: Path) -> None:
    book = tmp_path / "book"
    refused = pytest.raises(LockTimeoutError, match=f"pid {os.getpid()}")
    with reservations.planning(book), refused, reservations.planning(book, wait=0.05):
        pass
    with reservations.planning(book, wait=0.0):
        pass
    assert (book.stat().st_mode & 0o7777) == 0o1777


def test_a_place_that_can_be_no_book_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "elsewhere").symlink_to(tmp_path)
    for name in ("file", "elsewhere", "missing/book"):
        with pytest.raises(SlotError, match="cannot be reserved"), reservations.planning(tmp_path / name):
            pass


PLANNER = """
import sys, json
from pathlib import Path
from supervisor.devices import reservations
from supervisor.devices.promises import Grant, grantable
book, out = Path(sys.argv[1]), Path(sys.argv[2])
with reservations.planning(book) as mine:
    got = grantable("GPU-a", 24 << 30, 24 << 30, mine.live().values())
    want = min(got.bytes, 15 << 30)
    promise = mine.reserve(Path("/slot"), sys.argv[3], [Grant("GPU-a", want)])
out.with_suffix(".new").write_text(str(want))
out.with_suffix(".new").rename(out)
sys.stdin.read()
sys.exit(0) if sys.argv[4:] else __import__("signal").pause()
"""


@pytest.mark.process
def test_of_two_that_plan_at_once_each_sees_the_others_promise_and_a_dead_ones_is_free__vllm_55827(
    tmp_path: Path,
) -> None:
    marker, book = Marker(), tmp_path / "book"
    planners = [
        spawn([sys.executable, "-c", PLANNER, book, tmp_path / name, name], marker, log=tmp_path / "log")
        for name in ("a", "b")
    ]
    try:
        wait_until(lambda: (tmp_path / "a").exists() and (tmp_path / "b").exists(), within=30)
        grants = sorted(int((tmp_path / name).read_text()) for name in ("a", "b"))
        assert grants == [9 * GIB, 15 * GIB]
        planners[0].kill()
        planners[0].wait()
        with reservations.planning(book) as mine:
            (left,) = mine.live().values()
            assert left.pid == planners[1].pid
    finally:
        for one in planners:
            end(one)
    with reservations.planning(book) as mine:
        assert mine.live() == {}


class Time:
    """A clock that goes on by a second at each look."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


def test_a_predecessor_that_never_goes_ends_the_wait_at_its_limit() -> None:
    found = list(attempts(lambda: 0.0, limit=5.0, settle=1.0, clock=Time()))
    assert [one.is_last for one in found] == [False] * 4 + [True]
    assert all(one.predecessor_lives for one in found)


def test_the_limit_counts_from_when_the_predecessor_begins_to_go_and_the_settling_from_when_it_is_gone() -> None:
    """It owes answers until 110; one at 101 began to wait. It is gone at 118 by the clock, and 2 s later is the last look."""
    clock = Time()
    found = list(attempts(lambda: 110.0 if clock.now < 117 else None, limit=20.0, settle=2.0, clock=clock))
    assert [one.predecessor_lives for one in found].count(True) == 16
    assert [one.is_last for one in found[16:]] == [False, False, True]
    assert len(list(attempts(lambda: 110.0, limit=5.0, settle=2.0, clock=Time()))) == 14  # 102, 103 ... 115


def test_without_a_predecessor_only_a_drivers_moment_is_waited_for() -> None:
    assert [one.is_last for one in attempts(lambda: None, settle=2.0, clock=Time())] == [False, False, True]
