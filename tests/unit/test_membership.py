"""Membership within one process: counting, threads, the collector."""

from __future__ import annotations

import errno
import fcntl
import gc
import itertools
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from supervisor import identity, locks, membership
from supervisor.errors import SlotError
from supervisor.membership import Member, count, join, members
from supervisor.slot import Slot

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def slot(tmp_path: Path) -> Slot:
    made = Slot(tmp_path / "slot")
    made.prepare()
    return made


def test_a_member_shows_who_it_is_and_leaves_nothing(slot: Slot) -> None:
    with join(slot, program="test é") as handle:
        assert handle.is_held
        (member,) = members(slot)
        assert member.identity == identity.own()
        assert member.pid == os.getpid()
        assert member.program == "test é"
        assert member.since > 1_700_000_000
        assert member.since_boot > 0
        assert count(slot) == 1
        (path,) = slot.members.iterdir()
        assert path.stat().st_mode & 0o777 == 0o600
        assert list(slot.joining.iterdir()) == []
    assert members(slot) == []
    assert list(slot.members.iterdir()) == []
    assert not handle.is_held


def test_the_file_is_locked_before_it_shows(slot: Slot, monkeypatch: pytest.MonkeyPatch) -> None:
    rename = os.rename
    shown: list[bool | None] = []

    def rename_of_a_locked_file(source: Path, target: Path) -> None:
        shown.append(locks.is_held(source))
        rename(source, target)

    monkeypatch.setattr(os, "rename", rename_of_a_locked_file)
    with join(slot, program="x"):
        assert shown == [True]


def test_no_member_where_there_is_no_slot(tmp_path: Path) -> None:
    assert members(Slot(tmp_path / "none")) == []
    assert count(Slot(tmp_path / "none")) == 0
    with pytest.raises(SlotError, match="cannot become a member"):
        join(Slot(tmp_path / "none"), program="x")


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_handles_are_counted_in_every_order__filelock_315(slot: Slot, order: tuple[int, ...]) -> None:
    handles = [join(slot, program="x") for _ in range(3)]
    descriptors = len(os.listdir("/proc/self/fd"))
    assert count(slot) == 1
    for index in order[:-1]:
        handles[index].leave()
        handles[index].leave()  # idempotent: one handle, one count
        assert count(slot) == 1
    handles[order[-1]].leave()
    assert count(slot) == 0
    assert len(os.listdir("/proc/self/fd")) == descriptors - 1


def test_two_names_of_one_slot_are_one_membership(slot: Slot, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    with join(slot, program="x"), join(Slot(tmp_path / "link" / "slot"), program="x"):
        assert count(slot) == 1
    assert count(slot) == 0


def test_two_slots_are_two_memberships(slot: Slot, tmp_path: Path) -> None:
    other = Slot(tmp_path / "other")
    other.prepare()
    with join(slot, program="x"):
        with join(other, program="x"):
            assert (count(slot), count(other)) == (1, 1)
        assert (count(slot), count(other)) == (1, 0)


def test_joined_on_one_thread_left_on_another__filelock_404(slot: Slot) -> None:
    with ThreadPoolExecutor(1) as pool:
        handle = pool.submit(join, slot, program="x").result()
        assert count(slot) == 1
        handle.leave()
        assert count(slot) == 0
        again = join(slot, program="x")
        pool.submit(again.leave).result()
    assert count(slot) == 0


def test_many_threads_join_and_leave_as_one_member(slot: Slot) -> None:
    start = threading.Barrier(8)

    def work() -> None:
        start.wait()
        for _ in range(40):
            with join(slot, program="x"):
                assert count(slot) == 1

    with ThreadPoolExecutor(8) as pool:
        for done in [pool.submit(work) for _ in range(8)]:
            done.result()
    assert count(slot) == 0
    assert membership._holds == {}


def test_a_dropped_handle_no_longer_counts(slot: Slot) -> None:
    kept = join(slot, program="x")
    dropped = join(slot, program="x")
    cycle: list[object] = [dropped]
    cycle.append(cycle)
    del dropped, cycle
    gc.collect()
    assert count(slot) == 1
    kept.leave()
    assert count(slot) == 0
    lost = join(slot, program="x")
    del lost
    gc.collect()
    assert count(slot) == 0


def test_a_handle_collected_in_the_middle_of_a_join_does_not_block(slot: Slot, monkeypatch: pytest.MonkeyPatch) -> None:
    other = Slot(slot.path.parent / "other")
    other.prepare()
    waiting = [join(other, program="x")]
    own = identity.own

    def collected_here() -> identity.Identity:
        waiting.clear()  # its finalizer runs while the guard is held
        return own()

    monkeypatch.setattr(identity, "own", collected_here)
    with join(slot, program="x"):
        assert count(slot) == 1
        assert count(other) == 0
    assert not membership._dropped


def test_a_slot_cleared_away_by_hand_is_joined_anew_and_every_handle_counts(slot: Slot) -> None:
    first = join(slot, program="x")
    for path in slot.members.iterdir():
        path.unlink()
    assert count(slot) == 0
    second = join(slot, program="x")
    assert count(slot) == 1
    second.leave()
    assert count(slot) == 1
    first.leave()
    assert count(slot) == 0


def test_files_of_the_dead_are_deleted_by_the_next_look_and_garbage_is_no_member(slot: Slot) -> None:
    (slot.members / "0123").write_text("{}")
    (slot.members / "empty").touch()
    assert members(slot) == []
    assert list(slot.members.iterdir()) == []


def test_whether_a_slot_is_used_is_known_with_the_first_live_member(
    slot: Slot, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert membership.is_used(slot) is False
    for name in ("1", "2", "3"):
        (slot.members / name).write_text("dead")
    assert membership.is_used(slot) is False
    assert list(slot.members.iterdir()) == []
    looks: list[str] = []
    probe = membership._probe

    def look(folder: str, name: str) -> int | None:
        looks.append(name)
        return probe(folder, name)

    monkeypatch.setattr(membership, "_probe", look)
    with membership.join(slot, program="x"):
        monkeypatch.setattr(membership, "_names", lambda _: os.listdir(slot.members) * 3)
        assert membership.is_used(slot) is True
    assert len(looks) == 1


def test_leftovers_in_joining_go_with_the_next_join(slot: Slot) -> None:
    (slot.joining / "0123").touch()
    with join(slot, program="x"):
        assert list(slot.joining.iterdir()) == []


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"identity": {"pid": 1}}', '{"identity": {"boot_id": 1, "x": 2, "pid": 3, "ticks": 4}}']
)
def test_a_locked_file_that_says_nothing_of_sense_is_a_member(slot: Slot, content: str) -> None:
    path = slot.members / "0123"
    path.write_text(content)
    with path.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        (member,) = members(slot)
        assert member == Member("0123", None, "", 0.0, 0.0)
        assert member.pid is None
        assert path.exists()


def test_what_cannot_be_looked_at_counts_as_alive(slot: Slot, monkeypatch: pytest.MonkeyPatch) -> None:
    (slot.members / "loop").symlink_to("loop")
    assert count(slot) == 1
    (slot.members / "loop").unlink()
    (slot.members / "0123").touch()

    def flock(_descriptor: int, _operation: int) -> None:
        raise OSError(errno.ENOLCK, "no locks")

    monkeypatch.setattr(fcntl, "flock", flock)
    assert count(slot) == 1
    assert (slot.members / "0123").exists()


def test_a_file_that_took_a_dead_ones_name_is_not_deleted(slot: Slot, monkeypatch: pytest.MonkeyPatch) -> None:
    path = slot.members / "0123"
    path.write_text("dead")
    flock = fcntl.flock

    def flock_after_a_replacement(descriptor: int, operation: int) -> None:
        flock(descriptor, operation)
        if operation & fcntl.LOCK_EX:
            path.rename(slot.path / "moved")
            path.write_text("other")

    monkeypatch.setattr(fcntl, "flock", flock_after_a_replacement)
    assert members(slot) == []
    assert path.read_text() == "other"


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS])
def test_a_join_without_flock_is_an_error_and_leaves_nothing__filelock_480(
    slot: Slot, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def flock(_descriptor: int, _operation: int) -> None:
        raise OSError(number, os.strerror(number))

    descriptors = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(SlotError, match=errno.errorcode[number]):
        join(slot, program="x")
    assert list(slot.joining.iterdir()) == list(slot.members.iterdir()) == []
    assert len(os.listdir("/proc/self/fd")) == descriptors
    assert membership._holds == {}


def test_an_unreadable_directory_is_an_error_not_an_empty_slot(slot: Slot) -> None:
    slot.members.rmdir()
    slot.members.touch()
    for look in (members, count):
        with pytest.raises(SlotError, match="ENOTDIR"):
            look(slot)


def test_a_handle_knows_whether_this_process_has_others(slot: Slot) -> None:
    first = join(slot, program="x")
    seen = [first.is_only_one]
    with join(slot, program="y") as second:
        seen += [first.is_only_one, second.is_only_one]
    seen.append(first.is_only_one)
    (path,) = slot.members.iterdir()
    path.unlink()  # somebody cleared the slot: nobody sees it as a member
    seen.append(first.is_only_one)
    first.leave()
    assert seen == [True, False, False, True, False]
    assert not first.is_only_one


def test_a_member_says_when_it_last_used_the_engine_and_nothing_before_it_did(slot: Slot) -> None:
    with join(slot, program="x") as handle:
        (member,) = members(slot)
        assert member.last_use is None
        handle.note_use()
        (member,) = members(slot)
        assert member.last_use is not None
        assert abs(member.last_use - member.since) < 60
        assert member.describe() == {
            "pid": os.getpid(), "name": "x", "since": member.since, "last_use": member.last_use,
        }  # fmt: skip
    handle.note_use()
    assert members(slot) == []
