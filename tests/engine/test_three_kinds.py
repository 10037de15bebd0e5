"""A llama-swap group, a container with every bad habit and somebody else's server: one slot, under the soak's faults."""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from chaos.soak.soak import Soak
from chaos.soak.verdicts import Verdict
from supervisor import resolving
from supervisor.control import ControlError
from tests.engine.kit import Launch
from tests.engine.test_attached import Foreign, attached, foreign
from tests.engine.test_command import get
from tests.engine.test_containers import BAD, containers, group
from tests.engine.test_soak import said
from tests.support import alive, free_port, wait_until

if TYPE_CHECKING:
    from tests.engine.containers import Containers
    from tests.engine.place import Place

pytestmark = [pytest.mark.engine]
__all__ = ["containers", "foreign"]  # fixtures

FAULTS = (
    "server",
    "proxy",
    "keeper",
    "proxy",
    "group and keeper",
    "several",
    "warden",
    "term to all",
    "stopped proxy",
    "blip",
    "two builders",
    "truncated records",
)
"""Of the soak's those that have to do with what a group is made of; the rest are about llama-servers, disks and clocks."""


def configure(place: Place, containers: Containers, foreign: Foreign) -> None:
    """With a file that the container's group has fetched before its first start."""
    weights = place.home / "source"
    weights.write_bytes(b"weights")
    (place.home / "queenright.payload.toml").write_text(
        f'[[file]]\npath = "models/weights.bin"\nsize = 7\nsha256 = "{hashlib.sha256(b"weights").hexdigest()}"\n'
        f"source = {json.dumps(str(weights))}\n"
    )
    place.configure(
        {"chat": (Launch("chat"), Launch("embed", place.kit.embed))},
        gateway={"listen": f"127.0.0.1:{free_port()}"},
    )
    mount = ("-v", f"{place.home}/models/cache:/cache")
    box = group("box", containers, *BAD, "--silent-for", "1", run=mount, grace_s=0.5, payload=["weights.bin"])
    place.config.write_text("\n".join([place.config.read_text(), *box, *attached(foreign)]) + "\n")


@pytest.mark.long
@pytest.mark.timeout(1500)
def test_three_kinds_side_by_side_hold_under_the_soaks_faults(
    place: Place, foreign: Foreign, containers: Containers, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in place.environment.items():
        monkeypatch.setenv(name, value)
    theirs = foreign.start()
    configure(place, containers, foreign)
    lives: dict[str, set[str]] = {"chat": set(), "box": set(), "theirs": set()}

    def serves(name: str) -> dict[str, Any] | None:
        with suppress(ControlError, StopIteration, OSError):
            found = place.group(name)
            if found["state"] == "running" and get(found["url"]) == b"HTTP/1.1 200 OK":
                return found
        return None

    def look() -> None:
        """What the soak's load does not ask for: the other two serve, one container runs, and nobody told the foreign server
        anything."""
        for name, seen in lives.items():
            found = place.until(lambda name=name: serves(name), within=120, what=f"{name} serves")  # type: ignore[misc]
            assert found is not None
            seen.add(found["generation"])
        wait_until(lambda: len(containers("ps", "-a", "-q").split()) == 1, within=60, what="one container")
        assert not place.slot.undone() or len(place.slot.undone()) == 1  # of the one that runs
        assert alive(theirs)
        assert foreign.said("term") == []

    groups = resolving.resolve(resolving.load(place.config)).groups
    soak = Soak(place.slot, place.config, groups, streams=3, every=1, names=FAULTS, seed=8)
    soak.before_a_look = look
    assert soak.run(len(FAULTS)) is Verdict.HOLDS, said(soak)
    assert [told.fault for told in soak.rounds] == list(FAULTS)
    assert all(len(seen) > 2 for seen in lives.values()), lives  # each was replaced, and more than once
    assert (place.home / "models" / "weights.bin").read_bytes() == b"weights"
    assert (place.home / "models" / "cache").is_dir()
    wait_until(lambda: not containers.living(), within=60, what="no container is left")
    assert alive(theirs)
    assert foreign.said("term") == []
    assert foreign.process is not None
    assert foreign.process.poll() is None
