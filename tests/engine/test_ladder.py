"""The ladder with whole engines: extended, replaced in place, overflowed, taken over, held."""

from __future__ import annotations

import json
import random
import signal
import socket
import time
from typing import TYPE_CHECKING, Any

import pytest

from supervisor import identity, locks
from supervisor.errors import ExitCode
from tests.engine.fronts import Front, OrderFailedError
from tests.engine.kit import Launch
from tests.engine.seen import Deaths, kill
from tests.support import wait_until

if TYPE_CHECKING:
    from tests.engine.place import Place

pytestmark = pytest.mark.process

LONGER = 150.0
"""For what takes tens of seconds by itself."""


def rungs(place: Place) -> list[str]:
    """What the journal says was decided, in order."""
    lines = [json.loads(line) for line in place.slot.events.read_text().splitlines()]
    return [line["rung"] for line in lines if line["what"] == "ladder"]


def want(place: Place, *roles: str, model: str = "", **options: Any) -> None:
    """Write what the next front end asks for: one group for each role. Another model's name makes it another engine."""
    other = place.home / "other.gguf"
    if model and not other.exists():
        other.write_bytes(place.kit.chat.read_bytes())
    models = {"chat": other if model else place.kit.chat, "embed": place.kit.embed, "rerank": place.kit.embed}
    place.configure({role: (Launch(role, models[role]),) for role in roles}, **options)


def test_an_engine_that_lacks_something_is_extended_and_what_it_serves_is_not_touched(place: Place) -> None:
    want(place, "chat")
    first = place.member("first")
    before = place.family()
    want(place, "chat", "embed")
    second = place.front("second")
    assert second.open() == "extend"
    after = place.family()
    assert (after.warden, after.keeper) == (before.warden, before.keeper)
    assert after.servers["chat"] == before.servers["chat"]
    assert len(place.spawns("embed")) == 1
    assert second.do("post", role="embed", path="/embeddings", body={"input": "bee"})["status"] == 200
    # Who wants less binds, and nobody is a member twice.
    want(place, "embed")
    assert place.front("third").open() == "bind"
    assert first.ask("chat", "still there?")
    assert len(place.snapshot()["members"]) == 3
    assert rungs(place) == ["build", "extend", "bind"]


@pytest.mark.long
def test_an_engine_of_too_small_a_context_is_given_more(place: Place) -> None:
    place.configure({"chat": (Launch("chat", context=512),)})
    place.member("first")
    with_least = place.config.read_text().replace("context = 512", "context = 4096\nleast_context = {}")
    place.config.write_text(with_least.format(512))
    assert place.front("content").open() == "bind"
    assert len(place.spawns()) == 1
    place.config.write_text(with_least.format(1024))
    assert place.front("demanding").open() == "extend"
    place.until(lambda: "4096" in place.spawns()[-1]["argv"], within=20, what="a server with more context")
    assert not place.slot.private(str(place.home)).path.exists()


@pytest.mark.long
def test_an_idle_engine_of_another_kind_is_replaced_in_place(place: Place) -> None:
    """lilbee's poisoned slot: an engine that nobody uses and nobody can."""
    want(place, "chat", "rerank", engine={"keep_warm": True})
    first = place.member("first")
    before = place.family()
    first.end()
    place.until(lambda: not place.snapshot()["members"], within=20, what="nobody uses it")
    with Deaths(before.servers.values()) as deaths:
        want(place, "chat", model="other")
        second = place.front("second")
        assert second.open() == "replace"
        deaths.wait()
    after = place.family()
    assert after.warden == before.warden
    assert set(after.servers) == {"chat"}
    assert second.ask("chat", "replaced")
    assert not place.slot.private(str(place.home)).path.exists()
    # The wish of the other configuration went with its engine: the last one out stops this one.


@pytest.mark.long
def test_an_engine_in_use_by_others_is_left_alone_and_another_started_beside_it(place: Place) -> None:
    want(place, "chat")
    first = place.member("first")
    before = place.family()
    private = place.slot.private(str(place.home))
    want(place, "chat", model="other")
    second = place.front("second")
    assert second.open() == "overflow"
    assert place.family() == before
    assert [member["pid"] for member in place.snapshot()["members"]] == [first.pid]
    assert first.ask("chat", "untouched")
    assert second.ask("chat", "beside it")
    assert first.do("endpoint", role="chat")["url"] != second.do("endpoint", role="chat")["url"]
    # Whoever looks sees it.
    code, status = place.status()
    assert code == 0
    (shown,) = status["private"]
    assert shown["slot"] == str(private.path)
    assert [group["name"] for group in shown["groups"]] == ["chat"]
    assert [member["pid"] for member in shown["members"]] == [second.pid]
    assert (status["built"]["rung"], status["built"]["program"]) == ("build", first.name)
    assert f"by {first.name} (pid {first.pid}), to build: no engine in the slot" in place.cli("status").stdout
    (line,) = [line for line in place.cli("status").stdout.splitlines() if line.startswith("private")]
    assert str(private.path) in line
    assert f"second-1 (pid {second.pid})" in line
    # The next one of the same configuration shares it, also when the first slot is free by then.
    first.end()
    place.wait_empty()
    third = place.front("third")
    assert third.open() == "bind"
    assert locks.is_held(place.slot.warden_lock) is False
    # From there, there is nowhere else to go.
    want(place, "embed")
    assert place.front("fourth").open() == "build"  # the first slot is free
    want(place, "rerank")
    with pytest.raises(OrderFailedError) as refused:
        place.front("fifth").open()
    assert refused.value.facts["error"] == "OwnedElsewhereError"
    assert str(place.slot.path) in refused.value.facts["what"]
    assert str(private.path) in refused.value.facts["what"]
    # A stop of the one says that the other goes on.
    assert f"queenright stop --slot {private.path}" in place.cli("stop").stdout
    assert locks.is_held(private.warden_lock) is True
    for front in (second, third):
        front.end()
    wait_until(lambda: locks.is_held(private.warden_lock) is False, within=20, what="the private engine is gone")


@pytest.mark.long
def test_a_queenright_run_is_its_owners_also_while_nobody_uses_it(place: Place) -> None:
    want(place, "chat")
    run = place.run()
    before = place.family()
    private = place.slot.private(str(place.home))
    want(place, "chat", model="other")
    front = place.front()
    assert front.open() == "overflow"
    assert place.family() == before
    refused = place.cli("run")  # and it cannot take the place of anybody
    assert refused.returncode == ExitCode.OWNED_ELSEWHERE
    assert str(before.warden.pid) in refused.stderr
    front.end()
    wait_until(lambda: locks.is_held(private.warden_lock) is False, within=20, what="the private engine is gone")
    assert run.process.poll() is None


@pytest.mark.long
def test_a_group_that_failed_is_no_reason_for_a_second_engine(place: Place) -> None:
    place.configure({"chat": (Launch("chat", knobs={"exit-early": 1}),)})
    place.front("first").open(wait=False)
    place.wait_state("failed")
    second = place.front("second")
    assert second.open(wait=False) == "bind"
    with pytest.raises(OrderFailedError) as failed:
        second.do("ready")
    assert failed.value.facts["error"] == "FailedForGoodError"
    assert not place.slot.private(str(place.home)).path.exists()


@pytest.mark.long
def test_what_a_dead_warden_left_is_cleared_at_the_first_try(place: Place) -> None:
    """A grandchild in a session of its own outlives warden, proxy and server."""
    place.configure({"chat": (Launch("chat", knobs={"fork": "sleep"}),)})
    first = place.member("first")
    family = place.family()
    (left,) = [one for one in identity.with_marker("QUEENRIGHT_GENERATION") if one[1] == place.group()["generation"]
               and one[0] not in family.everybody]  # fmt: skip
    with Deaths([*family.engine.values(), family.warden]) as deaths:
        kill(family.warden)
        deaths.wait()
    assert identity.liveness(left[0]) is identity.Liveness.ALIVE
    second = place.front("second")
    assert second.open() in ("take over", "bind")  # the member that lost its engine may be the first to see it
    assert identity.liveness(left[0]) is identity.Liveness.DEAD
    assert second.ask("chat", "taken over")
    assert rungs(place).count("take over") == 1
    first.kill()


@pytest.mark.long
def test_run_takes_over_what_a_dead_warden_left(place: Place) -> None:
    place.configure({"chat": (Launch("chat", knobs={"fork": "sleep"}),)})
    first = place.member("first")
    family = place.family()
    with Deaths([*family.engine.values(), family.warden]) as deaths:
        kill(family.warden)
        deaths.wait()
    first.kill()
    place.run()
    assert rungs(place)[-1] == "take over"


def test_a_warden_that_is_stopped_while_its_keeper_answers_is_somebodys_ctrl_z(place: Place) -> None:
    want(place, "chat")
    place.member("first")
    before = place.family()
    kill(before.warden, signal.SIGSTOP)
    try:
        assert place.front("second").open() == "bind"
    finally:
        kill(before.warden, signal.SIGCONT)
    assert place.family() == before


@pytest.mark.long
@pytest.mark.parametrize("who", ["front", "run"])
def test_a_warden_that_hangs_is_taken_over(place: Place, who: str) -> None:
    want(place, "chat")
    first = place.member("first")
    before = place.family()
    kill(before.warden, signal.SIGSTOP)
    kill(before.keeper)
    first.kill()
    began = time.monotonic()
    with Deaths([before.warden, *before.engine.values()]) as deaths:
        if who == "front":
            front = place.front("second")
            assert front.open() in ("build", "take over")
            assert front.ask("chat", "taken over")
        else:
            place.run(wait=False).wait_said("keeping chat", within=LONGER)
            place.family(within=LONGER)
        deaths.wait()
    assert time.monotonic() - began > 10  # the proof takes its time
    assert place.family().warden != before.warden
    assert "take over" in rungs(place)


@pytest.mark.long
def test_a_silent_slot_that_is_not_proven_to_hang_is_waited_for_and_left_alone(place: Place) -> None:
    """Somebody holds warden.lock and its socket is silent: who it is cannot be told, as with another pid namespace."""
    want(place, "chat")
    place.slot.prepare()
    with locks.acquire(place.slot.warden_lock, timeout=1.0), socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(place.slot.control_socket))
        listener.listen(64)
        with pytest.raises(OrderFailedError) as failed:
            place.front("second").open()
    assert failed.value.facts["error"] == "LockTimeoutError"
    assert "for 15 s (its warden cannot be found from here)" in failed.value.facts["what"]
    place.slot.control_socket.unlink()
    place.slot.warden_lock.unlink()
    place.assert_never_started()


@pytest.mark.long
def test_nobody_builds_in_a_slot_that_is_held(place: Place) -> None:
    want(place, "chat")
    assert place.cli("hold", "driver update").returncode == 0
    refused = place.cli("run")
    assert refused.returncode == ExitCode.OWNED_ELSEWHERE
    assert "driver update" in refused.stderr
    assert "queenright release" in refused.stderr
    with pytest.raises(OrderFailedError) as failed:
        place.front("first").open()
    assert (failed.value.facts["error"], failed.value.facts["exit_code"]) == ("HeldError", ExitCode.OWNED_ELSEWHERE)
    assert "driver update" in failed.value.facts["what"]
    place.assert_never_started()
    # A release ends the wait.
    second = place.front("second")
    opening = second.begin("open", config=str(place.config), program="second")
    place.until(lambda: rungs(place).count("held") >= 2, within=20, what="it waits")
    assert place.cli("release").returncode == 0
    assert second.result(opening)["how"] == "build"


@pytest.mark.long
@pytest.mark.timeout(2400)
def test_joins_against_the_last_one_out(place: Place) -> None:
    """Two front ends pass one engine on, 500 times: whoever comes while the other leaves is served, by that engine or
    by the next one, and there is never more than one."""
    want(place, "chat")
    moments = random.Random(4)
    here, other = place.member("here"), place.front("other")
    other.do("warm_up")
    hows: set[str] = set()
    how = {"config": str(place.config), "program": "member", "wait": False}
    for number in range(500):
        orders: list[tuple[Front, str, dict[str, Any]]] = [(other, "open", how), (here, "close", {})]
        moments.shuffle(orders)
        begun = []
        for front, order, arguments in orders:
            begun.append((front, front.begin(order, **arguments)))
            time.sleep(moments.uniform(0, 0.03))
        hows |= {front.result(given).get("how", "close") for front, given in begun}
        seen = place.snapshot()
        assert (seen["state"] != "stopping", [member["pid"] for member in seen["members"]]) == (True, [other.pid])
        if number % 25 == 0:
            assert other.ask("chat", "served", tokens=1)
            alive = [one for one in place.started() if identity.liveness(one) is not identity.Liveness.DEAD]
            assert len(alive) == 1
        here, other = other, here
    assert hows == {"bind", "build", "close"}
