"""Starting, joining, idling out, and dying: what a model's server goes through."""

from __future__ import annotations

import os
import shlex
import signal
import time
from typing import TYPE_CHECKING

import pytest

from tests.proxy.rig import all_at_once
from tests.support import alive, wait_until

if TYPE_CHECKING:
    from tests.proxy.rig import Rig

pytestmark = pytest.mark.process


def test_a_request_starts_the_server_and_nothing_else_does(rig: Rig) -> None:
    a = rig.model("a")
    proxy = rig.start(a)
    assert proxy.states() == {}
    assert not a.spawns
    assert proxy.ask("a").status == 200
    assert proxy.states() == {"a": "ready"}
    assert proxy.ask("a").status == 200
    assert len(a.spawns) == 1


def test_requests_during_a_load_join_it(rig: Rig) -> None:
    a = rig.model("a", load=0.5)
    proxy = rig.start(a)
    answers = all_at_once(8, lambda i: proxy.ask("a", id=f"r{i}"))
    assert [answer.status for answer in answers] == [200] * 8
    assert len(a.spawns) == 1
    assert sorted(a.receipts) == [f"r{i}" for i in range(8)]


def test_a_late_binder_is_waited_for(rig: Rig) -> None:
    a = rig.model("a", bind_delay=0.7)
    proxy = rig.start(a)
    assert proxy.ask("a").status == 200
    assert len(a.spawns) == 1


@pytest.mark.long
def test_the_idle_time_counts_from_the_last_byte(rig: Rig) -> None:
    a = rig.model("a", {"ttl": 1}, rate=5)
    proxy = rig.start(a)
    with proxy.stream("a", max_tokens=11) as response:  # 2.2 s, more than ttl and its tick together
        assert b"[DONE]" in response.read()
    ended = time.monotonic()
    proxy.wait_state("a", None)
    assert time.monotonic() - ended > 0.5  # the last byte was read a little after it was sent
    assert len(a.spawns) == 1


@pytest.mark.long
def test_looking_is_not_use(rig: Rig) -> None:
    a = rig.model("a", {"ttl": 1})
    proxy = rig.start(a)
    assert proxy.ask("a").status == 200

    def look() -> bool:
        for path in ("/health", "/wol-health", "/v1/models", "/api/version", "/logs"):
            assert proxy.get(path).status == 200
        return "a" not in proxy.states()

    wait_until(look, what="unloaded in spite of being looked at")
    assert len(a.spawns) == 1


def test_the_global_ttl_is_for_models_without_their_own(rig: Rig) -> None:
    a, b = rig.model("a"), rig.model("b", {"ttl": 0})
    proxy = rig.start(a, b, globalTTL=1, groups={"g": {"swap": False, "members": ["a", "b"]}})
    assert proxy.ask("a").status == proxy.ask("b").status == 200
    proxy.wait_state("a", None)
    assert proxy.states() == {"b": "ready"}


def test_an_idle_death_is_noticed_and_the_next_request_starts_again(rig: Rig) -> None:
    a = rig.model("a")
    proxy = rig.start(a)
    assert proxy.ask("a").status == 200
    os.kill(a.spawns[0]["pid"], signal.SIGKILL)
    proxy.wait_state("a", None)
    assert proxy.ask("a").status == 200
    assert len(a.spawns) == 2


def test_a_death_before_the_headers_is_an_empty_502(rig: Rig) -> None:
    a = rig.model("a", die_at_request=1)
    proxy = rig.start(a)
    answer = proxy.ask("a")
    assert (answer.status, answer.body) == (502, b"")
    proxy.wait_state("a", None)


def test_a_death_in_mid_stream_delivers_what_there_was_and_no_done(rig: Rig) -> None:
    a = rig.model("a", die_at_token=3)
    proxy = rig.start(a)
    answer = proxy.ask("a", stream=True, max_tokens=9)
    assert answer.status == 200
    assert answer.body.count(b"data:") == 3
    assert b"[DONE]" not in answer.body
    assert answer.complete is proxy.traits.cut_stream_looks_complete


def test_a_body_that_ends_with_the_connection_passes(rig: Rig) -> None:
    a = rig.model("a", close_delimited=1)
    proxy = rig.start(a)
    answer = proxy.ask("a", stream=True, max_tokens=3)
    assert answer.status == 200
    assert answer.complete
    assert b"[DONE]" in answer.body


def test_a_server_that_ends_before_it_is_ready_is_a_500(rig: Rig) -> None:
    a = rig.model("a", exit_early=1, exit_code=3)
    proxy = rig.start(a)
    answer = proxy.ask("a")
    assert answer.status == 500
    assert answer.message == "unspecific error: upstream command exited prematurely"
    assert proxy.states() == {}
    assert proxy.ask("a").status == 500
    assert len(a.spawns) == 2


def test_a_command_that_cannot_run_is_a_500_that_names_it(rig: Rig) -> None:
    a = rig.model("a", {"cmd": "/no/such/llama-server --port 1"})
    proxy = rig.start(a)
    answer = proxy.ask("a")
    assert answer.status == 500
    assert answer.message.startswith("unspecific error: failed to start command '/no/such/llama-server --port 1'")


@pytest.mark.long
@pytest.mark.parametrize("health", ["503", "refuse", "hang"])
def test_a_load_is_bounded(rig: Rig, health: str) -> None:
    if health == "hang" and not rig.kind.traits.hanging_health_is_bounded:
        pytest.skip("documented difference: hanging_health_is_bounded")
    a = rig.model("a", health=health)
    proxy = rig.start(a)
    began = time.monotonic()
    answer = proxy.ask("a")
    assert answer.status == 500
    assert answer.message == "unspecific error: health check timed out after 15s"
    assert 14.5 < time.monotonic() - began < 45
    assert proxy.states() == {}


def test_no_check_means_ready_at_once(rig: Rig) -> None:
    a = rig.model("a", {"checkEndpoint": "none"}, bind_delay=30)
    proxy = rig.start(a)
    answer = proxy.ask("a")
    assert (answer.status, answer.body) == (502, b"")
    assert proxy.states() == {"a": "ready"}


def test_the_configured_environment_wins_over_ours(rig: Rig) -> None:
    a = rig.model("a", {"env": ["FAKE_NONCE=from-config"]})
    proxy = rig.start(a, env={"FAKE_NONCE": "from-parent"})
    answer = proxy.ask("a")
    assert answer.headers["X-Fake-Nonce"] == "from-config"


def test_a_server_leads_its_own_process_group_in_our_session(rig: Rig) -> None:
    a = rig.model("a")
    proxy = rig.start(a)
    assert proxy.ask("a").status == 200
    pid = a.spawns[0]["pid"]
    assert os.getpgid(pid) == pid
    assert os.getsid(pid) == os.getsid(proxy.process.pid)


@pytest.mark.long
def test_a_client_that_leaves_during_the_load_does_not_end_it(rig: Rig) -> None:
    a = rig.model("a", {"ttl": 60}, load=1)
    proxy = rig.start(a)
    with pytest.raises(TimeoutError), proxy.stream("a", timeout=0.4) as response:
        response.read()
    proxy.wait_state("a", "ready")
    if proxy.traits.unused_load_lives_for_ttl:
        time.sleep(1.5)  # llama-swap would have unloaded it by now
        assert proxy.states() == {"a": "ready"}
    assert a.receipts == []


def test_what_a_dead_leader_leaves_in_its_group(rig: Rig) -> None:
    if not rig.kind.traits.leavings_of_a_dead_leader_killed:
        pytest.skip("documented difference: leavings_of_a_dead_leader_killed")
    a = rig.model("a")
    a.config["cmd"] = shlex.join(["sh", "-c", f"{a.config['cmd']} & sleep 1"])
    proxy = rig.start(a)
    assert proxy.ask("a").status == 200
    pid = a.spawns[0]["pid"]
    wait_until(lambda: not alive(pid), what="the background server is gone with its leader")
    proxy.wait_state("a", None)


def test_a_wrapped_server_is_stopped_with_its_wrapper(rig: Rig) -> None:
    a = rig.model("a")
    a.config["cmd"] = shlex.join(["sh", "-c", f"{a.config['cmd']} & wait"])
    proxy = rig.start(a)
    assert proxy.ask("a").status == 200
    assert proxy.get("/unload").status == 200
    wait_until(lambda: not alive(a.spawns[0]["pid"]))


def test_a_grandchild_that_holds_the_output_does_not_delay_anything(rig: Rig) -> None:
    if not rig.kind.traits.leavings_of_a_dead_leader_killed:
        pytest.skip("documented difference: llama-swap waits 10 s for the pipe of a setsid grandchild")
    a = rig.model("a", fork="sleep")
    proxy = rig.start(a)
    assert proxy.ask("a").status == 200
    began = time.monotonic()
    assert proxy.get("/unload").status == 200
    assert time.monotonic() - began < 6  # and not the 10 s
    assert len(rig.marker.pids()) == 2  # the proxy and the grandchild, which has left every group of ours
    rig.marker.kill()


def test_a_leaving_client_frees_the_server(rig: Rig) -> None:
    a = rig.model("a", rate=20)
    proxy = rig.start(a)
    with proxy.stream("a", max_tokens=1000) as response:
        assert response.readline().startswith(b"data:")
    wait_until(lambda: a.props()["cancels"] == 1, what="the server saw its client leave")
    with pytest.raises(TimeoutError), proxy.stream("a", timeout=0.3, stream=False, max_tokens=1000) as response:
        response.read()
    wait_until(lambda: a.props()["cancels"] == 2, what="also without a stream, where nothing is written")
    assert proxy.ask("a", max_tokens=1).status == 200
    assert a.props()["active"] == 0
