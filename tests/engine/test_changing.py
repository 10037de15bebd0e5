"""A running engine that is told to be another one: groups that change, come, go, are held, released and tried again."""

from __future__ import annotations

import json
import signal
from typing import TYPE_CHECKING, Any

import pytest

from supervisor import control, holding, identity
from supervisor.control import ControlError
from supervisor.errors import ExitCode
from tests.engine.kit import Launch
from tests.engine.seen import Deaths, Family, kill
from tests.fakes.llama_server import story
from tests.support import wait_until

if TYPE_CHECKING:
    from tests.engine.fronts import Front
    from tests.engine.place import Place

pytestmark = pytest.mark.process

RATE = 20
PROMPT = "tell me of bees"


def groups(place: Place, *, embed_context: int = 4096, rerank: bool = False, embed: bool = True) -> None:
    """Write the configuration: chat as it always is, the others as the test wants them."""
    wanted: dict[str, tuple[Launch, ...]] = {"chat": (Launch("chat", knobs={"rate": RATE}),)}
    if embed:
        wanted["embed"] = (Launch("embed", place.kit.embed, context=embed_context),)
    if rerank:
        wanted["rerank"] = (Launch("rerank", place.kit.embed),)
    place.configure(wanted)


def same(before: Family, after: Family, *names: str) -> None:
    assert {name: after.engine[name] for name in names} == {name: before.engine[name] for name in names}


def test_a_change_restarts_only_the_group_it_touches(place: Place) -> None:
    groups(place)
    front = place.member()
    before = place.family()
    stream = front.begin("stream", role="chat", prompt=PROMPT, tokens=3 * RATE)
    front.first(stream)
    groups(place, embed_context=512)
    done = place.cli("apply", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"changes": {"embed": "is restarted"}, "applied": True, "state": "running"}
    after = place.family()
    same(before, after, "chat", "proxy chat")
    assert after.servers["embed"] != before.servers["embed"]
    assert place.spawns("embed")[-1]["argv"][place.spawns("embed")[-1]["argv"].index("--ctx-size") + 1] == "512"
    # The group beside it went on, and its member found the one that moved.
    assert front.result(stream)["text"] == "".join(story(PROMPT, 0, 3 * RATE))
    assert front.do("post", role="embed", path="/embeddings", body={"input": "bee"})["status"] == 200
    # What is so already is left alone.
    again = place.cli("apply")
    assert (again.returncode, again.stdout) == (0, "nothing changed\n")
    same(after, place.family(), *after.engine)


@pytest.mark.long
def test_groups_come_and_go(place: Place) -> None:
    groups(place)
    place.member()
    before = place.family()
    groups(place, rerank=True)
    planned = place.cli("apply", "--dry-run")
    assert planned.stdout == "rerank: is started\n"
    assert [group["name"] for group in place.snapshot()["groups"]] == ["chat", "embed"]
    assert place.cli("apply").returncode == 0
    more = place.family()
    same(before, more, *before.engine)
    assert "rerank" in more.servers
    with Deaths([more.servers["embed"], more.proxies["embed"]]) as deaths:
        groups(place, rerank=True, embed=False)
        assert place.cli("apply").returncode == 0
        wait_until(lambda: not deaths.alive(), what="the group that nobody wants is gone")
    place.until(
        lambda: [g["name"] for g in place.snapshot()["groups"]] == ["chat", "rerank"], within=10, what="forgotten"
    )
    same(before, place.family(), "chat", "proxy chat")
    assert not place.slot.group_record("embed").exists()


@pytest.mark.long
def test_the_next_keeper_goes_on_with_a_change(place: Place) -> None:
    """The keeper dies right after it noted the new contract: what was begun under the old one is replaced, what the new
    one has not is ended."""
    groups(place, rerank=True)
    place.member()
    before = place.family()
    groups(place, embed_context=512)
    from supervisor import records, resolving

    wanted = records.unstructure(resolving.resolve(resolving.load(place.config)))
    with Deaths([before.servers["rerank"]]) as deaths:
        control.ask(place.slot, "configure", contract=wanted, who="the test")
        kill(before.keeper)
        wait_until(lambda: not deaths.alive(), what="the dropped group is gone")
    place.until(lambda: place.spawns("embed")[-1]["argv"].count("512") == 1, within=20, what="the new embed server")
    after = place.family()
    assert after.keeper != before.keeper
    assert set(after.servers) == {"chat", "embed"}
    same(before, after, "chat", "proxy chat")
    assert after.servers["embed"] != before.servers["embed"]


@pytest.mark.long
def test_a_hold_keeps_the_engine_down_until_it_is_released(place: Place) -> None:
    front = place.member()
    before = place.family()
    with Deaths(before.engine.values()) as deaths:
        done = place.cli("hold", "driver update")
        assert done.returncode == 0, done.stderr
        assert not deaths.alive()  # it returns when they are gone
    assert "driver update" in done.stdout
    code, status = place.status()
    assert (code, status["state"], status["held"][-13:]) == (0, "held", "driver update")
    waiting = front.begin("ask", role="chat", prompt=PROMPT, tokens=3)
    # A keeper that dies meanwhile starts nothing, nor does its successor.
    kill(before.keeper)
    place.wait_state("held")
    assert len(place.spawns()) == 1
    assert place.cli("release").returncode == 0
    assert front.result(waiting)["text"] == "".join(story(PROMPT, 0, 3))
    assert place.snapshot()["held"] is None
    assert place.cli("release").stdout == "nothing is held\n"


@pytest.mark.long
def test_a_hold_on_one_group_leaves_the_others_alone_survives_everybody_and_ends_by_itself(place: Place) -> None:
    front = place.member()
    before = place.family()
    done = place.cli("hold", "benchmark", "--group", "chat", "--for", "1d")
    assert done.returncode == 0, done.stderr
    held = place.wait_state("held")
    assert "benchmark" in held["reason"]
    assert place.snapshot()["held"] is None
    assert identity.liveness(before.servers["chat"]) is identity.Liveness.DEAD
    assert place.group("embed")["proxy"]["pid"] == before.proxies["embed"].pid
    assert "wrong     chat: held by" in place.cli("status").stdout
    assert place.cli("hold", "--group", "chta").returncode == int(ExitCode.USAGE)
    assert "there are: chat, embed" in place.cli("hold", "--group", "chta").stderr
    assert place.cli("hold", "--for", "soon").returncode == int(ExitCode.USAGE)
    # Neither a new keeper nor a new engine starts it, nor a release of the whole slot.
    kill(before.keeper)
    place.until(lambda: place.snapshot()["keeper"]["pid"] != before.keeper.pid, within=60, what="a new keeper")
    place.wait_state("held")
    front.end()
    place.wait_empty()
    assert "benchmark" in place.status()[1]["held_groups"]["chat"]
    place.run(wait=False)
    place.wait_state("running", "embed")
    place.wait_state("held")
    assert "group chat is held by itself" in place.cli("release").stdout
    place.wait_state("held")
    assert len(place.spawns()) == 1
    assert place.cli("release", "--group", "chat").returncode == 0
    place.wait_state("running")
    assert place.cli("hold", "--group", "chat", "--for", "2s").returncode == 0
    place.wait_state("running", within=60)
    assert len(place.spawns()) == 3
    assert not place.slot.hold_record_of("chat").exists()
    assert "chat: released by its time, which is over" in place.cli("events").stdout


@pytest.mark.long
def test_a_hold_that_meets_a_silent_keeper_says_what_is_so_and_a_release_is_told_again(place: Place) -> None:
    place.configure({"chat": (Launch("chat", knobs={"load": 2}),)})
    place.member()
    family = place.family()
    kill(family.warden, signal.SIGSTOP)  # or it would replace the keeper
    kill(family.keeper, signal.SIGSTOP)
    try:
        done = place.cli("hold", "driver update")
        assert done.returncode == int(ExitCode.ERROR)
        assert "the slot is held, but" in done.stderr
        assert "queenright stop" in done.stderr
        code, status = place.status()
        assert (code, status["state"], status["held"][-13:]) == (0, "degraded", "driver update")
        assert "driver update" in status["reason"]
    finally:
        kill(family.keeper, signal.SIGCONT)
        kill(family.warden, signal.SIGCONT)
    place.wait_state("held")
    place.slot.hold_record.unlink()  # as a release does it that the keeper then did not hear of
    done = place.cli("release", "--json")
    assert json.loads(done.stdout) == {"released": True, "engine": True, "still_held": []}
    started = place.wait_state("starting")
    assert "held" not in started["reason"] + place.group()["reason"]
    place.wait_state("running")


@pytest.mark.long
def test_a_hold_stays_with_the_slot_when_no_engine_runs(place: Place) -> None:
    assert place.cli("hold").returncode == 0
    code, status = place.status()
    assert (code, status["state"]) == (int(ExitCode.NO_ENGINE), "down")
    assert status["held"].startswith("held by user id ")
    assert status["held"] in place.cli("status").stdout
    there = holding.find(place.slot)
    assert there is not None
    assert there.who.startswith("user id ")
    place.slot.hold_record.write_text("{")  # what cannot be read is no release
    assert holding.find(place.slot) is not None
    assert place.cli("release").returncode == 0
    assert holding.find(place.slot) is None
    place.member()


@pytest.mark.long
def test_what_was_given_up_is_tried_again_when_somebody_says_so(place: Place) -> None:
    broken, server = place.home / "broken", place.home / "server"
    broken.touch()
    check = f'case "$*" in *--help*) ;; *) [ ! -e {broken} ] || exit 1 ;; esac'
    server.write_text(f'#!/bin/sh\n{check}\nexec {place.kit.server} "$@"\n')
    server.chmod(0o755)
    place.configure({"chat": (Launch("chat"),)}, engine={"llama_server": str(server)})
    place.front().open(wait=False)
    place.wait_state("failed")
    assert place.cli("retry", "embed").returncode == int(ExitCode.USAGE)
    assert place.cli("retry").returncode == int(ExitCode.FAILED_FOR_GOOD)
    broken.unlink()
    done = place.cli("retry", "chat", "--json")
    assert (done.returncode, json.loads(done.stdout)["chat"]["state"]) == (0, "running")
    assert place.cli("retry").returncode == int(ExitCode.USAGE)  # nothing is given up any more


@pytest.mark.long
def test_keep_warm_is_taken_back_by_who_asked_for_it(place: Place) -> None:
    place.configure(engine={"keep_warm": True})
    front = place.member()
    root = str(place.config.parent)
    assert place.snapshot()["warm"] == [root]
    front.end()
    kill(place.family().keeper)  # the wish outlives the keeper
    place.family()
    control.ask(place.slot, "warm", root="/elsewhere", keep=False)
    assert place.snapshot()["warm"] == [root]
    control.ask(place.slot, "warm", root=root, keep=False)
    place.wait_empty()


@pytest.mark.long
def test_any_configuration_that_wants_the_engine_warm_keeps_it__ollama_10263(place: Place) -> None:
    def use(root: str, *, warm: bool) -> Front:
        """A front end of the configuration in that directory."""
        place.config = place.home / root / "queenright.toml"
        place.config.parent.mkdir(exist_ok=True)
        place.configure({"chat": (Launch("chat"),)}, engine={"keep_warm": warm})
        return place.member(root)

    kept = [str(place.home / "keeps")]
    cool = use("does-not", warm=False)
    warm = use("keeps", warm=True)
    before = place.family()
    assert place.snapshot()["warm"] == kept
    warm.end()
    cool.end()
    for _ in range(2):  # neither by leaving last nor by coming again does the other one take it back
        wait_until(lambda: not place.snapshot()["members"], what="nobody uses it")
        assert f"members   none; kept warm by {kept[0]}" in place.cli("status").stdout.splitlines()
        again = use("does-not", warm=False)
        assert place.snapshot()["warm"] == kept
        again.end()
    assert place.family() == before
    back = use("keeps", warm=False)
    assert place.snapshot()["warm"] == []
    assert place.family() == before
    back.end()
    place.wait_empty()


@pytest.mark.long
def test_a_new_keeper_takes_over_on_request(place: Place) -> None:
    groups(place)
    front = place.member()
    before = place.family()
    stream = front.begin("stream", role="chat", prompt=PROMPT, tokens=2 * RATE)
    front.first(stream)
    done = place.cli("restart-keeper", "--json")
    assert done.returncode == 0, done.stderr
    after = place.family()
    assert after.keeper != before.keeper
    same(before, after, *before.engine)
    assert front.result(stream)["text"] == "".join(story(PROMPT, 0, 2 * RATE))
    assert place.snapshot()["warden"]["keeper_crashes"] == 0


def test_what_cannot_be_done_changes_nothing(place: Place) -> None:
    place.member()
    before = place.family()
    questions: list[tuple[dict[str, Any], str]] = [
        ({"op": "configure"}, "EngineSpec"),
        ({"op": "configure", "contract": {"groups": 5}}, "groups"),
        ({"op": "retry", "groups": ["nix"]}, "no group nix"),
    ]
    for question, why in questions:
        with pytest.raises(ControlError, match=why):
            control.ask(place.slot, **question)
    same(before, place.family(), *before.engine)


def test_commands_for_a_running_engine_start_none(place: Place) -> None:
    for words in (["apply"], ["retry"], ["restart-keeper"]):
        assert place.cli(*words).returncode == int(ExitCode.NO_ENGINE), words
    assert place.cli("release").returncode == 0
    place.assert_never_started()
