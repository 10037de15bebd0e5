"""What the doctor finds of processes: of an earlier engine, and of no engine."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from supervisor import checks, identity, kinds, locks, resolving
from supervisor.checks import Finding
from supervisor.config_shape import Config, EngineConfig, GroupConfig
from supervisor.contract import GroupSpec, LaunchSpec
from supervisor.slot import Slot

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_what_lives_of_an_earlier_engine_is_found_by_its_lock(tmp_path: Path) -> None:
    slot = Slot(tmp_path / "slot")
    slot.prepare()
    with locks.acquire(slot.generation_lock("chat", "1f"), timeout=1):
        (found,) = checks.engine_checks(slot)
        assert (found.finding, "chat.1f" in found.text) == (Finding.BAD, True)
    (found,) = checks.engine_checks(slot)
    assert found.finding is Finding.OK


def test_strangers_are_found_for_each_group_and_each_process_is_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tmp_path / "a.gguf"
    model.touch()
    for pid, mark in ((10, b""), (11, b"QUEENRIGHT_GENERATION=1f\0"), (12, b"")):
        folder = tmp_path / "proc" / str(pid)
        folder.mkdir(parents=True)
        (folder / "cmdline").write_bytes(b"server\0-m\0a.gguf\0" if pid != 12 else b"other\0b.gguf\0")
        (folder / "environ").write_bytes(mark)
        (folder / "cwd").symlink_to(tmp_path)
    read: list[int] = []
    whole = identity.proc_file_in_time

    def counted(pid: int, name: str) -> bytes | None:
        read.append(pid)
        return whole(pid, name)

    def resolved(_config: Config, group: GroupConfig) -> GroupSpec:
        return GroupSpec(group.name, "fake", (LaunchSpec(group.name, "a", str(model), 512, 1),), "pin")

    def find(_name: str) -> Any:
        return SimpleNamespace()

    monkeypatch.setattr(identity, "PROC", str(tmp_path / "proc"))
    monkeypatch.setattr(identity, "proc_file_in_time", counted)
    monkeypatch.setattr(resolving, "resolve_group", resolved)
    monkeypatch.setattr(kinds, "find", find)
    groups = {name: GroupConfig(name, ()) for name in ("chat", "embed")}
    found = [one for one in checks.configuration_checks(Config(None, EngineConfig(), groups)) if "stranger" in one.name]
    assert [one.name for one in found] == ["stranger beside chat", "stranger beside embed"]
    assert all(one.finding is Finding.WARNING and one.text.startswith("pid 10 (server)") for one in found)
    assert sorted(read) == [10, 11, 12]
