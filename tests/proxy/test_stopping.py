"""Unloading models and ending the proxy."""

from __future__ import annotations

import fcntl
import os
import socket
import subprocess
import time
from typing import TYPE_CHECKING

import pytest

from tests.proxy.rig import Events, in_thread
from tests.support import alive, free_port, wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.proxy.rig import Rig

pytestmark = pytest.mark.process


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/unload", b"OK"),
        ("POST", "/api/models/unload", b'{"msg":"ok"}'),
        ("POST", "/api/models/unload/a", b"OK"),
        ("POST", "/api/models/unload/nickname", b"OK"),
    ],
)
def test_every_way_to_unload_returns_when_the_server_is_gone(rig: Rig, method: str, path: str, body: bytes) -> None:
    a = rig.model("a", {"aliases": ["nickname"]}, term=0.3)
    proxy = rig.start(a)
    assert proxy.ask("a").status == 200
    answer = proxy.request(method, path)
    assert (answer.status, answer.body.strip()) == (200, body)
    assert not alive(a.spawns[0]["pid"])
    assert proxy.states() == {}
    assert proxy.ask("a").status == 200


def test_unloading_what_is_not_configured_is_a_404(rig: Rig) -> None:
    proxy = rig.start(rig.model("a"))
    answer = proxy.request("POST", "/api/models/unload/b")
    assert (answer.status, answer.message) == (404, "model not found")


def test_unload_does_not_wait_for_requests(rig: Rig) -> None:
    a = rig.model("a", rate=10)
    proxy = rig.start(a)
    assert proxy.ask("a", max_tokens=1).status == 200
    with (
        in_thread(lambda: proxy.ask("a", max_tokens=1000)) as whole,
        in_thread(lambda: proxy.ask("a", stream=True, max_tokens=1000)) as streamed,
    ):
        wait_until(lambda: a.props()["active"] == 2)
        wait_until(lambda: a.props()["tokens"] > 4)
        assert proxy.get("/unload").status == 200
        cut = streamed()
        assert (whole().status, whole().body) == (502, b"")
        assert cut.status == 200
        assert b"[DONE]" not in cut.body
        assert cut.complete is proxy.traits.cut_stream_looks_complete


def test_unload_during_a_load_refuses_those_who_wait(rig: Rig) -> None:
    a = rig.model("a", load=30)
    proxy = rig.start(a)
    with in_thread(lambda: proxy.ask("a")) as waiting:
        proxy.wait_state("a", "starting")
        wait_until(lambda: a.spawns)
        assert proxy.request("POST", "/api/models/unload").status == 200
        answer = waiting()
    assert (answer.status, answer.message) == (500, "unspecific error: group: model unloaded")
    wait_until(lambda: not alive(a.spawns[0]["pid"]))


def test_a_server_that_ignores_sigterm_is_killed_after_unload_timeout(rig: Rig) -> None:
    a = rig.model("a", {"unloadTimeout": 1}, term="ignore")
    proxy = rig.start(a)
    assert proxy.ask("a").status == 200
    began = time.monotonic()
    assert proxy.get("/unload").status == 200
    assert 0.9 < time.monotonic() - began < 4.5
    assert not alive(a.spawns[0]["pid"])


def test_a_request_that_meets_the_stop_is_served_by_a_new_server(rig: Rig) -> None:
    a = rig.model("a", term=0.5)
    proxy = rig.start(a)
    assert proxy.ask("a").status == 200
    with in_thread(lambda: proxy.get("/unload")) as unload:
        proxy.wait_state("a", "stopping")
        assert proxy.ask("a").status == 200
        assert unload().status == 200
    assert len(a.spawns) == 2


def test_an_unload_also_calls_off_a_load_that_waits_for_the_last_server(rig: Rig) -> None:
    a = rig.model("a", term=0.7)
    proxy = rig.start(a)
    assert proxy.ask("a").status == 200
    with in_thread(lambda: proxy.get("/unload")) as first:
        proxy.wait_state("a", "stopping")
        with in_thread(lambda: proxy.ask("a")) as waiting:
            wait_until(lambda: proxy.get("/logs").status == 200)
            time.sleep(0.1)  # nothing outside tells that the request has arrived
            assert proxy.get("/unload").status == 200
            assert waiting().status == 500
        assert first().status == 200
    assert proxy.states() == {}
    assert len(a.spawns) == 1


@pytest.mark.long
def test_a_slow_stop_does_not_hold_up_other_models(rig: Rig) -> None:
    if rig.kind.traits.unload_blocks_other_models:
        pytest.skip("documented difference: unload_blocks_other_models")
    a, b = rig.model("a", term=3), rig.model("b")
    proxy = rig.start(a, b, groups={"g": {"swap": False, "members": ["a", "b"]}})
    assert proxy.ask("a").status == proxy.ask("b").status == 200
    with in_thread(lambda: proxy.request("POST", "/api/models/unload/a")) as unload:
        proxy.wait_state("a", "stopping")
        assert proxy.ask("b").status == 200
        assert proxy.states()["a"] == "stopping", "the answer waited for the stop"
        assert unload().status == 200


def test_a_caller_of_unload_that_leaves_does_not_stop_the_stopping(rig: Rig) -> None:
    a = rig.model("a", {"unloadTimeout": 1}, term="ignore")
    proxy = rig.start(a)
    assert proxy.ask("a").status == 200
    with pytest.raises(subprocess.TimeoutExpired):
        subprocess.run(["curl", "-s", f"http://127.0.0.1:{proxy.port}/unload"], timeout=0.3, check=False)
    wait_until(lambda: not alive(a.spawns[0]["pid"]), within=4.5)


def test_sigterm_when_idle_ends_at_once_and_leaves_nothing(rig: Rig) -> None:
    a = rig.model("a")
    proxy = rig.start(a)
    assert proxy.ask("a").status == 200
    assert proxy.stop() < 4.5
    assert proxy.process.returncode == 0
    assert not alive(a.spawns[0]["pid"])


def test_sigterm_before_anything_was_asked_ends_cleanly(rig: Rig) -> None:
    proxy = rig.start(rig.model("a"))
    assert proxy.stop() < 4.5
    assert proxy.process.returncode == 0


@pytest.mark.long
def test_sigterm_lets_a_short_stream_finish(rig: Rig) -> None:
    a = rig.model("a", rate=10)
    proxy = rig.start(a)
    events = Events(proxy)
    with proxy.stream("a", max_tokens=30) as response:
        response.readline()
        proxy.process.terminate()
        assert events.ended.wait(5), "streams without an end of their own end first"
        assert b"[DONE]" in response.read()
    events.close()
    proxy.process.wait(5)
    assert proxy.process.returncode == 0


@pytest.mark.long
def test_the_drain_is_bounded(rig: Rig) -> None:
    a = rig.model("a", rate=10)
    proxy = rig.start(a)
    with proxy.stream("a", max_tokens=10_000) as response:
        response.readline()
        seconds = proxy.stop()
    assert proxy.traits.drain_after_sigterm - 0.5 < seconds < proxy.traits.drain_after_sigterm + 3


def test_a_second_sigterm_ends_the_drain(rig: Rig) -> None:
    if not rig.kind.traits.second_sigterm_ends_the_drain:
        pytest.skip("documented difference: second_sigterm_ends_the_drain")
    a = rig.model("a", rate=10)
    proxy = rig.start(a)
    with proxy.stream("a", max_tokens=10_000) as response:
        response.readline()
        proxy.process.terminate()
        wait_until(lambda: "stopping" in proxy.log.read_text())
        assert proxy.stop() < proxy.traits.drain_after_sigterm - 0.5


def test_sigterm_during_a_load_refuses_those_who_wait(rig: Rig) -> None:
    if rig.kind.traits.waits_for_load_after_sigterm:
        pytest.skip("documented difference: waits_for_load_after_sigterm")
    a = rig.model("a", load=60)
    proxy = rig.start(a)
    with in_thread(lambda: proxy.ask("a")) as waiting:
        proxy.wait_state("a", "starting")
        assert proxy.stop() < 20  # the load takes 60 s
        answer = waiting()
    assert (answer.status, answer.message) == (500, "unspecific error: group is shutting down")


def test_open_event_streams_do_not_delay_the_end(rig: Rig) -> None:
    proxy = rig.start(rig.model("a"))
    events = Events(proxy)
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=10) as logs:
        logs.sendall(b"GET /logs/stream HTTP/1.1\r\nHost: x\r\n\r\n")
        assert logs.recv(4096).startswith(b"HTTP/1.1 200")
        assert proxy.stop() < 4.5
        assert events.ended.wait(10)
        while logs.recv(4096):
            pass
    events.close()


def test_after_unload_sigterm_ends_at_once_though_a_server_waits_for_its_clients(rig: Rig) -> None:
    if not rig.kind.traits.unload_cuts_open_requests:
        pytest.skip("documented difference: unload_cuts_open_requests")
    a = rig.model("a", {"unloadTimeout": 5}, rate=10, term="drain")
    proxy = rig.start(a)
    with proxy.stream("a", max_tokens=10_000) as response:
        response.readline()
        began = time.monotonic()
        assert proxy.get("/unload").status == 200
        assert proxy.stop() < 4.5
        assert time.monotonic() - began < 4.8  # unloadTimeout is 5


def test_the_generation_lock_lives_in_every_server_and_nothing_else_does(rig: Rig, tmp_path: Path) -> None:
    """`flock` belongs to the open file description: it is free only when the last process that has it is gone."""
    a = rig.model("a")
    path = tmp_path / "generation.lock"
    lock, other = os.open(path, os.O_RDWR | os.O_CREAT), os.open(tmp_path / "other", os.O_RDWR | os.O_CREAT)
    fcntl.flock(lock, fcntl.LOCK_EX)
    try:
        proxy = rig.start(a, env={"QUEENRIGHT_GENERATION_FD": str(lock)}, pass_fds=(lock, other))
    finally:
        os.close(lock)
        os.close(other)
    assert proxy.ask("a").status == 200
    server = a.spawns[0]["pid"]
    open_files = {os.readlink(link) for link in (f"/proc/{server}/fd/{n}" for n in os.listdir(f"/proc/{server}/fd"))}
    assert str(path) in open_files
    if rig.kind.name == "built-in":
        assert str(tmp_path / "other") not in open_files
        assert not [name for name in open_files if "eventpoll" in name]
    assert not _free(path)
    proxy.process.kill()
    proxy.process.wait(5)
    assert alive(server)  # an orphan: this is what the launcher's death signal and the lock are for
    assert not _free(path)
    rig.marker.kill()
    assert _free(path)


def test_a_closed_generation_descriptor_is_ignored(rig: Rig) -> None:
    proxy = rig.start(rig.model("a"), env={"QUEENRIGHT_GENERATION_FD": "77"})
    assert proxy.ask("a").status == 200


def test_a_thousand_lines_of_log_block_nobody(rig: Rig) -> None:
    a = rig.model("a", log_bytes=4000, log_spam=2_000_000)
    proxy = rig.start(a, logToStdout="both", logLevel="debug")
    for number in range(60):
        assert proxy.ask("a", id=str(number)).status == 200
    assert len(a.receipts) == 60
    assert len(proxy.get("/logs").body) <= 100 * 1024 + 4096


def test_a_standard_output_nobody_reads_blocks_nobody(rig: Rig) -> None:
    if rig.kind.traits.stdout_pipe_blocks:
        pytest.skip("documented difference: stdout_pipe_blocks")
    a = rig.model("a", log_bytes=4000)
    config, port = rig.config(a, logToStdout="both"), free_port()
    process = subprocess.Popen(
        [*rig.kind.command, "-config", config, "-listen", f"127.0.0.1:{port}"],
        stdout=subprocess.PIPE,
        env=rig.marker.env,
        start_new_session=True,
    )
    assert process.stdout is not None
    try:
        proxy = rig.adopt(process, port)
        for number in range(40):  # 160 KB into a pipe of 64 KiB
            assert proxy.ask("a", id=str(number)).status == 200
        assert proxy.stop() < 2
        assert len(a.receipts) == 40
    finally:
        process.stdout.close()


def _free(path: Path) -> bool:
    fd = os.open(path, os.O_RDWR)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(fd)
    return True
