"""Locks within one process: what filelock's settings must give us."""

from __future__ import annotations

import errno
import fcntl
import gc
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
import trio

from supervisor import locks
from supervisor.errors import LockTimeoutError, SlotError

if TYPE_CHECKING:
    from pathlib import Path

SHORT_S = 0.02
"""A wait that is meant to run out."""

LONG_S = 30.0
"""A wait that is meant to succeed."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "build.lock"


def test_a_lock_is_held_from_acquire_to_release_and_its_file_stays(path: Path) -> None:
    assert locks.is_held(path) is False
    with locks.acquire(path, timeout=SHORT_S) as hold:
        inode = path.stat().st_ino
        assert locks.is_held(path) is True
        assert os.fstat(hold.fileno()).st_ino == inode
        assert not os.get_inheritable(hold.fileno())
        assert locks.holders(path) == [os.getpid()]
    assert locks.is_held(path) is False
    assert path.stat().st_ino == inode
    assert path.stat().st_mode & 0o777 == 0o600
    assert hold.is_held is False
    with pytest.raises(ValueError, match="is not held"):
        hold.fileno()
    hold.release()


def test_what_cannot_be_looked_at_is_unknown(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    assert locks.is_held(tmp_path / "loop") is None


def test_a_failing_flock_is_unknown_to_a_looker(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path.touch()

    def flock(_descriptor: int, _operation: int) -> None:
        raise OSError(errno.ENOLCK, "no locks")

    monkeypatch.setattr(fcntl, "flock", flock)
    assert locks.is_held(path) is None


def test_a_timeout_names_the_lock_and_its_holder(path: Path) -> None:
    with locks.acquire(path, timeout=SHORT_S), pytest.raises(LockTimeoutError) as caught:
        locks.acquire(path, timeout=SHORT_S)
    assert str(path) in caught.value.what
    assert f"pid {os.getpid()} (" in caught.value.what


@pytest.mark.parametrize("timeout", [-1, float("inf"), float("nan")])
def test_no_wait_is_without_end(path: Path, timeout: float) -> None:
    with pytest.raises(ValueError, match="finite"):
        locks.acquire(path, timeout=timeout)


def test_a_wait_can_be_called_off(path: Path) -> None:
    asked = threading.Event()

    def cancelled() -> bool:
        asked.set()
        return True

    with locks.acquire(path, timeout=SHORT_S), pytest.raises(LockTimeoutError):
        locks.acquire(path, timeout=LONG_S, cancelled=cancelled)
    assert asked.is_set()
    assert locks.is_held(path) is False


def test_try_acquire_does_not_wait(path: Path) -> None:
    first = locks.try_acquire(path)
    assert first is not None
    assert locks.try_acquire(path) is None
    first.release()
    second = locks.try_acquire(path)
    assert second is not None
    second.release()


def test_a_hold_taken_on_one_thread_is_released_on_another__filelock_404(path: Path) -> None:
    with ThreadPoolExecutor(1) as pool:
        hold = pool.submit(locks.acquire, path, timeout=SHORT_S).result()
        assert locks.is_held(path) is True
        hold.release()
        assert locks.is_held(path) is False


def test_two_objects_in_one_process_exclude_each_other_within_their_limits__filelock_315(path: Path) -> None:
    with locks.acquire(path, timeout=SHORT_S) as first:
        with ThreadPoolExecutor(2) as pool:
            refused = pool.submit(locks.acquire, path, timeout=SHORT_S)
            assert isinstance(refused.exception(), LockTimeoutError)
            waiting = pool.submit(locks.acquire, path, timeout=LONG_S)
            first.release()
            second = waiting.result()
        assert second.is_held
        second.release()


def test_a_worker_thread_can_lock_again_after_its_hold_went_elsewhere__lilbee_547(path: Path) -> None:
    with ThreadPoolExecutor(1) as pool:
        hold = pool.submit(locks.acquire, path, timeout=SHORT_S).result()
        hold.release()
        del hold
        gc.collect()
        for timeout in (0.0, LONG_S):
            with pool.submit(locks.acquire, path, timeout=timeout).result():
                assert locks.is_held(path) is True


def test_a_dropped_hold_lets_go(path: Path) -> None:
    hold = locks.acquire(path, timeout=SHORT_S)
    assert hold.is_held
    del hold
    gc.collect()
    assert locks.is_held(path) is False


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.EPERM, errno.EROFS])
def test_a_failing_flock_is_an_error_never_unlocked_work__filelock_480(
    path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def flock(_descriptor: int, _operation: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(SlotError) as waiting:
        locks.acquire(path, timeout=SHORT_S)
    with pytest.raises(SlotError) as trying:
        locks.try_acquire(path)
    for caught in (waiting, trying):
        assert str(path) in caught.value.what
        assert errno.errorcode[number] in caught.value.what


def test_a_missing_slot_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(SlotError, match="is not there"):
        locks.acquire(tmp_path / "none" / "build.lock", timeout=SHORT_S)
    assert not (tmp_path / "none").exists()


def test_a_symlink_is_not_followed(path: Path, tmp_path: Path) -> None:
    path.symlink_to(tmp_path / "target")
    with pytest.raises(SlotError, match="ELOOP"):
        locks.acquire(path, timeout=SHORT_S)
    assert not (tmp_path / "target").exists()


def test_a_lock_on_a_file_that_lost_its_name_is_not_taken__filelock_574(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flock = fcntl.flock
    replaced: list[int] = []

    def flock_after_a_replacement(descriptor: int, operation: int) -> None:
        flock(descriptor, operation)
        if not replaced:
            replaced.append(os.fstat(descriptor).st_ino)
            os.rename(path, path.with_name("kept"))  # so that its inode is not given to the next file
            path.touch()

    monkeypatch.setattr(fcntl, "flock", flock_after_a_replacement)
    assert locks.try_acquire(path) is None
    replaced.clear()
    with locks.acquire(path, timeout=LONG_S) as hold:
        assert os.fstat(hold.fileno()).st_ino == path.stat().st_ino not in replaced


def test_a_duplicate_keeps_the_lock_when_the_first_descriptor_is_closed(path: Path) -> None:
    hold = locks.acquire(path, timeout=SHORT_S)
    duplicate = hold.duplicate_inheritable()
    assert os.get_inheritable(duplicate)
    os.close(hold.fileno())
    assert locks.is_held(path) is True
    os.close(duplicate)
    assert locks.is_held(path) is False
    with pytest.raises(OSError, match="Bad file descriptor"):
        hold.release()


@pytest.mark.trio
async def test_waiting_on_the_trio_thread_lets_others_run(path: Path) -> None:
    first = locks.acquire(path, timeout=SHORT_S)
    got = trio.Event()

    async def take() -> None:
        with await locks.acquire_async(path, timeout=LONG_S, poll=0.001):
            assert locks.is_held(path) is True
            got.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(take)
        await trio.testing.wait_all_tasks_blocked()
        assert not got.is_set()
        first.release()
    assert got.is_set()
    assert locks.is_held(path) is False


@pytest.mark.trio
async def test_two_tasks_exclude_each_other(path: Path) -> None:
    inside = 0

    async def work() -> None:
        nonlocal inside
        for _ in range(5):
            with await locks.acquire_async(path, timeout=LONG_S, poll=0.001):
                inside += 1
                assert inside == 1
                await trio.lowlevel.checkpoint()
                inside -= 1

    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(work)


@pytest.mark.trio
async def test_a_cancelled_or_timed_out_wait_leaves_nothing_locked(path: Path) -> None:
    with locks.acquire(path, timeout=SHORT_S):
        with trio.move_on_after(SHORT_S) as scope:
            await locks.acquire_async(path, timeout=LONG_S)
        assert scope.cancelled_caught
        with pytest.raises(LockTimeoutError):
            await locks.acquire_async(path, timeout=SHORT_S)
    assert locks.is_held(path) is False
    with trio.CancelScope() as scope:
        scope.cancel()
        await locks.acquire_async(path, timeout=LONG_S)
    assert scope.cancelled_caught
    assert locks.is_held(path) is False
