"""Agents on one engine of fakes: green where all is well, and red for what is planted into a run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from chaos.agents import claims, command, opencode, tasks
from chaos.agents.run import Agents
from chaos.agents.seen import MARK
from chaos.soak.verdicts import Verdict
from supervisor import resolving
from supervisor.slot import Slot
from tests.engine.kit import Launch
from tests.engine.place import Place
from tests.support import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.engine.kit import Kit

pytestmark = pytest.mark.process

SLOW = {"rate": 60}
"""Tokens a second: so that agents are at work for long enough to be looked at."""


def configure(place: Place, **knobs: object) -> None:
    place.configure(
        {"chat": (Launch("chat", knobs={**SLOW, **knobs}, sequences=4),), "embed": (Launch("embed", place.kit.embed),)}
    )


@pytest.fixture
def working(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """A place in which the run starts its agents; everything of it carries the test's mark."""
    place = Place(kit)
    configure(place)
    for name, value in place.environment.items():
        monkeypatch.setenv(name, value)
    try:
        yield place
    finally:
        place.close()


def agents_of(place: Place, **options: Any) -> Agents:
    groups = resolving.resolve(resolving.load(place.config)).groups
    configs = options.pop("configs", lambda crew, number: place.config)
    return Agents(place.slot, place.home / "agents", groups, configs, **options)


def broken(agents: Agents) -> dict[str, str]:
    """What did not hold, and what was seen."""
    return {one.invariant: one.seen for one in claims.judge(agents.run()) if one.verdict is not Verdict.HOLDS}


@pytest.mark.long
def test_four_agents_share_one_engine_and_leave_nothing(working: Place) -> None:
    run = agents_of(working).run()
    judged = claims.judge(run)
    assert {one.invariant: one.seen for one in judged if one.verdict is not Verdict.HOLDS} == {}
    assert len(run.four.working) >= claims.SAMPLES_LEAST
    homes = {path.parent for path in (working.home / "agents" / "four").glob("*/home/index.json")}
    assert len(homes) == 4  # each kept its index in a HOME of its own
    assert len(working.spawns("chat")) == 2  # by the fake's own count: one for the baseline, one for all four
    data = json.loads(json.dumps(command.as_data(run, judged, agents="scripted")))
    assert data["verdict"] == "holds"
    assert [one["how"] for one in data["together"]["agents"]].count("build") == 1
    assert data["together"]["requests"]["chat"]["n"] == 4 * 7


@pytest.mark.long
def test_an_agent_with_an_engine_of_its_own_turns_the_run_red(working: Place) -> None:
    other = Slot(working.home / "other")
    agents = agents_of(working, count=2)
    agents.environment = lambda crew, number: (
        {"QUEENRIGHT_SLOT": str(other.path)} if (crew, number) == ("four", 1) else {}
    )
    found = broken(agents)
    assert {"one built, the others bound", "one engine served"} <= set(found), found
    assert "build, build" in found["one built, the others bound"]


@pytest.mark.long
def test_an_engine_that_shrinks_turns_the_run_red(working: Place) -> None:
    """That one which grows does, too, is tested on what was seen (tests/chaos/test_agents_claims.py)."""
    plain = working.config.read_text()
    configure(working, ballast=100)
    large = working.home / "large.toml"
    large.write_text(working.config.read_text())
    working.config.write_text(plain)
    agents = agents_of(working, count=2, configs=lambda crew, _: large if crew == "baseline" else working.config)
    assert set(broken(agents)) == {"memory is flat"}


@pytest.mark.long
def test_a_wrong_answer_and_a_process_that_stays_turn_the_run_red(working: Place) -> None:
    """Two plants in one run: each has to be found by its own claim."""
    started: list[subprocess.Popen[bytes]] = []

    def forge(crew: str, projects: list[tasks.Project]) -> None:
        if crew == "four":
            (projects[1].root / tasks.ANSWER).write_text(projects[0].answer)

    def stay(crew: str, mark: str) -> None:
        if crew == "four":
            words = [sys.executable, "-S", "-c", "import sys; sys.stdin.read()"]
            started.append(subprocess.Popen(words, stdin=subprocess.PIPE, env={**os.environ, MARK: mark}))

    agents = agents_of(working, count=2)
    agents.before_verifying, agents.after_leaving = forge, stay
    try:
        found = broken(agents)
    finally:
        for one in started:
            one.communicate()
    assert set(found) == {"tasks are verified", "nothing remained"}, found
    assert "another project" in found["tasks are verified"]
    assert f"pid {started[0].pid}" in found["nothing remained"]


@pytest.mark.long
@pytest.mark.parametrize("in_turn", [False, True])
def test_agents_that_only_take_turns_are_not_at_once(working: Place, in_turn: bool) -> None:
    """A foreign program was taken to ask for as long as it ran. Two in its place: one after the other they turn the run red."""
    program = working.home / "agent"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S {ROOT}/tests/fakes/coding_agent.py "$@"\n')
    program.chmod(0o755)
    working.configure(
        {
            "chat": (Launch("chat", knobs=SLOW, sequences=4),),
            "embed": (Launch("embed", working.kit.embed),),
        },
        gateway={"listen": "127.0.0.1:0"},
    )
    agents = agents_of(working, count=2, opencode=str(program))
    if in_turn:
        agents.environment = lambda crew, number: {"FAKE_TURNS": str(working.home / "turns")}
    found = broken(agents)
    assert set(found) == ({"all at once"} if in_turn else set()), found
    assert not in_turn or "at most 1 of 2 agents had a chat under way" in found["all at once"]


OPENCODE = opencode.find()


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.skipif(
    not OPENCODE, reason="no opencode: npm install --global opencode-ai, or QUEENRIGHT_OPENCODE=PROGRAM"
)
def test_real_coding_agents_do_their_tasks_through_the_gateway(working: Place) -> None:
    """Four processes of opencode, on a fake whose model can do the task."""
    server = working.home / "coder"
    server.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S {ROOT}/tests/fakes/coding_model.py "$@"\n')
    server.chmod(0o755)
    working.configure(
        {"chat": (Launch("chat", sequences=4),), "embed": (Launch("embed", working.kit.embed),)},
        gateway={"listen": "127.0.0.1:0"},
        engine={"llama_server": str(server)},
    )
    assert broken(agents_of(working, opencode=OPENCODE)) == {}


@pytest.mark.long
def test_a_run_that_is_broken_off_leaves_no_process_of_an_agent(working: Place) -> None:
    """Neither the agents nor what they have started, as the opencode of one that is killed."""
    started: list[subprocess.Popen[bytes]] = []
    agents = agents_of(working, count=2)

    def told(words: str) -> None:
        if words.startswith("came by"):
            env = {**os.environ, MARK: agents._mark}
            program = [sys.executable, "-S", "-c", "import time; time.sleep(600)"]
            started.append(subprocess.Popen(program, env=env))
            raise KeyboardInterrupt

    agents._tell = told
    with pytest.raises(KeyboardInterrupt):
        agents.run()
    assert [one.wait(10) for one in started] == [-signal.SIGKILL]
    working.assert_nothing_left()


@pytest.mark.parametrize(
    "words",
    [["--opencode", "/no/opencode"], ["--count", "1"], ["--config", "/no/config.toml"]],
    ids=lambda words: words[0],
)
def test_what_cannot_be_run_is_refused(place: Place, words: list[str]) -> None:
    done = place.cli("agents", *words)
    assert done.returncode not in (0, 1), done
    assert not Path(place.home / "agents").exists()
    place.assert_never_started()
