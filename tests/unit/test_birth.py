"""The ports that generations are born with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import evolve

from supervisor import birth, ports
from supervisor.slot import Slot
from tests.unit.group_bench import SPEC, FakeKind

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_groups_that_start_together_are_given_different_ports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody listens yet, so every port is free, and there are just enough of them."""
    monkeypatch.setattr(birth, "_given", {})
    monkeypatch.setattr(ports, "_is_free", lambda port: True)
    kind, slot = FakeKind(), Slot(tmp_path / "slot")
    slot.prepare()
    count = 20 * len(kind.port_names(SPEC))
    monkeypatch.setattr(ports, "candidate_range", lambda: range(20000, 20000 + count))
    given = [
        port
        for number in range(20)
        for port in birth.new_birth(evolve(SPEC, name=f"g{number}"), kind, slot, {}, 1).ports.values()
    ]
    assert sorted(given) == list(range(20000, 20000 + count))
    again = birth.new_birth(
        evolve(SPEC, name="g0"), kind, slot, dict(zip(kind.port_names(SPEC), given, strict=False)), 1
    )
    assert list(again.ports.values()) == given[: len(again.ports)]
