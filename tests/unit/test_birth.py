"""What generations are born with: ports, keys, and the mark of what they are."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from attrs import evolve

from supervisor import birth, ports
from supervisor.contract import GroupSpec, LaunchSpec
from supervisor.errors import EngineStartError
from supervisor.slot import Slot
from tests.unit.group_bench import SPEC, FakeKind

if TYPE_CHECKING:
    from pathlib import Path


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


def test_the_key_of_a_foreign_server_is_read_at_a_start_and_not_to_take_a_generation_up(tmp_path: Path) -> None:
    """A keeper that could not take one group up for want of a file would keep none of them."""
    kind, slot, file = FakeKind(), Slot(tmp_path / "slot"), tmp_path / "key"
    slot.prepare()
    file.write_text("sk-theirs\n")
    spec = evolve(SPEC, key_file=str(file))
    born = birth.new_birth(spec, kind, slot, {}, 1)
    assert born.client_key == "sk-theirs"
    file.unlink()
    assert birth.known_birth(spec, slot, born.generation, born.ports, 1).client_key == "sk-theirs"
    with pytest.raises(EngineStartError, match="cannot be read"):
        birth.new_birth(spec, kind, slot, {}, 1)


def test_a_mark_does_not_change_with_what_a_later_version_adds_nor_with_what_changes_nothing() -> None:
    """This one was written down: whoever changes it has every group restarted by the next upgrade of a keeper."""
    launch = LaunchSpec("chat", "m", "/m.gguf", 4096, 1)
    spec = GroupSpec("chat", "fake", (launch,), "pin")
    assert birth.mark_of(spec) == "294536c4c90fbe80"
    assert birth.mark_of(evolve(spec, launches=(evolve(launch, least_context=1024),))) == birth.mark_of(spec)
    for other in (
        evolve(spec, is_planned=False),
        evolve(spec, environment={"A": "1"}),
        evolve(spec, launches=(evolve(launch, context=2048),)),
    ):
        assert birth.mark_of(other) != birth.mark_of(spec)
        assert not other.runs_as(spec)
