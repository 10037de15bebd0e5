"""`queenright ps`: who uses the engine, as the kernel and the members themselves say, whatever the keeper does."""

from __future__ import annotations

import json
import signal
import time
from typing import TYPE_CHECKING, Any

import pytest

from supervisor.errors import ExitCode
from tests.engine.seen import kill
from tests.engine.terminal import Running
from tests.support import wait_until

if TYPE_CHECKING:
    from tests.engine.place import Place

pytestmark = pytest.mark.process


def listed(place: Place) -> dict[str, dict[str, Any]]:
    found = json.loads(place.cli("ps", "--json").stdout)
    return {member["name"]: member for member in found["members"]}


def test_ps_shows_age_last_use_and_terminal_also_of_who_does_nothing__opencode_14504(place: Place) -> None:
    """Agents that outlive their terminal are members for ever: an operator must see which they are, and what they do."""
    assert place.cli("ps").returncode == ExitCode.NO_ENGINE
    agent = place.member("agent")
    place.running.append(on_terminal := Running(place, place.command("exec", "--", "/bin/cat")))
    user = place.front("user")
    user.open()
    wait_until(lambda: "exec cat" in listed(place), what="the program under exec is a member")
    before = time.time()
    user.ask("chat", "hello")
    found = listed(place)
    assert {found[name]["pid"] for name in found} == {agent.pid, user.pid, on_terminal.pid}
    assert found[agent.name]["last_use"] is None
    assert found[user.name]["last_use"] == pytest.approx(before, abs=60)
    assert found["exec cat"]["last_use"] is None, "it has URL and key, and asks by itself"
    assert found["exec cat"]["tty"].startswith("pts/")
    assert all(abs(member["since"] - time.time()) < 600 for member in found.values())

    keeper = place.family().keeper
    kill(keeper, signal.SIGSTOP)
    try:
        assert listed(place) == found, "the keeper is not asked"
        plain = place.cli("ps")
    finally:
        kill(keeper, signal.SIGCONT)
    assert plain.returncode == ExitCode.OK
    rows = {line.split()[-1]: line for line in plain.stdout.splitlines()}
    assert rows["PROGRAM"].split() == ["PID", "AGE", "LAST", "USE", "TTY", "PROGRAM"]
    assert "unknown" in rows[agent.name]
    assert " ago" in rows[user.name]
    assert found["exec cat"]["tty"] in rows["cat"]

    stopped = place.cli("stop", "--json")
    assert len(json.loads(stopped.stdout)["members"]) == 3, stopped.stdout
    on_terminal.type(b"\x04")
    on_terminal.wait()
