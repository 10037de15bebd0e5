"""The ten things about llama-swap that are most likely to bite whoever runs one: here nobody is bitten by any.

They were seen on llama-swap v250 (docs/reference/built-in-proxy.md has how the built-in proxy differs). Each test holds
for whichever proxy runs. register.py says which of the ten are held by tests elsewhere.
"""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from supervisor import budgets, identity
from supervisor.errors import ExitCode
from tests.engine.fronts import OrderFailedError
from tests.engine.kit import Launch
from tests.engine.seen import Deaths, kill
from tests.fakes.llama_server import story
from tests.support import FAKE_LLAMA_SERVER, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.engine.place import Place

pytestmark = pytest.mark.process

CRASHES = {"r1": signal.SIGKILL, "r2": signal.SIGQUIT, "r3": signal.SIGABRT, "r4": signal.SIGSEGV}


def words(who: identity.Identity) -> list[str]:
    """The command line of a process."""
    return Path(f"/proc/{who.pid}/cmdline").read_text().rstrip("\0").split("\0")


@pytest.mark.long
def test_1_no_crash_of_a_proxy_leaves_its_server_behind(place: Place) -> None:
    """llama-swap puts each server in a process group of its own and sets no death signal."""
    place.configure({role: (Launch(role),) for role in CRASHES})
    front = place.member()
    before = place.family()
    with Deaths(before.engine.values()) as deaths:
        for role, number in CRASHES.items():
            kill(before.proxies[role], number)
        deaths.wait(within=5.0)
    after = place.family()
    for role in CRASHES:
        assert front.ask(role, "again")
        assert after.proxies[role] != before.proxies[role]
        assert place.started(role) == [before.servers[role], after.servers[role]]


@contextmanager
def impostor(place: Place, port: int, model: str) -> Iterator[int]:
    """Another llama-server on a port, healthy and willing to answer anybody: its pid."""
    receipts = place.home / "impostor.receipts"
    argv = [sys.executable, "-I", "-S", str(FAKE_LLAMA_SERVER), "--port", str(port), "--model", model]
    with subprocess.Popen([*argv, f"--fake-receipts-file={receipts}"]) as process:
        try:
            wait_until(lambda: _healthy(port), what="the impostor answers 200")
            yield process.pid
            assert process.poll() is None, "it is nobody's to end"
            assert not receipts.exists(), "a prompt went to the impostor"
        finally:
            process.kill()


def _healthy(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/health", trust_env=False).status_code == 200
    except httpx.HTTPError:
        return False


@pytest.mark.long
def test_2_a_stranger_that_is_healthy_on_a_servers_port_is_not_taken_for_the_server(place: Place) -> None:
    """A proxy that polls /health is content with anybody's 200 while its own server is slow to bind."""
    place.configure({"chat": (Launch("chat", knobs={"bind_delay": 2}),)})
    front = place.front()
    front.open(wait=False)
    first = wait_until(place.spawns, what="the server was started")[0]
    port = int(first["argv"][first["argv"].index("--port") + 1])
    with impostor(place, port, str(place.kit.chat)) as stranger:
        seen: set[int | None] = set()

        def running() -> bool:
            found = place.group()
            seen.update(server["pid"] for server in found["servers"])
            return bool(found["state"] == "running")

        wait_until(running, within=30, what="the group runs, on another port")
        assert front.ask("chat", "hello") == "".join(story("hello", 0, 8))
        assert stranger not in seen
        now = place.group()["servers"][0]
        assert now["port"] != port
        assert now["pid"] in [start["pid"] for start in place.spawns()]
        assert len(place.spawns()) <= 1 + budgets.DOOMED_TRIES


def test_3_nobodys_output_is_a_pipe_that_somebody_must_read(standing: Place) -> None:
    """A full pipe on standard output hangs llama-swap, SIGTERM included; one without a reader kills it."""
    family = standing.family()
    for who in (family.warden, family.keeper, *family.proxies.values()):
        for descriptor in (1, 2):
            path = f"/proc/{who.pid}/fd/{descriptor}"
            assert stat.S_ISREG(os.stat(path).st_mode) or os.readlink(path) == "/dev/null"
    # A server's is a pipe, and its proxy reads it.
    for _ in range(20):
        assert standing.fronts[0].ask("chat", "hello")
    log = standing.slot.group_log("chat")
    wait_until(lambda: log.stat().st_size > 20 << 18, what="five mebibytes of log")


def test_4_no_server_is_started_before_its_proxy_listens(standing: Place) -> None:
    """llama-swap runs its preload hook before it binds; where the port is taken it exits and leaves those servers."""
    for name in ("chat", "embed"):
        configuration = generation_config(standing, name)
        assert "hooks" not in configuration
        ours = [member for group in configuration["groups"].values() for member in group["members"]]
        assert sorted(ours) == sorted(configuration["models"])


def test_5_a_stop_in_mid_stream_does_not_wait_for_the_stream(place: Place) -> None:
    """On a bare SIGTERM llama-swap drains for 30 s, then gives its servers a millisecond."""
    place.configure({"chat": (Launch("chat", knobs={"rate": 20, "term": "drain"}),)})
    front = place.member()
    stream = front.begin("stream", role="chat", prompt="hello", tokens=100_000)
    front.first(stream)
    with Deaths(place.family().everybody) as deaths:
        done = place.cli("stop", "--json")
        assert done.returncode == ExitCode.OK
        assert deaths.alive() == []
    facts = json.loads(done.stdout)
    assert facts["how"] == "keeper"
    assert facts["seconds"] < budgets.TEARDOWN
    cut = front.result(stream)
    assert cut["interrupted"]
    assert not cut["finished"]


def test_6_no_proxy_reloads_its_configuration_by_itself(standing: Place) -> None:
    """A reload stops every model, the unchanged ones too, and cuts their streams."""
    for who in standing.family().proxies.values():
        assert not [word for word in words(who) if "watch" in word]


@pytest.mark.long
def test_8_a_health_check_that_never_answers_ends_at_our_limit(place: Place) -> None:
    """llama-swap's healthCheckTimeout counts refusals and 503s; a /health that accepts and is silent is `starting`
    for ever."""
    place.configure({"chat": (Launch("chat", knobs={"health": "hang"}),)}, start_limit_s=1.0)
    front = place.front()
    front.open(wait=False)
    wait_until(lambda: "start_limit_s of group chat" in place.group()["reason"], within=30, what="the limit is named")
    done = place.cli("stop")
    assert done.returncode == ExitCode.OK, done.stderr
    place.assert_gone()


def test_9_an_unload_that_takes_its_time_holds_up_no_other_group(standing: Place) -> None:
    """llama-swap stops a model in the loop that also routes: others wait, ready or not. So each group has its own."""
    chat = standing.group()
    key = standing.slot.group_key("chat").read_text().strip()
    with ThreadPoolExecutor(1) as pool:
        unload = pool.submit(
            httpx.post,
            f"{chat['url']}/api/models/unload",
            headers={"Authorization": f"Bearer {key}"},
            timeout=30,
            trust_env=False,
        )
        wait_until(lambda: standing.group()["servers"][0]["state"] != "ready", what="the chat server is being stopped")
        standing.fronts[0].do("post", role="embed", path="/embeddings", body={"input": "hello"})
        assert not unload.done()
        assert unload.result(30).status_code == 200
    assert standing.fronts[0].ask("chat", "loaded again")
    standing.family()


@pytest.mark.long
def test_10_many_requests_to_a_server_that_cannot_start_are_few_starts(place: Place) -> None:
    """llama-swap starts a dead model anew for every request: twenty requests, twenty starts."""
    place.configure({"chat": (Launch("chat", knobs={"exit_early": 1}),)})
    front = place.front()
    front.open(wait=False)
    place.wait_state("failed")
    asked = [front.begin("endpoint", role="chat") for _ in range(20)]
    for number in asked:
        with pytest.raises(OrderFailedError) as refused:
            front.result(number)
        assert refused.value.facts["error"] == "FailedForGoodError"
    assert len(place.spawns()) == budgets.DOOMED_TRIES


def generation_config(place: Place, name: str) -> dict[str, Any]:
    """What a group's proxy was told."""
    generation = place.group(name)["generation"]
    found: dict[str, Any] = json.loads(place.slot.generation_config(name, generation).read_text())
    return found
