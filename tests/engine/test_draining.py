"""`apply --drain` and `stop --drain`: planned restarts and stops that wait for a moment without requests in flight."""

from __future__ import annotations

import json
import subprocess
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from supervisor.errors import ExitCode
from tests.engine.fronts import PATIENCE
from tests.engine.kit import Launch
from tests.engine.seen import kill
from tests.fakes.llama_server import story

if TYPE_CHECKING:
    from tests.engine.place import Place

pytestmark = pytest.mark.process

RATE = 20
PROMPT = "tell me of bees"


def configure(place: Place, context: int = 4096) -> None:
    place.configure({"chat": (Launch("chat", knobs={"rate": RATE}, context=context),)})


def stopped(place: Place) -> str:
    """Why it was, as the one line of the stop says."""
    events = [json.loads(line) for line in place.slot.events.read_text().splitlines()]
    return str(events[-1]["why"])


def begin(place: Place, *words: str) -> subprocess.Popen[str]:
    """A command that goes on."""
    pipe = subprocess.PIPE
    return subprocess.Popen(
        place.command(*words), stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True, cwd=place.home,
        env=place.environment,
    )  # fmt: skip


@pytest.mark.long
def test_a_restart_that_drains_lets_a_stream_come_to_its_end(place: Place) -> None:
    configure(place)
    front = place.member()
    before = place.family()
    stream = front.begin("stream", role="chat", prompt=PROMPT, tokens=8 * RATE)
    front.first(stream)
    configure(place, context=2048)
    with ThreadPoolExecutor(1) as pool:
        applied = pool.submit(place.cli, "apply", "--drain", "60")
        place.until(lambda: place.group()["draining"], within=20, what="it drains")
        # It serves on: also those who come now.
        newcomer = place.front("newcomer")
        newcomer.open()
        assert newcomer.ask("chat", PROMPT, tokens=4) == "".join(story(PROMPT, 0, 4))
        assert place.family().servers == before.servers
        end = front.result(stream)
        done = applied.result(PATIENCE)
    assert (end["finished"], end["text"]) == (True, "".join(story(PROMPT, 0, 8 * RATE)))
    assert done.returncode == ExitCode.OK, done.stderr
    assert "waits for its requests in flight, 60 s at most" in done.stderr
    assert "nothing was in flight after" in done.stderr
    assert place.family().servers["chat"] != before.servers["chat"]


@pytest.mark.long
def test_a_stop_that_drains_lets_a_stream_come_to_its_end(place: Place) -> None:
    configure(place)
    front = place.member()
    stream = front.begin("stream", role="chat", prompt=PROMPT, tokens=2 * RATE)
    front.first(stream)
    done = place.cli("stop", "--drain", "60")
    assert done.returncode == ExitCode.OK, done.stderr
    assert front.result(stream)["text"] == "".join(story(PROMPT, 0, 2 * RATE))
    assert "waits for requests in flight, 60 s at most" in done.stderr
    assert "nothing was in flight after" in stopped(place)
    place.assert_gone()


@pytest.mark.long
def test_a_second_stop_while_it_drains_stops_now_and_one_that_is_called_off_does_not(place: Place) -> None:
    configure(place)
    front = place.member()
    stream = front.begin("stream", role="chat", prompt=PROMPT, tokens=100_000)
    front.first(stream)
    with begin(place, "stop", "--drain", "600") as called_off:
        place.until(lambda: place.snapshot()["draining"], within=20, what="it drains")
        called_off.kill()
    place.until(lambda: not place.snapshot()["draining"], within=20, what="called off")
    assert place.snapshot()["state"] == "running"
    with begin(place, "stop", "--drain", "600") as first:
        place.until(lambda: place.snapshot()["draining"], within=20, what="it drains")
        kill(place.family().keeper)  # the next one drains on
        place.until(lambda: place.snapshot()["draining"], within=20, what="it drains")
        second = place.cli("stop", "--drain", "600")
        assert second.returncode == ExitCode.OK, second.stderr
        assert first.wait(PATIENCE) == ExitCode.OK
    assert front.result(stream)["interrupted"]
    place.assert_gone()


@pytest.mark.parametrize("seconds", ["-1", "3601", "soon", "nan"])
def test_a_drain_is_a_number_of_seconds(place: Place, seconds: str) -> None:
    for command in ("stop", "apply"):
        done = place.cli(command, f"--drain={seconds}")
        assert done.returncode == ExitCode.USAGE
        assert "no number of seconds from 0 to 3600" in done.stderr
