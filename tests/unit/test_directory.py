"""For whom the directory vouches: who served on a port, as far as pids mean the same to it as to the keeper. And for how
long what it heard is what it says."""

from __future__ import annotations

import subprocess
import time
from typing import TYPE_CHECKING, Any, cast

import pytest

from supervisor import control, identity
from supervisor.contract import EngineSpec
from supervisor.directory import Directory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from supervisor.tenure import Tenure

PORT = 21001


class Place:
    """As much of a tenure, and of its slot, as a directory asks for."""

    attempts = 0

    def __init__(self, path: Path) -> None:
        self.slot, self.path = self, path

    def group_record(self, group: str) -> Path:
        return self.path / f"{group}.json"

    def note_use(self, now: float) -> None:
        pass

    def group_key(self, group: str) -> Path:
        return self.path / "key"


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    """Something with a pid."""
    with subprocess.Popen(["/bin/sleep", "60"]) as running:
        yield running
        running.kill()


def heard(
    path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    leader: int,
    warden_ticks: int,
    ticks: int | None = None,
    warden: int = 0,
    meanwhile: Callable[[], object] = lambda: None,
) -> Directory:
    """A directory whose keeper said that this process leads; its warden has the number of `leader`, too."""
    server = {"role": "chat", "model": "m"}
    proxy = {"pid": leader, "ticks": identity.start_ticks(leader) if ticks is None else ticks, "port": PORT}
    group: dict[str, Any] = {
        "name": "a",
        "state": "running",
        "generation": "g1",
        "url": f"http://127.0.0.1:{PORT}",
        "reason": "",
    }
    group |= {"proxy": proxy, "servers": [server]}

    def ask(*_: Any, **__: Any) -> dict[str, Any]:
        meanwhile()
        return {"groups": [group], "warden": {"pid": warden or leader, "ticks": warden_ticks}}

    monkeypatch.setattr(control, "ask", ask)
    (path / "key").write_text("secret")
    directory = Directory(cast("Tenure", Place(path)), EngineSpec(()))
    assert directory.wait("a", unlike=None, deadline=time.monotonic() + 10).generation == "g1"
    return directory


@pytest.mark.process
def test_a_leader_that_is_dead_is_not_vouched_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, process: subprocess.Popen[bytes]
) -> None:
    ticks = identity.start_ticks(process.pid)
    assert ticks is not None
    directory = heard(tmp_path, monkeypatch, leader=process.pid, warden_ticks=ticks)
    assert directory.vouches(PORT)
    process.kill()
    process.wait()
    assert not directory.vouches(PORT)
    assert directory.vouches(PORT + 1)


@pytest.mark.process
def test_a_process_that_has_the_leaders_number_by_now_vouches_for_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, process: subprocess.Popen[bytes]
) -> None:
    ticks, own = identity.start_ticks(process.pid), identity.own()
    assert ticks is not None
    who: dict[str, Any] = {"leader": process.pid, "warden": own.pid, "warden_ticks": own.ticks}
    assert heard(tmp_path, monkeypatch, ticks=ticks, **who).vouches(PORT)
    assert not heard(tmp_path, monkeypatch, ticks=ticks - 1, **who).vouches(PORT)


@pytest.mark.process
def test_the_end_of_a_process_with_the_leaders_number_in_another_namespace_says_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, process: subprocess.Popen[bytes]
) -> None:
    """To a member in a container the keeper's numbers are strangers', or nobody's; its requests went nowhere once one of
    these ended."""
    ticks = identity.start_ticks(process.pid)
    assert ticks is not None
    directory = heard(tmp_path, monkeypatch, leader=process.pid, warden_ticks=ticks + 1)
    process.kill()
    process.wait()
    assert directory.vouches(PORT)


@pytest.mark.process
def test_a_leader_that_was_dead_when_the_keeper_told_of_it_is_not_vouched_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, process: subprocess.Popen[bytes]
) -> None:
    """It is reaped, and its keeper has not heard of that yet: whoever has its port by now would be told the key."""
    ticks, own = identity.start_ticks(process.pid), identity.own()
    process.kill()
    process.wait()
    directory = heard(tmp_path, monkeypatch, leader=process.pid, ticks=ticks, warden=own.pid, warden_ticks=own.ticks)
    assert not directory.vouches(PORT)


def test_what_was_heard_is_said_until_the_keeper_writes_of_the_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = identity.own()
    record = tmp_path / "a.json"
    record.write_text("one")
    directory = heard(tmp_path, monkeypatch, leader=own.pid, warden_ticks=own.ticks)
    said = directory.current("a")
    assert said is not None
    assert said.generation == "g1"
    record.unlink()
    assert directory.current("a") is None


def test_what_the_keeper_writes_while_it_is_asked_is_news(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its answer may be from before that: a request would go, with its key, to whoever has the old port."""
    own = identity.own()
    record = tmp_path / "a.json"
    directory = heard(
        tmp_path, monkeypatch, leader=own.pid, warden_ticks=own.ticks, meanwhile=lambda: record.write_text("two")
    )
    assert directory.current("a") is None
