"""Field cases about many who start at once, and about who starts nothing. register.py has those held elsewhere."""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import TYPE_CHECKING

import pytest

from supervisor import cli
from tests.engine.kit import Launch
from tests.support import wait_until

if TYPE_CHECKING:
    from tests.engine.place import Place

STARTS_AN_ENGINE = frozenset({"run", "exec", "demo", "bench", "soak", "agents"})
"""Commands that are documented to start one."""

LOOKS: dict[str, list[list[str]]] = {
    "status": [["--json"]],
    "stop": [["--json"]],
    "ps": [["--json"]],
    "events": [[], ["--since", "2h"]],
    "logs": [[], ["chat"]],
    "doctor": [["--json"]],
    "apply": [["--json"]],
    "retry": [["chat"]],
    "restart-keeper": [[]],
    "unit": [[]],
    "plan": [["--json"]],
    "explain": [["smollm2-135m"]],
    "init": [["--print"]],
    "version": [[]],
    "model": [["list"]],
    "payload": [["list"], ["verify"]],
}
"""Those that also leave no trace where there is no engine, with what each is called with here."""

WISHES = ("hold", "release")
"""These leave word in the slot, for whoever starts one later."""


def commands() -> set[str]:
    """All that this installation has."""
    return set(cli.CORE) | {point.name for point in entry_points(group=cli.ENTRY_POINTS)}


@pytest.mark.process
def test_no_command_starts_an_engine_but_those_that_say_so__lilbee_332(place: Place) -> None:
    assert commands() == STARTS_AN_ENGINE | set(LOOKS) | set(WISHES), "a new command belongs into one of the three"
    slot = {"QUEENRIGHT_SLOT": str(place.slot.path)}
    for name, calls in LOOKS.items():
        for words in calls:
            place.cli(name, *words, environment=slot)
    assert not place.slot.path.exists()
    for name in WISHES:
        place.cli(name, environment=slot)
    place.assert_never_started()


@pytest.mark.long
@pytest.mark.process
def test_nobody_waits_for_a_load_but_requests__model_runner_760(place: Place) -> None:
    """A second member, a look and a stop, all while models load that never will have loaded; and the groups load side
    by side, none after another."""
    roles = ("r1", "r2", "r3", "r4")
    place.configure({role: (Launch(role, knobs={"load": 600}),) for role in roles})
    assert place.front("first").open(wait=False) == "build"
    wait_until(lambda: all(place.spawns(role) for role in roles), what="all four are loading")
    assert place.front("second").open(wait=False) == "bind"
    code, found = place.status()
    assert code == 0
    assert {group["state"] for group in found["groups"]} == {"starting"}
    assert len(found["members"]) == 2
    assert place.cli("stop").returncode == 0
    assert [len(place.spawns(role)) for role in roles] == [1, 1, 1, 1]
