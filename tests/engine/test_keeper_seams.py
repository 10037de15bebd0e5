"""kill -9 of the keeper at every seam: the next one takes everything up, no other process changes, nothing is started
twice, and what was under way comes to its end.

The seams are those of tests/engine/seam_keeper.py. Each has a scenario in which a keeper comes there; a command to the
warden, an event from it, or an action of the lifecycle table that has none fails the collection of this file.
"""

from __future__ import annotations

import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from supervisor import identity
from supervisor.errors import ExitCode
from supervisor.lifecycle import Action
from tests.engine.kit import Launch
from tests.engine.seen import Deaths, Family, kill
from tests.support import free_port
from tests.unit.test_warden_page import commands, events

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.engine.place import Place

pytestmark = pytest.mark.process

SEAM_KEEPER = Path(__file__).with_name("seam_keeper.py")


def open_with(place: Place, seam: str, *options: str, wait: bool = True) -> None:
    """A front end builds the engine, with a keeper that dies at the seam."""
    place.front().open(wait=wait, keeper=[str(SEAM_KEEPER), seam, str(mark(place)), *options])


def mark(place: Place) -> Path:
    return place.home / "reached"


def living(place: Place, role: str) -> list[identity.Identity]:
    return [one for one in place.started(role) if identity.liveness(one) is not identity.Liveness.DEAD]


def one_of_each(place: Place, family: Family) -> None:
    """What was started is what runs: one server a role, and below the warden nobody else."""
    for role, server in family.servers.items():
        assert living(place, role) == [server]
    # A keeper asks for devices in a process of its own, for some 50 ms.
    place.until(
        lambda: len(identity.descendants(family.warden.pid)) == len(family.everybody) - 1,
        within=10, what="nobody else below the warden",
    )  # fmt: skip


# --- scenarios: each ends with what must hold ---------------------------------------------------------------------------


def start(place: Place, seam: str) -> None:
    """An engine starts."""
    open_with(place, seam)
    one_of_each(place, place.family())
    assert [len(place.spawns(role)) for role in ("chat", "embed")] == [1, 1]


def tell_a_manager(place: Place, seam: str) -> None:
    """An engine starts and has it told to a service manager."""
    open_with(place, seam, "--notify=0")
    one_of_each(place, place.family())


def serve_a_gateway(place: Place, seam: str) -> None:
    """An engine starts, with a gateway: the next keeper serves it where the first one did, or was about to."""
    port = free_port()
    place.configure(gateway={"listen": f"127.0.0.1:{port}"})
    start(place, seam)
    place.until(lambda: place.snapshot()["gateway"]["state"] == "serving", within=60, what="a gateway")
    place.until(lambda: mark(place).exists(), within=60, what="the seam")
    place.until(lambda: place.snapshot()["gateway"]["url"] == f"http://127.0.0.1:{port}", within=60, what="a gateway")


def fail(place: Place, seam: str) -> None:
    """A group never becomes ready, and is given up; the other one serves."""
    place.configure({"chat": (Launch("chat", knobs={"exit_early": 1}),), "embed": (Launch("embed", place.kit.embed),)})
    open_with(place, seam, wait=False)
    place.wait_state("failed")
    place.wait_state("running", "embed")
    assert 3 <= len(place.spawns("chat")) <= 4  # the try in which its keeper died may be made twice
    assert len(place.spawns("embed")) == len(living(place, "embed")) == 1
    assert living(place, "chat") == []


def lose(place: Place, seam: str, *, proxy: bool) -> None:
    open_with(place, seam)
    before = place.family()
    kill((before.proxies if proxy else before.servers)["chat"])
    after = changed(place, before)
    one_of_each(place, after)
    kept = {"embed", "proxy embed"} | (set() if proxy else {"proxy chat"})
    assert {name: after.engine[name] for name in kept} == {name: before.engine[name] for name in kept}
    assert after.warden == before.warden
    assert [len(place.spawns(role)) for role in ("chat", "embed")] == [2, 1]


def changed(place: Place, before: Family) -> Family:
    """The engine, once its chat server is another one."""

    def look() -> Family | None:
        found = place.family()
        return found if found.servers["chat"] != before.servers["chat"] else None

    found = place.until(look, within=60, what="another chat server")
    assert found is not None
    return found


def lose_server(place: Place, seam: str) -> None:
    """A server dies and is loaded again."""
    lose(place, seam, proxy=False)


def lose_proxy(place: Place, seam: str) -> None:
    """A proxy dies and its group is rebuilt."""
    lose(place, seam, proxy=True)


def take_up(place: Place, seam: str) -> None:
    """A keeper dies, and the next one takes up what runs."""
    open_with(place, seam)
    before = place.family()
    kill(before.keeper)
    same_engine(place, before)


def replace(place: Place, seam: str) -> None:
    """A keeper is replaced on request."""
    open_with(place, seam)
    before = place.family()
    done = place.cli("restart-keeper")
    assert done.returncode == ExitCode.OK, done.stderr
    same_engine(place, before)


def same_engine(place: Place, before: Family) -> None:
    """Another keeper, and nothing else changed."""
    place.until(lambda: mark(place).exists() and place.family().keeper != before.keeper, within=60, what="a keeper")
    after = place.family()
    assert (after.engine, after.warden) == (before.engine, before.warden)
    one_of_each(place, after)
    assert [len(place.spawns(role)) for role in ("chat", "embed")] == [1, 1]


def stop(place: Place, seam: str) -> None:
    """The engine is stopped."""
    open_with(place, seam)
    with Deaths(place.family().everybody) as deaths:
        done = place.cli("stop")
        assert done.returncode == ExitCode.OK, done.stderr
        assert deaths.alive() == []
    nothing_left(place)


def stop_the_stubborn(place: Place, seam: str) -> None:
    """The engine is stopped, and a server ignores SIGTERM."""
    place.configure(
        {"chat": (Launch("chat", knobs={"term": "ignore"}),), "embed": (Launch("embed", place.kit.embed),)}, grace_s=1.0
    )
    stop(place, seam)


def signal_warden(place: Place, seam: str) -> None:
    """The warden gets SIGTERM: no keeper follows one that dies in such a stop, and the warden ends the engine."""
    open_with(place, seam)
    family = place.family()
    with Deaths(family.everybody) as deaths:
        kill(family.warden, signal.SIGTERM)
        deaths.wait(within=30)
    nothing_left(place)


def nothing_left(place: Place) -> None:
    place.wait_empty()
    place.assert_gone()
    assert [len(place.spawns(role)) for role in ("chat", "embed")] == [1, 1]


# --- the table ----------------------------------------------------------------------------------------------------------

COMMANDS: dict[str, Callable[[Place, str], None]] = {
    "beat": start,
    "note of the contract": start,
    "note of a group": start,
    "note of a generation": start,
    "note of the intent": stop,
    "note of the gateway": serve_a_gateway,
    "notify": tell_a_manager,
    "spawn": start,
    "kill 15": stop,
    "kill 9": stop_the_stubborn,
    "forget": lose_proxy,
    "quit": stop,
    "replace": replace,
}
EVENTS: dict[str, Callable[[Place, str], None]] = {
    "hello": start,
    "listed": start,
    "row": take_up,
    "spawned": start,
    "exit": lose_proxy,
    "gone": lose_proxy,
    "done": stop,
    "signal": signal_warden,
}
NOT_ON_ORDER = {"error", "unkillable"}
"""Events that only a bug or a broken driver brings; the group's own tests have them."""

ACTIONS: dict[Action, Callable[[Place, str], None]] = {
    Action.SPAWN: start,
    Action.WARM: lose_server,
    Action.STOP: stop,
    Action.KILL: fail,
    Action.CONSULT: lose_proxy,
    Action.FORGET: lose_proxy,
}
FILES: dict[str, Callable[[Place, str], None]] = {
    "file of a generation": start,
    "record of a keeper": start,
    "record of a group": start,
}

if {name.split()[0] for name in COMMANDS} != commands() - {"list"} or EVENTS.keys() | NOT_ON_ORDER != events().keys():
    raise AssertionError("a command or an event of the warden's has no scenario here")
if set(ACTIONS) != set(Action):
    raise AssertionError("an action has no scenario here")

AROUND = COMMANDS | {f"action {action.name.lower()}": scenario for action, scenario in ACTIONS.items()} | FILES
SEAMS = {f"{side} {name}": scenario for name, scenario in AROUND.items() for side in ("before", "after")}
SEAMS |= {f"told {event}": scenario for event, scenario in EVENTS.items()}
QUICK = {"told spawned", "after action warm"}


@pytest.mark.parametrize(
    "seam", [seam if seam in QUICK else pytest.param(seam, marks=pytest.mark.long) for seam in SEAMS]
)
def test_a_keeper_that_dies_at_a_seam_is_followed_by_one_that_goes_on(place: Place, seam: str) -> None:
    SEAMS[seam](place, seam)
    assert mark(place).exists(), f"no keeper came to {seam!r}"
