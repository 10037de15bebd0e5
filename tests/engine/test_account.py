"""What an operator finds afterwards: causes, start-up logs, the line of a stop."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from supervisor import budgets
from supervisor.errors import ExitCode
from tests.engine.kit import Launch
from tests.support import wait_until

if TYPE_CHECKING:
    from tests.engine.place import Place

pytestmark = pytest.mark.process


def events(place: Place, what: str) -> list[dict[str, Any]]:
    lines = place.slot.events.read_text().splitlines()
    return [event for event in map(json.loads, lines) if event["what"] == what]


@pytest.mark.long
def test_hermes_agent_113325_a_flag_that_the_build_refuses_is_the_cause_and_its_start_is_kept(place: Place) -> None:
    flag = "--no-such-flag"
    place.configure({"chat": (Launch("chat", knobs={"reject_flag": flag}, arguments=(flag,)),)})
    place.front().open(wait=False)
    found = place.wait_state("failed")
    assert found["cause"] == {"word": "bad flag", "detail": flag}
    wait_until(lambda: len(events(place, "ended")) == budgets.DOOMED_TRIES)  # they are written a moment later
    assert [(one["cause"], one["restart"]) for one in events(place, "ended")] == [
        ("bad flag", True), ("bad flag", True), ("bad flag", False),
    ]  # fmt: skip
    code, status = place.status()
    assert (code, status["groups"][0]["cause"]) == (ExitCode.FAILED_FOR_GOOD, found["cause"])
    shown = place.cli("logs", "chat", "--start").stdout
    assert f"invalid argument: {flag}" in shown
    assert shown.count(".start.log") == budgets.DOOMED_TRIES, "and the older ones are named"


@pytest.mark.long
def test_a_server_that_exits_0_while_it_starts_is_a_failure_of_its_own_name(place: Place) -> None:
    """As one does that puts itself into the background."""
    place.configure({"chat": (Launch("chat", knobs={"daemonize": 1, "health": "refuse"}),)})
    place.front().open(wait=False)
    found = place.wait_state("failed")
    if place.kit.proxy == "built-in":  # llama-swap does not say how a server ended
        assert found["cause"]["word"] == "exit during start"


@pytest.mark.long
@pytest.mark.parametrize("obeys", [True, False])
def test_a_stop_says_who_asked_what_was_killed_and_what_it_took(place: Place, obeys: bool) -> None:
    place.configure({"chat": (Launch("chat", knobs={"fork": "sleep"}),)}, grace_s=3.4 if obeys else 1.0)
    place.member()
    if not obeys:
        os.kill(place.family().proxies["chat"].pid, signal.SIGSTOP)
    place.cli("stop")
    place.wait_empty()
    (stopped,) = events(place, "stopped")
    assert "queenright stop" in stopped["why"]
    assert stopped["groups"] == ["chat"]
    assert stopped["killed"] == ([] if obeys else ["chat"])
    if obeys:  # what was killed with its leader may be dead a moment before the sweep looks, or a moment after
        assert stopped["swept"] == 1, "what the server had forked into a session of its own"
    assert stopped["clean"]


def test_a_server_that_crashes_again_and_again_is_counted_while_it_is_waited_for(place: Place) -> None:
    place.configure({"chat": (Launch("chat", knobs={"exit_after": 0.4, "exit_code": 1}),)})
    place.front().open(wait=False)
    words = re.compile(r"the chat server died; it is loaded again, the \d+(st|nd|rd|th) time in a row, in [\d.]+ s")
    wait_until(lambda: words.match(place.group()["reason"]), within=30, what="it is counted")
    assert place.group()["reloads"] >= 1
    ends = events(place, "ended")
    assert {end["generation"] for end in ends} == {place.group()["generation"]}
    times = [json.loads(line)["at"] for line in place.slot.events.read_text().splitlines()]
    assert times == sorted(times)


def test_a_proxy_that_is_killed_while_it_loads_is_named_by_the_signal(place: Place) -> None:
    place.configure({"chat": (Launch("chat", knobs={"load": 60}),)})
    place.front().open(wait=False)
    wait_until(place.spawns, within=30, what="it loads")
    proxy = place.group()["proxy"]["pid"]
    os.kill(proxy, signal.SIGKILL)
    (ended,) = wait_until(lambda: events(place, "ended"), within=30, what="its end is noted")
    assert (ended["cause"], ended["detail"]) == ("signal", "SIGKILL, sent by whom is unknown")


@pytest.mark.long
def test_leaving_an_engine_that_is_kept_warm_is_said_once_each_time(place: Place) -> None:
    place.configure(engine={"keep_warm": True})
    for times in (1, 2):
        first, last = place.member(), place.member()
        family = place.family()
        first.end()
        wait_until(lambda: len(place.snapshot()["members"]) == 1, what="one left")
        assert len(events(place, "left warm")) == times - 1
        last.end()
        wait_until(lambda times=times: len(events(place, "left warm")) == times, what="it is said")  # type: ignore[misc]
        said = events(place, "left warm")[-1]
        assert (said["why"], said["roots"]) == ("the last member left", [str(place.config.parent)])
        assert sorted(said["groups"]) == ["chat", "embed"]
    os.kill(family.keeper.pid, signal.SIGKILL)  # its successor saw nobody leave
    wait_until(lambda: place.family().keeper != family.keeper, what="another keeper")
    began = place.snapshot()["keeper"]["since"]
    wait_until(lambda: place.snapshot() and time.time() - began > 4 * budgets.MEMBER_POLL)
    assert len(events(place, "left warm")) == 2
    assert place.cli("stop").returncode == ExitCode.OK


@pytest.mark.long
def test_a_group_that_fails_for_ever_costs_next_to_nothing(place: Place) -> None:
    """A crash-looper that served: it is tried again for minutes. The keeper's and warden's own time stays below 5 % of a
    core, and restarts come ever later."""
    place.configure({"chat": (Launch("chat", knobs={"exit_after": 0.3, "exit_code": 1}),)})
    place.front().open(wait=False)
    wait_until(lambda: len(place.spawns()) >= 2, within=60, what="it loops")
    snapshot = place.snapshot()
    pids = [snapshot["keeper"]["pid"], snapshot["warden"]["pid"]]

    def spent() -> float:
        fields = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in pids]
        return sum(int(field[11]) + int(field[12]) for field in fields) / os.sysconf("SC_CLK_TCK")

    before, began, starts = spent(), os.times().elapsed, len(place.spawns())
    wait_until(lambda: os.times().elapsed - began > 60, within=90)
    took = os.times().elapsed - began
    assert (spent() - before) / took < 0.05
    assert len(place.spawns()) - starts < 12
    found = place.group()
    assert found["cause"]["word"] in ("exit status", "signal", "unknown")
