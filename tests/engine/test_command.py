"""Engines of the kind `command` on the real core: it must not be able to tell them from llama-swap's."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from supervisor import identity, stopping
from tests.engine.seen import Deaths, kill
from tests.support import ROOT, alive, wait_until

if TYPE_CHECKING:
    from tests.engine.place import Place

pytestmark = [pytest.mark.engine]

DUMMY = ROOT / "chaos" / "dummy.py"
CONTAINED = ROOT / "tests" / "fakes" / "contained.py"


def configure(
    place: Place, *groups: str, knobs: tuple[str, ...] = (), argv: list[str] | None = None, **keys: Any
) -> None:
    """Groups of one command each; by default the bench's dummy. `keys` go into every group."""
    lines = ["[engine]", f"slot = {json.dumps(str(place.slot.path))}"]
    for name in groups:
        events = ["--events", str(place.home / "events")]
        words = argv or [sys.executable, "-I", "-S", "-E", str(DUMMY), "--port", "{port}", *events, *knobs]
        lines += [f"[groups.{name}]", 'kind = "command"']
        lines += [f"{key} = {json.dumps(value)}" for key, value in keys.items()]
        lines += [f"[groups.{name}.options]", f"argv = {json.dumps(words)}", 'health = "/health"']
        lines += [f"[[groups.{name}.launches]]", f'role = "{name}"', 'model = "dummy"']
    place.config.write_text("\n".join(lines) + "\n")


def events(place: Place, what: str) -> list[int]:
    """Pids that noted it, in order."""
    path = place.home / "events"
    told = path.read_text().splitlines(keepends=True) if path.exists() else []
    lines = [line.split() for line in told if line.endswith("\n")]  # of the last one only half may be there yet
    return [int(pid) for _, pid, _, said in lines if said == what]


def get(url: str) -> bytes:
    """The first line of what it answers."""
    host, _, port = url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), 10) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        return connection.recv(4096).splitlines()[0]


def test_it_starts_serves_and_is_told_to_a_front_end_like_any_other(place: Place) -> None:
    configure(place, "web")
    front = place.front()
    assert front.open() == "build"
    endpoint = front.do("endpoint", role="web")
    assert get(endpoint["url"]) == b"HTTP/1.1 200 OK"
    (server,) = place.group("web")["servers"]
    assert (server["role"], server["model"], server["state"]) == ("web", "dummy", "ready")
    proxy = place.group("web")["proxy"]
    assert (proxy["pid"], proxy["port"]) == (server["pid"], server["port"])
    assert place.front().open() == "bind"


def test_a_killed_one_is_rebuilt_on_its_port_and_its_neighbour_is_not_touched(place: Place) -> None:
    configure(place, "web", "other")
    place.run()
    before, family = place.group("web"), place.family()
    kill(family.servers["web"])
    place.until(
        lambda: place.group("web")["generation"] not in (None, before["generation"]), within=60, what="a new generation"
    )
    after = place.wait_state("running", "web")
    assert after["url"] == before["url"]
    assert after["restarts"] == 1
    assert get(after["url"]) == b"HTTP/1.1 200 OK"
    assert place.family().servers["other"] == family.servers["other"]
    assert len(events(place, "listen")) == 3
    assert not events(place, "taken")


def test_what_it_forked_is_gone_before_the_next_one_starts(place: Place) -> None:
    configure(place, "web", knobs=("--grandchild",))
    place.run()
    (orphan,) = events(place, "grandchild")
    kill(place.family().servers["web"])
    wait_until(lambda: len(events(place, "grandchild")) == 2, within=60, what="the next one")
    assert not alive(orphan)
    place.wait_state("running", "web")


def test_an_exit_status_is_told_as_it_was(place: Place) -> None:
    configure(place, "web", argv=["/bin/sh", "-c", "echo no honey left; exit 3 # {port}"])
    place.run(wait=False)
    found = place.wait_state("failed", "web")
    assert "exit status 3" in found["reason"]
    assert "no honey left" in found["reason"]


def test_one_that_ignores_sigterm_is_killed_after_its_grace(place: Place) -> None:
    configure(place, "a", "b", knobs=("--ignore-term",), grace_s=0.5)
    place.run()
    with Deaths(place.family().everybody) as deaths:
        stopped = stopping.stop(place.slot, who="a test")
        assert deaths.alive() == []
    assert stopped.how == "keeper"
    assert stopped.seconds >= 0.5
    assert len(events(place, "term")) == 2  # each was told once


@pytest.mark.long
def test_one_that_is_stopped_is_noticed_and_rebuilt(place: Place) -> None:
    configure(place, "web")
    place.run()
    before = place.group("web")
    kill(place.family().servers["web"], signal.SIGSTOP)
    place.until(
        lambda: place.group("web")["generation"] not in (None, before["generation"]), within=60, what="a new generation"
    )
    assert get(place.wait_state("running", "web")["url"]) == b"HTTP/1.1 200 OK"


def test_a_new_keeper_takes_it_up_as_it_is(place: Place) -> None:
    configure(place, "web")
    place.run()
    before, family = place.group("web"), place.family()
    kill(family.keeper)
    place.until(lambda: place.family().keeper != family.keeper, within=60, what="a new keeper")
    after = place.wait_state("running", "web")
    assert (after["generation"], after["proxy"]["pid"]) == (before["generation"], before["proxy"]["pid"])
    assert place.wait_state("running", "web")["servers"][0]["state"] == "ready"
    assert len(events(place, "start")) == 1
    kill(place.family().servers["web"])
    wait_until(lambda: len(events(place, "listen")) == 2, within=60, what="a new one")


@pytest.mark.long
def test_a_first_request_that_is_silent_is_a_failure_only_after_the_start_period(place: Place) -> None:
    """It sleeps over its first request and answers no page meanwhile, as one does that compiles its kernels. Nothing but the
    start period tells it from one that hangs."""
    words = [sys.executable, "-I", "-S", "-E", str(CONTAINED), "--port", "{port}", "--silent-for", "30"]
    configure(place, "hasty", argv=words)
    hasty = place.config.read_text()
    configure(place, "patient", argv=words, start_period_s=300)
    place.config.write_text(hasty + place.config.read_text().partition("\n[groups")[2].join(["[groups", ""]))
    place.run(wait=False)
    first = {name: place.wait_state("running", name) for name in ("patient", "hasty")}
    answers: list[bytes] = []

    def ask(url: str) -> None:
        host, _, port = url.removeprefix("http://").partition(":")
        with suppress(OSError), socket.create_connection((host, int(port)), 120) as connection:
            connection.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n")
            if data := connection.recv(4096):  # nothing comes from one that was killed
                answers.append(data.splitlines()[0])

    threads = [threading.Thread(target=ask, args=(facts["url"],)) for facts in first.values()]
    for thread in threads:
        thread.start()
    place.until(
        lambda: place.group("hasty")["generation"] not in (None, first["hasty"]["generation"]),
        within=60,
        what="a rebuild",
    )
    for thread in threads:
        thread.join(120)
    assert answers == [b"HTTP/1.1 200 OK"]
    now = place.group("patient")
    assert (now["generation"], now["restarts"], now["state"]) == (first["patient"]["generation"], 0, "running")


def test_a_foreign_listener_is_not_taken_for_it(place: Place) -> None:
    """It never opens its port; somebody else has it, and answers 200."""
    configure(place, "web", argv=["/bin/sh", "-c", "sleep 600 # {port}"], start_limit_s=60.0)
    place.run(wait=False)
    place.wait_state("starting", "web")
    port = place.until(lambda: (place.group("web")["proxy"] or {}).get("port"), within=60, what="a port")
    first = place.group("web")["generation"]
    with socket.create_server(("127.0.0.1", port)):
        place.until(lambda: place.group("web")["generation"] != first, within=60, what="it is given up")
        assert place.group("web")["state"] != "running"
        place.until(lambda: "another program" in place.slot.events.read_text(), within=10, what="it is said why")


def test_the_key_is_in_a_file_of_its_user_alone_and_goes_with_its_generation(place: Place) -> None:
    script = place.home / "serve"
    script.write_text(f'#!/bin/sh\ncp "$2" {place.home}/copy\nexec {sys.executable} -I -S -E {DUMMY} --port "$1"\n')
    script.chmod(0o755)
    configure(place, "web", argv=[str(script), "{port}", "{key_file}"])
    place.run()
    (keys,) = place.slot.groups.glob("web.*.keys")
    assert keys.stat().st_mode & 0o777 == 0o600
    assert (place.home / "copy").read_text().strip() == place.slot.group_key("web").read_text().strip()
    stopping.stop(place.slot, who="a test")
    assert not list(place.slot.groups.glob("*.keys"))


# --- many, and often --------------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.timeout(240)
def test_a_hundred_groups_start_and_stop(place: Place) -> None:
    names = [f"g{number}" for number in range(100)]
    configure(place, *names, grace_s=0.5, knobs=("--ignore-term",))
    place.run()
    assert len(set(events(place, "listen"))) == 100
    assert not events(place, "taken")
    with Deaths(place.family().everybody) as deaths:
        stopping.stop(place.slot, who="a test")
        assert deaths.alive() == []
    assert sorted(events(place, "term")) == sorted(events(place, "listen"))


def keeper_has(pid: int) -> dict[str, int]:
    """What a process has that could pile up."""
    return {
        "descriptors": len(os.listdir(f"/proc/{pid}/fd")),
        "threads": len(os.listdir(f"/proc/{pid}/task")),
        "children": len(identity.children(pid)),
    }


ROUNDS = 3
"""Deaths of each of the hundred groups below. The restart policy answers the first at once, the third after a second."""


@pytest.mark.long
@pytest.mark.timeout(400)
def test_three_hundred_lives_leave_nothing_in_keeper_and_warden(place: Place) -> None:
    names = [f"g{number}" for number in range(100)]
    configure(place, *names)
    place.run()
    family = place.family()
    who = (family.keeper.pid, family.warden.pid)
    kill(next(iter(family.servers.values())))  # the first death opens the kernel's log, for good
    wait_until(lambda: len(events(place, "listen")) == 101, within=90, what="it is back")
    place.family()
    before = {pid: keeper_has(pid) for pid in who}
    for number in range(1, ROUNDS + 1):
        for server in place.family().servers.values():
            kill(server)
        wait_until(
            lambda number=number: len(events(place, "listen")) == 100 * (number + 1) + 1,  # type: ignore[misc]
            within=90,
            what="a hundred new lives",
        )
        place.family(within=90)
    assert not events(place, "taken")
    # Its threads are trio's, which keeps an idle one for ten seconds.
    least = {pid: dict(keeper_has(pid)) for pid in who}

    def as_before() -> bool:
        """Each by itself: a probe has a socket, and one of a hundred groups is always being probed."""
        for pid in who:
            least[pid] = {what: min(count, keeper_has(pid)[what]) for what, count in least[pid].items()}
        return all(least[pid][what] <= before[pid][what] for pid in who for what in least[pid])

    try:
        wait_until(as_before, within=45, what="as before")
    except AssertionError as error:
        raise AssertionError(f"{error}; before: {before}, at least: {least}") from None
    now = place.family()
    assert (now.keeper, now.warden) == (family.keeper, family.warden)
