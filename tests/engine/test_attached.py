"""Groups that somebody else's server is: watched and routed to, and never started, signalled or restarted."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from supervisor import stopping
from tests.engine.seen import kill
from tests.engine.test_command import get
from tests.engine.test_containers import BAD, configure, containers, group, new_generation, who
from tests.support import ROOT, alive, free_port, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.engine.containers import Containers
    from tests.engine.place import Place

pytestmark = [pytest.mark.engine]
__all__ = ["containers"]  # a fixture


class Foreign:
    """Somebody else's server, which notes each signal it gets (chaos/dummy.py)."""

    def __init__(self, home: Path) -> None:
        self.port, self.events = free_port(), home / "foreign.events"
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> int:
        words = ["--port", str(self.port), "--events", str(self.events), "--ignore-term"]
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-E", str(ROOT / "chaos" / "dummy.py"), *words], env={}
        )
        wait_until(lambda: len(self.said("listen")) and self.said("listen")[-1] == self.process.pid, what="it listens")  # type: ignore[union-attr]
        return self.process.pid

    def said(self, what: str) -> list[int]:
        lines = self.events.read_text().splitlines() if self.events.exists() else []
        return [int(line.split()[1]) for line in lines if line.split()[3] == what]

    def end(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()


@pytest.fixture
def foreign(place: Place) -> Iterator[Foreign]:
    foreign = Foreign(place.home)
    try:
        yield foreign
    finally:
        foreign.end()


def attached(foreign: Foreign, **keys: Any) -> list[str]:
    """The lines of a group that is this server."""
    options = {"url": foreign.url, **keys}
    lines = ["[groups.theirs]", 'kind = "attached"', "[groups.theirs.options]"]
    lines += [f"{key} = {json.dumps(value)}" for key, value in options.items()]
    return [*lines, "[[groups.theirs.launches]]", 'role = "theirs"', 'model = "whatever-it-serves"']


def test_it_is_up_while_the_server_is_and_waits_for_it_without_failing(place: Place, foreign: Foreign) -> None:
    configure(place, *attached(foreign))
    place.run(wait=False)
    place.until(lambda: place.slot.group_log("theirs").exists(), within=60, what="a log")
    place.until(lambda: "waiting for http" in place.slot.group_log("theirs").read_text(), within=60, what="it waits")
    assert place.group("theirs")["state"] == "starting"
    pid = foreign.start()
    first = place.wait_state("running", "theirs")
    front = place.front()
    assert front.open() == "bind"
    assert front.do("endpoint", role="theirs")["url"] == foreign.url == first["url"]
    foreign.end()
    place.until(
        lambda: "Connection refused" in place.group("theirs")["reason"], within=60, what="it says why it is down"
    )
    assert place.group("theirs")["state"] == "rebuilding"
    again = foreign.start()
    second = new_generation(place, "theirs", first["generation"])
    assert get(second["url"]) == b"HTTP/1.1 200 OK"
    front.end()
    stopping.stop(place.slot, who="a test")
    assert alive(again)
    assert not alive(pid)
    assert foreign.said("term") == []


@pytest.mark.long
def test_a_unit_of_systemd_is_watched_and_never_told_anything(place: Place, foreign: Foreign) -> None:
    """Somebody answers at its address all the time: the group is up while the unit is, and ends with systemd's words."""
    home = place.home
    program = home / "systemctl"
    program.write_text(f'#!/bin/sh\necho "$@" >> {home}/asked\ncat {home}/unit\n')
    program.chmod(0o755)

    def says(active: str, result: str = "success") -> None:
        text = (
            f"LoadState=loaded\nActiveState={active}\nSubState={active}\nResult={result}\nMainPID=7\nInvocationID=a\n"
        )
        (home / "unit.new").write_text(text)
        (home / "unit.new").rename(home / "unit")

    says("inactive")
    foreign.start()
    configure(place, *attached(foreign, unit="vllm.service"))
    words = place.environment | {"PATH": f"{home}:{place.environment['PATH']}"}
    place.prefix = ["env", f"PATH={words['PATH']}"]
    place.run(wait=False)
    log = place.slot.group_log("theirs")
    place.until(lambda: log.exists() and "vllm.service is inactive" in log.read_text(), within=60, what="it waits")
    assert place.group("theirs")["state"] == "starting"
    says("active")
    first = place.wait_state("running", "theirs")
    says("failed", "oom-kill")
    place.until(
        lambda: "vllm.service is failed (failed, oom-kill)" in place.group("theirs")["reason"], within=60, what="why"
    )
    assert place.group("theirs")["state"] == "rebuilding"
    says("active")
    new_generation(place, "theirs", first["generation"])
    assert {line.split()[1] for line in (home / "asked").read_text().splitlines()} == {"show"}
    assert foreign.said("term") == []


def test_its_key_is_the_servers_own(place: Place, foreign: Foreign) -> None:
    (place.home / "key").write_text("sesame\n")
    foreign.start()
    configure(place, *attached(foreign, key_file="key"))
    place.run(wait=False)
    place.wait_state("running", "theirs")
    assert place.slot.group_key("theirs").read_text().strip() == "sesame"
    assert place.slot.group_key("theirs").stat().st_mode & 0o777 == 0o600


@pytest.mark.long
def test_three_kinds_side_by_side_and_each_part_is_killed(
    place: Place, foreign: Foreign, containers: Containers
) -> None:
    """A container with every bad habit, somebody else's server, and a llama-swap group: one slot. Whatever is killed, the
    others are not touched, the foreign server gets no signal, and at the end it is all that is left."""
    theirs = foreign.start()
    chat = ["[groups.chat]", "[[groups.chat.launches]]", 'role = "chat"', f"model = {json.dumps(str(place.kit.chat))}"]
    configure(place, *group("web", containers, *BAD, grace_s=0.5), *attached(foreign), *chat)
    text = place.config.read_text()
    place.config.write_text(
        text.replace("[gateway]", f"llama_server = {json.dumps(str(place.kit.server))}\n[gateway]", 1)
    )
    front = place.front()
    assert front.open() == "build"

    def up() -> dict[str, Any]:
        return {name: place.wait_state("running", name, within=120) for name in ("web", "theirs", "chat")}

    def generations(found: dict[str, Any]) -> dict[str, str]:
        return {name: facts["generation"] for name, facts in found.items()}

    was = up()
    for name in ("web", "theirs", "chat"):
        pid = place.group(name)["proxy"]["pid"]
        subprocess.run(["kill", "-9", str(pid)], check=True)
        new_generation(place, name, was[name]["generation"])
        now = up()
        assert {other for other in now if generations(now)[other] != generations(was)[other]} == {name}
        was = now
    subprocess.run(["kill", "-9", containers.did("run")[-1][2]], check=True)
    new_generation(place, "web", was["web"]["generation"])
    was = up()
    keeper = who(place, "keeper")
    kill(keeper)
    place.until(lambda: who(place, "keeper") != keeper, within=60, what="a new keeper")
    assert generations(up()) == generations(was)
    kill(who(place, "warden"))
    newcomer = place.front()
    newcomer.open()
    assert generations(up()).keys() == generations(was).keys()
    assert len(containers("ps", "-q").split()) == 1
    newcomer.end()
    front.end()
    place.wait_empty(within=60)
    wait_until(lambda: not containers.living(), within=30, what="no container is left")
    place.assert_nothing_left()
    assert alive(theirs)
    assert foreign.said("term") == []
    assert foreign.process is not None
    assert foreign.process.poll() is None
