"""/api/events and the logs: how a supervisor learns what happens."""

from __future__ import annotations

import os
import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from tests.proxy.rig import Events, in_thread
from tests.support import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.proxy.rig import Proxy, Rig

pytestmark = pytest.mark.process


@contextmanager
def watching(proxy: Proxy) -> Iterator[Events]:
    """A reader for the block."""
    events = Events(proxy)
    try:
        yield events
    finally:
        events.close()


def test_a_life_in_states(rig: Rig) -> None:
    a = rig.model("a", term=0.3)
    proxy = rig.start(a)
    with watching(proxy) as events:
        assert proxy.ask("a").status == 200
        assert proxy.get("/unload").status == 200
        wait_until(lambda: events.states("a")[-1] == "stopped" and len(events.states("a")) > 1)
        assert events.states("a") == ["stopped", "starting", "ready", "stopping", "stopped"]
        row = events.of("modelStatus")[-1][0]
    assert {"id", "name", "description", "state", "unlisted"} <= row.keys()


def test_a_death_goes_straight_to_stopped(rig: Rig) -> None:
    a = rig.model("a")
    proxy = rig.start(a)
    assert proxy.ask("a").status == 200
    with watching(proxy) as events:
        os.kill(a.spawns[0]["pid"], signal.SIGKILL)
        wait_until(lambda: events.states("a") == ["ready", "stopped"])


def test_a_failed_load_in_states(rig: Rig) -> None:
    a = rig.model("a", exit_early=1, bind_delay=1)
    proxy = rig.start(a)
    with watching(proxy) as events:
        assert proxy.ask("a").status == 500
        wait_until(lambda: events.states("a") == ["stopped", "starting", "stopped"])


def test_an_unloaded_load_in_states(rig: Rig) -> None:
    a = rig.model("a", load=30)
    proxy = rig.start(a)
    with watching(proxy) as events, in_thread(lambda: proxy.ask("a")) as waiting:
        proxy.wait_state("a", "starting")
        wait_until(lambda: a.spawns)
        proxy.get("/unload")
        assert waiting().status == 500
        middle = ["stopping"] if proxy.traits.unload_of_a_load_says_stopping else []
        wait_until(lambda: events.states("a") == ["stopped", "starting", *middle, "stopped"])


def test_requests_in_flight_are_told(rig: Rig) -> None:
    a = rig.model("a", rate=10)
    proxy = rig.start(a)
    with watching(proxy) as events:
        wait_until(lambda: events.of("inflight"))
        assert events.of("inflight")[0] == {"operation": "snapshot", "requests": []} or events.of("inflight")[0] == {
            "operation": "snapshot"
        }
        with in_thread(lambda: proxy.ask("a", max_tokens=5)) as answer:
            wait_until(lambda: any(e["operation"] == "upsert" for e in events.of("inflight")))
            entry = next(e["request"] for e in events.of("inflight") if e["operation"] == "upsert")
            assert (entry["model"], entry["method"], entry["req_path"]) == ("a", "POST", "/v1/completions")
            assert answer().status == 200
        wait_until(lambda: events.of("inflight")[-1] == {"operation": "remove", "id": entry["id"]})


def test_what_a_server_writes_can_be_read(rig: Rig) -> None:
    a = rig.model("a", log_bytes=60)
    proxy = rig.start(a, logToStdout="both")
    assert proxy.ask("a").status == 200
    wait_until(lambda: b"srv  log: POST /v1/completions" in proxy.get("/logs").body)
    assert proxy.get("/logs").headers["Content-Type"].startswith("text/plain")
    wait_until(lambda: "srv  log: POST /v1/completions" in proxy.log.read_text())


def test_a_watcher_that_does_not_read_blocks_nobody(rig: Rig) -> None:
    a = rig.model("a", log_bytes=2000)
    proxy = rig.start(a, logToStdout="none")
    with in_thread(lambda: None), watching(proxy):
        pass
    deaf = Events(proxy)
    try:
        for number in range(50):
            assert proxy.ask("a", id=str(number)).status == 200
    finally:
        deaf.close()
    assert len(a.receipts) == 50


def test_bytes_of_an_answer_are_told_while_it_goes_out(rig: Rig) -> None:
    a = rig.model("a", rate=10)
    proxy = rig.start(a)
    assert proxy.ask("a", max_tokens=1).status == 200
    with watching(proxy) as events, proxy.stream("a", max_tokens=15) as response:
        response.read(1)

        def sizes() -> list[int]:
            upserts = [e["request"] for e in events.of("inflight") if e["operation"] == "upsert"]
            return sorted({request["resp_bytes"] for request in upserts})

        wait_until(lambda: len(sizes()) >= 3 and events.of("inflight")[-1]["operation"] == "remove")
        # At most four times a second, so far fewer than there were tokens.
        assert len(sizes()) <= 10
