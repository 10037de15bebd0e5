"""Field cases about who owns a process and how it ends. register.py has those that tests elsewhere hold."""

from __future__ import annotations

import signal
import sys
from typing import TYPE_CHECKING

import pytest

from supervisor import identity
from supervisor.errors import ExitCode
from supervisor.identity import Liveness
from tests.engine.kit import Launch
from tests.engine.seen import Deaths, kill
from tests.fakes.llama_server import story
from tests.support import FAKE_LLAMA_SERVER, wait_until

if TYPE_CHECKING:
    from tests.engine.place import Place

pytestmark = pytest.mark.process


@pytest.mark.long
@pytest.mark.parametrize("how", ["stop", "last one out"])
def test_a_server_that_hears_nothing_while_it_loads_is_ended_within_the_grace__llama_cpp_25528(
    place: Place, how: str
) -> None:
    place.configure({"chat": (Launch("chat", knobs={"load": 600, "term": "ignore"}),)}, grace_s=1.0)
    front = place.front()
    front.open(wait=False)
    wait_until(place.spawns, what="the server is loading")
    (server,) = place.started()
    with Deaths([server]) as deaths:
        if how == "stop":
            done = place.cli("stop", "--json")
            assert done.returncode == ExitCode.OK, done.stderr
            assert deaths.alive() == []
        else:
            front.kill()
            deaths.wait(within=10.0)
            place.wait_empty()
            assert not list(place.slot.members.iterdir())
    assert not list(place.slot.groups.glob("*.lock"))
    place.configure({"chat": (Launch("chat"),)})
    assert place.member("next").ask("chat", "clean")


PIPELINES = {
    "behind a pipe of its log": "{fake} 2>&1 | cat",
    "among helpers that stay": "sleep 1000 & setsid sleep 1000 & {fake}",
}


@pytest.mark.parametrize(
    "what", [what if what.startswith("behind") else pytest.param(what, marks=pytest.mark.long) for what in PIPELINES]
)
def test_what_a_shell_started_around_a_server_ends_with_it__trio_3237(place: Place, what: str) -> None:
    script = place.home / "wrapper"
    fake = f'{sys.executable} -I -S {FAKE_LLAMA_SERVER} "$@"'
    # --help is read by the front end itself: a helper that it left would be the test's own, not the engine's.
    script.write_text(f'#!/bin/sh\n[ "$1" = --help ] && exec {fake}\n{PIPELINES[what].format(fake=fake)}\n')
    script.chmod(0o755)
    place.configure({"chat": (Launch("chat"),)}, engine={"llama_server": str(script)})
    front = place.member()
    family = place.family()
    with Deaths(identity.descendants(family.warden.pid)) as everything:
        kill(family.proxies["chat"])
        wait_until(lambda: len(place.spawns()) == 2, what="another server")
        assert set(everything.alive()) <= {family.keeper}, "the old pipeline must be gone before the new one starts"
    place.family()
    front.kill()
    place.wait_empty()
    place.assert_gone()


@pytest.mark.long
def test_a_server_killed_under_load_is_replaced_once_by_whoever_replaces_it__xinference_2235(place: Place) -> None:
    """The proxy starts it for the next request, the keeper has the proxy load it: one server in the end."""
    place.configure({"chat": (Launch("chat", knobs={"load": 0.3}),)})
    front = place.member()
    for round_ in range(1, 4):
        before = place.family()
        asked = [front.begin("ask", role="chat", prompt="hello", tokens=4) for _ in range(16)]
        kill(before.servers["chat"])
        asked += [front.begin("ask", role="chat", prompt="hello", tokens=4) for _ in range(16)]
        assert {front.result(number)["text"] for number in asked} == {"".join(story("hello", 0, 4))}
        after = place.family()
        assert after.proxies == before.proxies
        assert len(place.spawns()) == 1 + round_
        alive = [one for one in place.started() if identity.liveness(one) is not Liveness.DEAD]
        assert alive == [after.servers["chat"]]


@pytest.mark.long
def test_a_server_that_its_proxy_does_not_reap_is_replaced_with_it__lemonade_2024(place: Place) -> None:
    """A zombie still has a pid, takes signals, and is in every list."""
    front = place.member()
    before = place.family()
    kill(before.proxies["chat"], signal.SIGSTOP)
    kill(before.servers["chat"])
    wait_until(lambda: identity.state_of(before.servers["chat"].pid) == "Z", what="a zombie")
    assert identity.liveness(before.servers["chat"]) is Liveness.DEAD
    assert place.group()["servers"][0]["pid"] is None
    assert front.ask("chat", "hello") == "".join(story("hello", 0, 8))
    after = place.family()
    assert after.proxies["chat"] != before.proxies["chat"]
    assert after.proxies["embed"] == before.proxies["embed"]
