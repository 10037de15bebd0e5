"""Promised memory: one plans at a time, promises live as long as who they were made to, and a successor waits for what is
really coming back."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from supervisor.devices import reservations
from supervisor.devices.promises import Grant, Reservation, Step, grantable, handoff, lives
from supervisor.errors import LockTimeoutError, SlotError
from supervisor.identity import Liveness
from tests.support import ROOT, Marker, end, spawn, wait_until

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


BALLAST = """
import signal, sys, time
hold = bytearray(int(sys.argv[1]) << 20)
hold[::4096] = b"x" * len(hold[::4096])
ended = []
signal.signal(signal.SIGTERM, lambda *_: ended.append(1))
print("full", flush=True)
while not ended:
    signal.pause()
time.sleep(float(sys.argv[2]))
"""


@pytest.mark.process
@pytest.mark.parametrize("takes", [0.5, pytest.param(5.0, marks=pytest.mark.long)])
def test_a_successor_plans_with_what_its_predecessor_gave_back__lilbee_547_handoff(takes: float) -> None:
    """It takes its time to drop 400 MB after SIGTERM. The device is 1 GiB, and free is what the ballast's resident pages
    leave: absolute, and read anew."""
    child = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", BALLAST, "400", str(takes)], stdout=subprocess.PIPE, cwd=ROOT
    )
    try:
        assert child.stdout is not None
        child.stdout.readline()

        def free() -> int:
            try:
                words = Path(f"/proc/{child.pid}/statm").read_text().split()
            except OSError:
                return GIB
            return GIB - int(words[1]) * 4096 if child.poll() is None else GIB

        assert free() < GIB - 400 * MIB
        child.send_signal(signal.SIGTERM)
        before = time.monotonic()
        got = reservations.wait_until_free(free, GIB, lambda: child.poll() is None)
        assert (got.step, got.margin) == (Step.PLAN, 0)
        assert time.monotonic() - before >= takes * 0.9
    finally:
        child.kill()
        child.wait()
        if child.stdout is not None:
            child.stdout.close()


def test_what_is_free_already_is_not_waited_for__ollama_11997() -> None:
    """The predecessor crashed before anybody looked: there is no difference to be seen, and none is looked for."""
    looks = iter([20 * GIB])
    got = reservations.wait_until_free(lambda: next(looks), 16 * GIB, lambda: False)
    assert (got.step, got.margin) == (Step.PLAN, 4 * GIB)
    assert list(looks) == []


def test_other_programs_noise_neither_stops_nor_spoils_it__ollama_9926() -> None:
    """Free wobbles by 600 MB about what is wanted. It ends with the first look that is enough, or with the last one; the
    margin is told."""
    wobble = iter([-600, 600, -600, 600] * 100)
    got = reservations.wait_until_free(lambda: 16 * GIB + next(wobble) * MIB, 16 * GIB, lambda: False)
    assert (got.step, got.margin) == (Step.PLAN, 600 * MIB)
    low = iter([-1200, -100, -600] * 100)
    began = time.monotonic()
    got = reservations.wait_until_free(lambda: 16 * GIB + next(low) * MIB, 16 * GIB, lambda: False, settle=0.3)
    assert got.step is Step.PLAN
    assert got.margin is not None
    assert got.margin < 0
    assert time.monotonic() - began < 5


def test_a_predecessor_that_never_goes_ends_the_wait_at_its_limit() -> None:
    step = handoff(predecessor_lives=True, waited=15.0, since_gone=0, limit=15.0, settle=1.0, free=None, need=1)
    assert (step.step, step.margin) == (Step.PLAN, None)
    assert "still lives" in step.reason
    step = handoff(predecessor_lives=True, waited=14.9, since_gone=0, limit=15.0, settle=1.0, free=9, need=1)
    assert step.step is Step.WAIT
