"""The slot's directory: what is made, what is refused."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import stat
from typing import TYPE_CHECKING

import pytest

from supervisor import slot as module
from supervisor.errors import SlotError
from supervisor.slot import Slot, connectable, filesystem_of

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def slot(tmp_path: Path) -> Slot:
    return Slot(tmp_path / "state" / "slot")


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_prepare_makes_it_for_us_alone_and_again_changes_nothing(slot: Slot) -> None:
    before = os.umask(0)
    try:
        slot.prepare()
    finally:
        os.umask(before)
    names = sorted(path.name for path in slot.path.iterdir())
    assert names == ["groups", "joining", "logs", "members"]
    assert {mode(path) for path in (slot.path.parent, slot.path, *slot.path.iterdir())} == {0o700}
    slot.prepare()
    assert sorted(path.name for path in slot.path.iterdir()) == names
    assert slot.examine() is True


def test_every_path_is_inside_the_slot_and_no_two_are_the_same(slot: Slot) -> None:
    paths = [
        getattr(slot, name)
        for name, kind in vars(Slot).items()
        if isinstance(kind, property) and not name.startswith("_")
    ]
    paths += [slot.group_record("chat"), slot.group_key("chat"), slot.group_log("chat")]
    paths += [slot.generation_lock("chat", "ab12"), slot.generation_config("chat", "ab12")]
    assert len(set(paths)) == len(paths) > 15
    assert all(path.is_relative_to(slot.path) for path in paths)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a.b", "a b", "ä", "a\0"])
def test_a_name_cannot_lead_out_of_its_directory(slot: Slot, name: str) -> None:
    with pytest.raises(ValueError, match="not a name"):
        slot.group_record(name)
    with pytest.raises(ValueError, match="not a name"):
        slot.generation_lock("chat", name)


def test_generations_are_listed_by_their_locks(slot: Slot) -> None:
    assert slot.generations() == []
    slot.prepare()
    for path in (slot.generation_lock("chat", "b2"), slot.generation_lock("chat", "a1"), slot.group_record("chat")):
        path.touch()
    assert slot.generations() == [("chat", "a1"), ("chat", "b2")]


def test_looking_makes_nothing(slot: Slot) -> None:
    assert slot.examine() is False
    assert not slot.path.parent.exists()
    slot.path.mkdir(parents=True, mode=0o700)
    assert slot.examine() is True
    assert list(slot.path.iterdir()) == []


def test_a_relative_path_is_refused() -> None:
    from pathlib import Path

    with pytest.raises(SlotError, match="absolute"):
        Slot(Path("slot")).prepare()


@pytest.mark.parametrize("part", ["", "members", "groups"])
def test_a_symlink_is_refused(slot: Slot, tmp_path: Path, part: str) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o755)
    link = slot.path / part
    link.parent.mkdir(parents=True, mode=0o700, exist_ok=True)
    link.symlink_to(elsewhere)
    for check in (slot.prepare, slot.examine):
        with pytest.raises(SlotError, match=f"{link} is a symbolic link"):
            check()
    assert list(elsewhere.iterdir()) == []
    assert mode(elsewhere) == 0o755


def test_a_file_in_its_place_is_refused(slot: Slot) -> None:
    slot.path.parent.mkdir(parents=True)
    slot.path.touch()
    for check in (slot.prepare, slot.examine):
        with pytest.raises(SlotError, match="is not a directory"):
            check()


def test_an_impossible_parent_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SlotError, match=r"ENOTDIR|EEXIST"):
        Slot(tmp_path / "file" / "slot").prepare()


def test_another_users_directory_is_refused(slot: Slot, monkeypatch: pytest.MonkeyPatch) -> None:
    slot.prepare()
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    for check in (slot.prepare, slot.examine):
        with pytest.raises(SlotError, match="belongs to user id"):
            check()


def test_a_directory_open_to_others_is_tightened_by_its_owner_and_refused_by_lookers(slot: Slot) -> None:
    slot.path.mkdir(parents=True)
    slot.path.chmod(0o755)
    assert slot.examine() is True
    slot.path.chmod(0o777)
    with pytest.raises(SlotError, match="can be written by others"):
        slot.examine()
    assert mode(slot.path) == 0o777
    slot.prepare()
    assert mode(slot.path) == 0o700


def test_a_directory_we_cannot_write_is_refused(slot: Slot, monkeypatch: pytest.MonkeyPatch) -> None:
    slot.prepare()
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may write everywhere
    for check in (slot.prepare, slot.examine):
        with pytest.raises(SlotError, match="cannot be written"):
            check()


@pytest.mark.parametrize("kind", ["nfs", "nfs4", "cifs", "9p", "fuse", "fuse.sshfs", "fuseblk", "virtiofs"])
def test_a_shared_filesystem_is_refused_before_anything_is_made__filelock_6(
    slot: Slot, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(module, "filesystem_of", lambda _descriptor: kind)
    with pytest.raises(SlotError, match=f"on a {kind} filesystem"):
        slot.prepare()
    assert list(slot.path.iterdir()) == []


@pytest.mark.parametrize("kind", ["ext4", "tmpfs", "btrfs", "overlay", "fusectl", None])
def test_a_local_filesystem_is_taken(slot: Slot, monkeypatch: pytest.MonkeyPatch, kind: str | None) -> None:
    monkeypatch.setattr(module, "filesystem_of", lambda _descriptor: kind)
    slot.prepare()


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.EPERM, errno.EROFS])
def test_a_filesystem_without_flock_is_refused_with_path_and_errno__filelock_480(
    slot: Slot, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def flock(_descriptor: int, _operation: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(SlotError) as caught:
        slot.prepare()
    assert str(slot.path) in caught.value.what
    assert errno.errorcode[number] in caught.value.what
    assert "QUEENRIGHT_SLOT" in caught.value.next_step


def test_the_filesystem_of_a_file_is_the_kernels_word(tmp_path: Path) -> None:
    descriptor = os.open(tmp_path, os.O_RDONLY)
    proc = os.open("/proc", os.O_RDONLY)
    try:
        assert filesystem_of(descriptor) not in (None, "proc")
        assert filesystem_of(proc) == "proc"
    finally:
        os.close(descriptor)
        os.close(proc)
    assert filesystem_of(descriptor) is None


@pytest.mark.parametrize("depth", [0, 3])
def test_a_socket_can_be_reached_however_long_its_path_is(slot: Slot, depth: int) -> None:
    long = Slot(slot.path.joinpath(*["d" * 60] * depth))
    long.prepare()
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as client:
        with connectable(long.control_socket) as name:
            server.bind(name)
        server.listen()
        assert long.control_socket.is_socket()
        with connectable(long.control_socket) as name:
            assert len(os.fsencode(name)) <= module.SOCKET_PATH_LIMIT
            client.connect(name)


def test_a_private_slot_belongs_to_one_directory_however_it_is_named(tmp_path: Path) -> None:
    machine = Slot(tmp_path / "slot")
    assert machine.private_slots() == []
    root = tmp_path / "project"
    root.mkdir()
    (tmp_path / "link").symlink_to(root)
    private = machine.private(str(root))
    assert private.path.parent == tmp_path / "slot-private"
    assert private == machine.private(str(tmp_path / "link")) == machine.private(f"{root}/.")
    assert private != machine.private(str(tmp_path))
    private.prepare()
    assert private.path.parent.stat().st_mode & 0o777 == 0o700
    (private.path.parent / "not-one").mkdir()
    assert machine.private_slots() == [private]


def test_what_a_generation_leaves_is_cleared_but_for_its_lock_and_what_is_to_be_undone(tmp_path: Path) -> None:
    slot = Slot(tmp_path / "slot")
    slot.prepare()
    kept = {"chat.g1.lock", "chat.g1.undo", "chat.g10.json", "a-chat.g1.json", "chat.json", "chat.key"}
    for name in {*kept, "chat.g1.json", "chat.g1.keys"}:
        (slot.groups / name).touch()
    slot.clear_generation("chat", "g1")
    assert {path.name for path in slot.groups.iterdir()} == kept
    slot.clear_generation("chat", "g1")
