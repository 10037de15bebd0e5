"""The programs of docs/guides/front-ends.md on a whole engine: they serve, hand over, and leave nothing behind."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import httpx
import pytest

from supervisor import holders, locks, membership, scopes
from supervisor.client import open_engine
from supervisor.serving import serve_lock, watch_parent
from tests.engine.fronts import PATIENCE
from tests.engine.guide import write_programs, write_stand_in
from tests.fakes.llama_server import story
from tests.support import ROOT, alive, free_port, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.engine.place import Place

pytestmark = pytest.mark.process


@pytest.fixture
def programs(place: Place) -> Path:
    """The guide's programs, in the place's directory, where they find its configuration."""
    written = write_programs("front-ends.md", place.home)
    write_stand_in(place.home)
    assert [path.name for path in written] == ["serve.py", "mcp_server.py"]
    return place.home


class Serving:
    """serve.py under a data directory of the place."""

    def __init__(self, place: Place, *options: str) -> None:
        self.data = place.home / "data"
        self.port = free_port()
        self.log = place.home / f"serve-{self.port}.stderr"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(place.home / "serve.py"), str(self.data), str(self.port), *options],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=place.home,
                env=place.environment | {"PYTHONPATH": str(ROOT)},
            )

    def ask(self, prompt: str) -> str:
        """An answer, once it serves."""

        def answered() -> httpx.Response | None:
            assert self.process.poll() is None, self.log.read_text()
            try:
                return httpx.post(f"http://127.0.0.1:{self.port}/", content=prompt, timeout=PATIENCE, trust_env=False)
            except httpx.TransportError:
                return None

        answer = wait_until(answered, within=PATIENCE, what="serve.py serves")
        assert answer is not None
        return str(answer.json()["text"])


@pytest.fixture
def servers() -> Iterator[list[Serving]]:
    """What a test starts, ended at its end."""
    started: list[Serving] = []
    yield started
    for one in started:
        if one.process.poll() is None:
            one.process.kill()
            one.process.wait(PATIENCE)


@pytest.mark.long
@pytest.mark.usefixtures("programs")
def test_the_guides_server_serves_and_a_second_one_takes_over(place: Place, servers: list[Serving]) -> None:
    first = Serving(place)
    servers.append(first)
    assert first.ask("hello").startswith("".join(story("hello", 0, 4)))
    family = place.family()
    second = Serving(place, "--take-over")
    servers.append(second)
    assert first.process.wait(PATIENCE) == 0, first.log.read_text()
    assert second.ask("hello") == second.ask("hello")
    assert "answered 202" in second.log.read_text()
    found = holders.find(scopes.of_data(second.data))
    assert found is not None
    assert found.pid == second.process.pid
    # The engine of the first was gone before its lock was: the second one built, and never beside it.
    assert place.family().warden != family.warden
    second.process.send_signal(signal.SIGTERM)
    wait_until(lambda: locks.is_held(scopes.of_data(second.data).lock) is False, within=PATIENCE, what="lock free")
    assert locks.is_held(place.slot.warden_lock) is False
    assert second.process.wait(PATIENCE) == 0, second.log.read_text()
    place.assert_nothing_left()


@pytest.mark.long
@pytest.mark.usefixtures("programs")
def test_a_server_that_others_share_the_engine_with_does_not_wait_for_it(place: Place, servers: list[Serving]) -> None:
    other = place.member()
    serving = Serving(place)
    servers.append(serving)
    serving.ask("hello")
    family = place.family()
    serving.process.send_signal(signal.SIGTERM)
    assert serving.process.wait(PATIENCE) == 0, serving.log.read_text()
    assert "keeps its serving locks" not in serving.log.read_text()
    assert place.family() == family
    assert other.ask("chat", "x")


HOST = """
import signal, subprocess, sys
server = subprocess.Popen([sys.executable, sys.argv[1]])
print(server.pid, flush=True)
signal.pause()
"""


@pytest.mark.usefixtures("programs")
def test_an_mcp_server_goes_with_its_killed_host_and_the_engine_with_it__mcp_markdown_vault_45(place: Place) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOST, str(place.home / "mcp_server.py")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=place.home,
        env=place.environment | {"PYTHONPATH": str(ROOT)},
    ) as host:
        assert host.stdin is not None
        assert host.stdout is not None
        server = int(host.stdout.readline())
        request = {"jsonrpc": "2.0", "id": 5, "method": "ask", "params": {"prompt": "hello"}}
        host.stdin.write(json.dumps(request).encode() + b"\n")
        host.stdin.flush()
        answer = json.loads(host.stdout.readline())
        assert answer["id"] == 5
        assert answer["result"]["content"].startswith("".join(story("hello", 0, 4)))
        assert membership.count(place.slot) == 1
        host.kill()
        # We still hold its standard input open.
        wait_until(lambda: not alive(server), within=15, what="the MCP server is gone")
        assert membership.count(place.slot) == 0
        place.wait_empty()
        place.assert_nothing_left()


def test_an_engine_that_was_opened_outside_keeps_the_lock(place: Place, tmp_path: Path) -> None:
    """Whoever nests them the wrong way round would let a successor in beside his own engine."""
    said: list[str] = []
    lock = scopes.of_data(tmp_path / "data").lock
    with open_engine(place.config):
        with serve_lock(tmp_path / "data", program="wrong", say=said.append):
            pass
        assert locks.is_held(lock) is True
        assert "still uses an engine" in said[0]
    with serve_lock(tmp_path / "data", program="right", wait_s=0) as again:
        again.use_engine(open_engine(place.config))
    assert locks.is_held(lock) is False
    assert locks.is_held(place.slot.warden_lock) is False


def test_in_a_hosts_worker_thread_no_signal_handler_is_set__trio_2333(place: Place, tmp_path: Path) -> None:
    handlers = [signal.getsignal(number) for number in signal.valid_signals()]
    failures: list[BaseException] = []

    def serve() -> None:
        try:
            with watch_parent(lambda: None), serve_lock(tmp_path / "data", program="host") as lock:
                engine = lock.use_engine(open_engine(place.config))
                assert engine.http is not None
                assert [signal.getsignal(number) for number in signal.valid_signals()] == handlers
        except BaseException as error:  # noqa: BLE001 - shown by the test
            failures.append(error)

    thread = threading.Thread(target=serve)
    thread.start()
    thread.join(PATIENCE)
    assert failures == []
    assert locks.is_held(scopes.of_data(tmp_path / "data").lock) is False
