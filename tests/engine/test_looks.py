"""Commands that only look: each answers soon, whatever the engine is doing, and changes nothing by it."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from tests.engine.kit import Launch
from tests.engine.seen import kill
from tests.support import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from tests.engine.place import Place

pytestmark = pytest.mark.process

WITHIN = 3.0
"""Three times the second that is promised: other tests run beside this one."""

LOOKS = (["status"], ["status", "--json"], ["ps"], ["events"], ["logs"], ["doctor"])


@contextmanager
def down(place: Place) -> Iterator[str]:
    place.member()
    assert place.cli("stop").returncode == 0
    yield "down"


@contextmanager
def loading(place: Place) -> Iterator[str]:
    place.configure({"chat": (Launch("chat", knobs={"load": 600}),)})
    place.front().open(wait=False)
    wait_until(place.spawns, what="the server is loading")
    yield "starting"


@contextmanager
def rebuilding(place: Place) -> Iterator[str]:
    place.configure({"chat": (Launch("chat", knobs={"bind_delay": 8}),)})
    place.front().open(wait=False)
    place.wait_state("running")
    kill(place.family().proxies["chat"])
    place.wait_state("rebuilding")
    yield "rebuilding"


@contextmanager
def wedged(place: Place) -> Iterator[str]:
    place.configure({"chat": (Launch("chat", knobs={"wedge_after": 0}),)}, wedge_limit_s=600)
    front = place.member()
    front.begin("ask", role="chat", prompt="never answered", tokens=1)
    wait_until(place.receipts, what="the request is there")
    yield "running"


@contextmanager
def keeper_stopped(place: Place) -> Iterator[str]:
    place.member()
    keeper = place.recorded().keeper
    kill(keeper, signal.SIGSTOP)
    try:
        yield "degraded"
    finally:
        kill(keeper, signal.SIGCONT)


@pytest.mark.long
@pytest.mark.parametrize("state", [down, loading, rebuilding, wedged, keeper_stopped], ids=lambda state: state.__name__)
def test_every_look_answers_soon_in_every_state(
    place: Place, state: Callable[[Place], AbstractContextManager[str]]
) -> None:
    with state(place) as expected:
        slow = {}
        for words in LOOKS:
            began = time.monotonic()
            done = place.cli(*words)
            took = time.monotonic() - began
            assert done.stdout.strip(), (words, done.stderr)
            if words == ["status", "--json"]:
                assert json.loads(done.stdout)["state"] == expected
            if took > WITHIN:
                slow[" ".join(words)] = took
        assert not slow
    place.cli("stop")


@pytest.mark.long
def test_events_and_logs_are_followed_while_an_engine_comes_and_goes(place: Place) -> None:
    outputs = {name: place.home / name for name in ("events", "logs")}
    followers = []
    try:
        place.member("first")
        assert place.cli("stop").returncode == 0
        for name, path in outputs.items():
            with path.open("wb") as output:
                command = place.command(name, "--follow")
                followers.append(
                    subprocess.Popen(command, stdout=output, stderr=output, cwd=place.home, env=place.environment)
                )
        wait_until(lambda: all(path.read_text() for path in outputs.values()), within=30, what="both follow")
        front = place.member("second")
        wanted = f"{front.name} (pid {front.pid}): build: no engine in the slot"
        wait_until(lambda: wanted in outputs["events"].read_text(), within=30, what="the build is told")
        wait_until(lambda: "chat: running" in outputs["events"].read_text().partition(wanted)[2], within=30)
        with place.slot.group_log("chat").open("a") as log:
            log.write("a line of the server\n")
        wait_until(lambda: "a line of the server\n" in outputs["logs"].read_text(), within=30, what="the line is told")
        for follower in followers:
            follower.send_signal(signal.SIGINT)
            assert follower.wait(30) == 130
    finally:
        for follower in followers:
            if follower.poll() is None:
                follower.kill()
                follower.wait()
    said = place.cli("events", "--json", "--lines", "1000").stdout.splitlines()
    assert {"ladder", "state", "stopped"} <= {json.loads(line)["what"] for line in said}
    assert len(place.cli("events", "--lines", "2").stdout.splitlines()) == 2
    assert place.cli("events", "--since", "2038-01-01").stdout == ""
