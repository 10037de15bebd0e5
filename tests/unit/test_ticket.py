"""Tickets without an engine: which of them are left, and what they look at."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from supervisor import config, control, kinds, records, resolving, ticket
from supervisor.slot import Slot

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from supervisor.contract import EngineSpec

FILE = """
[engine]
slot = "slot"
[groups.tool]
kind = "command"
[groups.tool.options]
argv = ["/bin/sleep", "{port}"]
[[groups.tool.launches]]
role = "tool"
model = "MODEL"
"""
LATER = 60_000_000_000


def configured(folder: Path, model: str) -> tuple[Path, EngineSpec]:
    path = folder / "queenright.toml"
    path.write_text(FILE.replace("MODEL", model), encoding="utf-8")
    return path, resolving.resolve(config.load(path))


def left(slot: Slot, path: Path, spec: EngineSpec, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether a ticket is left where an engine serves just this."""
    monkeypatch.setattr(control, "ask", lambda *_, **__: {"contract": records.unstructure(spec)})
    ticket.leave(slot, path, spec, time.time_ns() + LATER)
    return slot.tickets.exists()


def test_a_kind_that_does_not_say_what_it_looked_at_gets_no_ticket_and_breaks_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, spec = configured(tmp_path, "dummy")
    slot = Slot(tmp_path / "slot")
    slot.prepare()
    monkeypatch.setattr(kinds, "find", lambda _: object())
    assert not left(slot, path, spec, monkeypatch)
    monkeypatch.undo()
    assert left(slot, path, spec, monkeypatch)


def test_a_relative_path_of_a_model_means_the_same_wherever_one_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tmp_path / "models" / "a.gguf"
    model.parent.mkdir()
    model.write_bytes(b"")
    seen = []
    for place in (tmp_path, model.parent):
        monkeypatch.chdir(place)
        _, spec = configured(tmp_path, "models/a.gguf")
        seen.append([*kinds.find("command").looked_at(spec.groups[0])])
    assert seen[0] == seen[1]
    assert model in seen[0]


def test_the_name_of_a_model_is_no_file_of_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, spec = configured(tmp_path, "dummy")
    monkeypatch.chdir(tmp_path)
    assert tmp_path / "dummy" not in [*kinds.find("command").looked_at(spec.groups[0])]
