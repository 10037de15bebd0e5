"""One engine for every process: who builds, who binds, and the last one out."""

from __future__ import annotations

import os
import random
import re
import select
import signal
import threading
import time
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING

import psutil
import pytest

from supervisor import control, identity
from supervisor.errors import ExitCode
from tests.engine.fronts import PATIENCE
from tests.engine.kit import Launch
from tests.engine.seen import Deaths, kill
from tests.fakes.llama_server import story
from tests.support import ROOT, wait_until

if TYPE_CHECKING:
    from tests.engine.fronts import Front
    from tests.engine.place import Place

pytestmark = pytest.mark.process

FOREIGN = {"OPENAI_API_KEY": "secret-of-another", "CUDA_VISIBLE_DEVICES": "7", "LD_LIBRARY_PATH": "/nowhere"}


def leave(front: Front, way: str) -> None:
    """Leave the engine in one of the ways there are."""
    if way == "close":
        front.do("close")
    elif way == "kill":
        front.kill()
    elif way == "sys.exit":
        front.begin("exit", code=3)
    elif way == "hang up":
        front.process.send_signal(signal.SIGHUP)
    else:
        front.begin("die", code=3)
        front.process.wait(30)


def open_all_at_once(fronts: list[Front]) -> list[str]:
    """Have all front ends ask in the same moment; how each came to its engine."""
    for front in fronts:
        front.do("warm_up")
    numbers = [front.begin("open", config=str(front.place.config), program=front.name) for front in fronts]
    return sorted(front.result(number)["how"] for front, number in zip(fronts, numbers, strict=True))


@pytest.mark.long
def test_the_first_front_end_builds_and_the_second_binds(place: Place) -> None:
    first = place.front("first", **FOREIGN)
    assert first.open() == "build"
    before = place.family()
    second = place.front("second")
    assert second.open() == "bind"
    expected = "".join(story("hello", 0, 8))
    assert second.ask("chat", "hello") == first.ask("chat", "hello") == expected
    assert place.family() == before
    assert len(place.spawns("chat")) == len(place.spawns("embed")) == 1
    members = {member["pid"]: member["name"] for member in place.snapshot()["members"]}
    assert members == {first.pid: first.name, second.pid: second.name}

    # The engine shares no fate with the first front end: no variable, no session, no directory of it.
    for who in before.everybody:
        environment = Path(f"/proc/{who.pid}/environ").read_bytes()
        assert not [name for name in FOREIGN if name.encode() + b"=" in environment]
        assert os.getsid(who.pid) != os.getsid(first.pid)
        assert os.readlink(f"/proc/{who.pid}/cwd") in ("/", str(place.slot.path))


@pytest.mark.long
def test_four_front_ends_that_do_nothing_hold_little_and_no_model__hermes_agent_100360(place: Place) -> None:
    """An MCP host that starts the same server four times has one engine all the same; docs/guides/front-ends.md says what
    such a process takes. The tests' front end asks in threads and reads JSON lines, as an MCP server would."""
    told = int(re.search(r"(\d+) MiB of its own", (ROOT / "docs/guides/front-ends.md").read_text())[1])  # type: ignore[index]
    fronts = [place.front(f"mcp-{number}") for number in range(4)]
    assert [front.open() for front in fronts] == ["build", "bind", "bind", "bind"]
    for front in fronts:
        front.ask("chat", "hello")
    assert [len(place.spawns(role)) for role in ("chat", "embed")] == [1, 1]
    for front in fronts:
        process = psutil.Process(front.pid)
        assert not [one.path for one in process.memory_maps() if one.path.endswith(".gguf")]
        assert process.children() == []
        assert process.memory_full_info().uss < told * 2**20


@pytest.mark.parametrize("way", ["close", *(pytest.param(way, marks=pytest.mark.long) for way in ("kill", "exit"))])
def test_the_last_one_out_stops_it_and_no_other_does(place: Place, way: str) -> None:
    first, second = place.member("first"), place.member("second")
    family = place.family()
    with Deaths(family.everybody) as deaths:
        leave(first, way)
        wait_until(lambda: [m["pid"] for m in place.snapshot()["members"]] == [second.pid], what="one member is left")
        assert second.ask("chat", "still there?")
        assert place.family() == family
        leave(second, way)
        deaths.wait()
    place.wait_empty()
    assert not list(place.slot.members.iterdir())


@pytest.mark.long
@pytest.mark.parametrize("way", ["close", "kill", "exit", "sys.exit", "hang up"])
def test_the_end_of_the_last_one_is_noticed_within_a_second(place: Place, way: str) -> None:
    """From the death, as the kernel tells it, to the keeper's first word of stopping. Three seconds here: machines are
    slow at times. That of `close` is counted from before the order."""
    front = place.member()
    family = place.family()
    heard: SimpleQueue[float] = SimpleQueue()
    following = threading.Event()

    def follow() -> None:
        for snapshot in control.converse(place.slot, "follow", limit=PATIENCE):
            following.set()
            if snapshot["state"] == "stopping":
                heard.put(time.monotonic())
                return

    follower = threading.Thread(target=follow)
    follower.start()
    descriptor = os.pidfd_open(front.pid)
    try:
        assert following.wait(PATIENCE)
        with Deaths(family.everybody) as deaths:
            ended = time.monotonic()
            leave(front, way)
            if way != "close":
                assert select.select([descriptor], [], [], PATIENCE)[0]
                ended = time.monotonic()
            noticed = heard.get(timeout=PATIENCE) - ended
            deaths.wait()
        assert noticed < 3.0
    finally:
        os.close(descriptor)
        follower.join(PATIENCE)
    place.assert_gone()


@pytest.mark.parametrize("count", [8, pytest.param(20, marks=pytest.mark.long)])
def test_of_many_that_come_at_once_one_builds_and_the_others_bind(place: Place, count: int) -> None:
    fronts = [place.front() for _ in range(count)]
    assert open_all_at_once(fronts) == ["bind"] * (count - 1) + ["build"]
    place.family()
    assert len(place.spawns("chat")) == len(place.spawns("embed")) == 1
    assert len({front.do("endpoint", role="chat")["generation"] for front in fronts}) == 1
    assert len(place.snapshot()["members"]) == count

    # What dies is rebuilt once, not once for each who needs it.
    kill(place.family().proxies["chat"])
    asked = [(front, front.begin("ask", role="chat", prompt="hello")) for front in fronts]
    assert {front.result(number)["text"] for front, number in asked} == {"".join(story("hello", 0, 8))}
    assert place.group()["restarts"] == 1
    assert len(place.spawns("chat")) == 2


@pytest.mark.long
def test_eight_threads_of_one_process_get_one_engine_and_are_one_member(place: Place) -> None:
    place.configure({"chat": (Launch("chat", knobs={"load": 1}),)})
    front = place.front()
    numbers = [front.begin("open", config=str(place.config), program="threads", wait=False) for _ in range(8)]
    assert sorted(front.result(number)["how"] for number in numbers) == ["bind"] * 7 + ["build"]
    asked = [front.begin("ask", role="chat", prompt="hello") for _ in range(8)]  # while it loads: all join one load
    assert {front.result(number)["text"] for number in asked} == {"".join(story("hello", 0, 8))}
    assert len(place.spawns()) == 1
    assert [member["pid"] for member in place.snapshot()["members"]] == [front.pid]
    for _ in range(7):
        front.do("close")
    assert front.ask("chat", "one handle is left")


def test_commands_that_look_start_nothing(place: Place) -> None:
    looks = [
        (["status"], ExitCode.NO_ENGINE),
        (["status", "--json"], ExitCode.NO_ENGINE),
        (["stop"], ExitCode.NO_ENGINE),
        (["logs"], ExitCode.NO_ENGINE),
        (["logs", "keeper"], ExitCode.USAGE),
        (["doctor"], ExitCode.OK),
        (["version"], ExitCode.OK),
        (["version", "--json"], ExitCode.OK),
        (["init", "--print"], ExitCode.OK),
        (["--help"], ExitCode.OK),
    ]
    assert [place.cli(*words).returncode for words, _ in looks] == [code for _, code in looks]
    assert not place.slot.path.exists()
    place.assert_never_started()


@pytest.mark.long
def test_a_newcomer_waits_for_an_engine_that_is_stopping_and_builds_anew(place: Place) -> None:
    place.configure({"chat": (Launch("chat", knobs={"term": "ignore"}),)}, grace_s=2.0)
    first = place.member()
    with Deaths(place.family().everybody) as deaths:
        first.do("close")
        place.wait_state("stopping")
        second = place.front("second")
        assert second.open() == "build"
        assert deaths.alive() == []
    assert second.ask("chat", "anew")
    assert len(place.spawns()) == 2


@pytest.mark.long
def test_the_last_one_out_never_takes_the_next_one_in_along(place: Place) -> None:
    place.configure({"chat": (Launch("chat"),)})
    front = place.member()
    hows = set()
    for _ in range(15):
        newcomer = place.front("newcomer")
        newcomer.do("warm_up")
        leaving, coming = front.begin("close"), newcomer.begin("open", config=str(place.config), program="newcomer")
        front.result(leaving)
        hows.add(newcomer.result(coming)["how"])
        assert newcomer.ask("chat", "served")
        front.end()
        front = newcomer
    assert hows <= {"bind", "build"}


@pytest.mark.long
def test_a_builder_killed_at_any_moment_leaves_nothing_and_is_in_nobodys_way(place: Place) -> None:
    place.configure({"chat": (Launch("chat", knobs={"load": 0.2}),)})
    moments = random.Random(3)
    for _ in range(12):
        builder = place.front("builder")
        builder.do("warm_up")
        builder.begin("open", config=str(place.config), program="builder")
        time.sleep(moments.uniform(0.0, 1.5))  # anywhere from the ladder to the first answer
        builder.kill()
        newcomer = place.front("newcomer")
        assert newcomer.open() in ("bind", "build")
        assert newcomer.ask("chat", "served")
        family = place.family()
        assert [one for one in place.started() if identity.liveness(one) is not identity.Liveness.DEAD] == [
            family.servers["chat"]
        ]
        newcomer.kill()
    place.wait_empty()


def test_a_slot_whose_path_is_too_long_for_a_socket_works_all_the_same(place: Place) -> None:
    deep = place.home / ("d" * 60) / ("e" * 60)
    place.use_slot(deep)
    place.configure({"chat": (Launch("chat"),)})
    front = place.member()
    assert front.ask("chat", "deep down")
    assert place.status()[0] == 0
