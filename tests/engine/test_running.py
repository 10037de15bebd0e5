"""`queenright run`: the engine in the foreground, on a real terminal."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest

from supervisor import budgets, identity, standby
from supervisor.errors import ExitCode
from tests.engine.fronts import PATIENCE
from tests.engine.kit import Launch
from tests.engine.seen import Deaths, kill, stays
from tests.fakes.llama_server import story
from tests.support import alive, wait_until

if TYPE_CHECKING:
    from tests.engine.place import Place

pytestmark = pytest.mark.process

CTRL_C = b"\x03"


def test_run_says_what_it_keeps_and_ctrl_c_stops_it(place: Place) -> None:
    run = place.run()
    run.wait_said(f"keeping chat (chat), embed (embed) in {place.slot.path}; Ctrl-C stops it")
    run.wait_said("chat: running")
    run.wait_said("embed: running")
    family = place.family()
    assert family.warden.pid == run.pid
    assert place.snapshot()["lifetime"] == "run"
    with Deaths(family.everybody) as deaths:
        run.type(CTRL_C)
        assert run.wait() == ExitCode.OK
        deaths.wait(within=3.0)
    assert "stopped (SIGINT): chat, embed in " in run.said()
    assert "everything is gone" in run.said()


@pytest.mark.long
def test_a_ctrl_c_that_comes_before_the_warden_can_hear_it_stops_it_in_order(place: Place) -> None:
    for _ in range(3):
        run = place.run(wait=False)
        run.wait_said("Ctrl-C stops it")
        run.type(CTRL_C)
        assert run.wait() == ExitCode.OK
        assert "Traceback" not in run.said()
    place.wait_empty()


def test_a_second_ctrl_c_stops_it_at_once(place: Place) -> None:
    grace = 3.4  # the longest there is
    place.configure({"chat": (Launch("chat", knobs={"term": "ignore"}),)}, grace_s=grace)
    run = place.run()
    family = place.family()
    with Deaths(family.everybody) as deaths:
        began = time.monotonic()
        run.type(CTRL_C)
        run.wait_said("chat: stopping")
        run.type(CTRL_C)
        wait_until(lambda: not alive(family.servers["chat"].pid))
        assert time.monotonic() - began < grace, "it waited for the grace all the same"
        assert run.wait() == ExitCode.OK
        deaths.wait(within=3.0)


def test_the_keeper_that_waited_for_its_slot_is_as_one_that_the_warden_forks(place: Place) -> None:
    place.run()
    family = place.family()
    first, since = _circumstances(family.keeper.pid), [group["since"] for group in place.snapshot()["groups"]]
    assert standby.WORD in Path(f"/proc/{family.keeper.pid}/cmdline").read_text().split("\0")
    kill(family.keeper)
    wait_until(lambda: (found := place.snapshot()["keeper"]) is not None and found["pid"] != family.keeper.pid)
    after = place.family()
    assert after.engine == family.engine
    assert _circumstances(after.keeper.pid) == first
    assert [group["since"] for group in place.snapshot()["groups"]] == since, "they run for as long as before"
    assert standby.WORD not in Path(f"/proc/{after.keeper.pid}/cmdline").read_text().split("\0")


def _circumstances(pid: int) -> dict[str, object]:
    """What a process got from whoever started it."""
    here = Path(f"/proc/{pid}")
    status = dict(line.split(":\t", 1) for line in (here / "status").read_text().splitlines() if ":\t" in line)
    environment = (here / "environ").read_text().split("\0")
    kept = ("Umask", "SigBlk", "SigCgt", "Groups", "NoNewPrivs")
    return {
        "directory": (here / "cwd").readlink(),
        "files": [(here / "fd" / str(number)).readlink() for number in range(3)],
        "leads its session": os.getsid(pid) == pid,
        "environment": sorted(re.sub(r"(=keeper\.\d+)\.\d+$", r"\1", one) for one in environment),
        "ignored": int(status["SigIgn"], 16) & 0x7FFFFFFF,  # glibc's posix_spawn leaves its own, 32 and 33, ignored
        **{name: status[name] for name in kept},
    }


@pytest.mark.long
def test_sigterm_stops_run(place: Place) -> None:
    run = place.run()
    with Deaths(place.family().everybody) as deaths:
        run.process.send_signal(signal.SIGTERM)
        assert run.wait() == ExitCode.OK
        deaths.wait(within=3.0)
    assert "stopped (SIGTERM)" in run.said()


def test_closing_the_terminal_stops_run(place: Place) -> None:
    run = place.run()
    with Deaths(place.family().everybody) as deaths:
        run.close_terminal()
        assert run.wait() == ExitCode.OK
        deaths.wait(within=3.0)


@pytest.mark.long
def test_a_second_run_names_the_holder_and_members_may_come_and_go(place: Place) -> None:
    run = place.run()
    family = place.family()

    second = place.cli("run")
    assert second.returncode == ExitCode.OWNED_ELSEWHERE
    assert f"warden pid {run.pid}" in second.stderr
    assert "queenright stop" in second.stderr

    front = place.front()
    assert front.open() == "bind"
    assert front.ask("chat", "hello")
    front.do("close")
    wait_until(lambda: place.snapshot()["members"] == [], what="the member is gone")
    assert stays(lambda: run.process.poll() is None, during=4 * budgets.MEMBER_POLL)
    assert place.family() == family


def test_a_sigterm_to_everything_at_once_starts_nothing(place: Place) -> None:
    run = place.run()
    family = place.family()
    with Deaths(family.everybody) as deaths:
        for who in (*family.engine.values(), family.keeper, family.warden):
            identity.signal_exact(who, signal.SIGTERM)  # one may be gone already, by another's end
        assert run.wait() == ExitCode.OK
        deaths.wait(within=3.0)
    assert len(place.spawns("chat")) == len(place.spawns("embed")) == 1


def test_run_takes_over_from_an_engine_that_members_built(place: Place) -> None:
    """After a SIGKILL of a whole unit a member may be faster than the unit's restart."""
    rate = 20
    place.configure({"chat": (Launch("chat", knobs={"rate": rate}),), "embed": (Launch("embed", place.kit.embed),)})
    front = place.member()
    before = place.family()
    stream = front.begin("stream", role="chat", prompt="tell me of bees", tokens=rate)
    front.first(stream)
    run = place.run(wait=False)
    run.wait_said(f"taking over from the engine that members built (warden pid {before.warden.pid})")
    while "keeping chat (chat), embed (embed)" not in run.said():  # also in the middle of the hand-off
        assert run.process.poll() is None, run.said()
        assert front.do("ask", role="embed", prompt="hello", tokens=1)["status"] == 200
    assert front.result(stream)["text"] == "".join(story("tell me of bees", 0, rate))
    after = place.family()
    assert after.warden.pid == run.pid
    found = place.snapshot()
    assert found["lifetime"] == "run"
    assert front.ask("chat", "hello", tokens=2) == "".join(story("hello", 0, 2))
    assert [member["pid"] for member in place.snapshot()["members"]] == [front.pid]
    front.do("close")
    assert stays(lambda: run.process.poll() is None, during=4 * budgets.MEMBER_POLL)


@pytest.mark.long
def test_of_two_runs_that_would_take_over_one_does(place: Place) -> None:
    front = place.member()
    runs = [place.run(wait=False), place.run(wait=False)]
    place.until(lambda: any(run.process.poll() is not None for run in runs), within=PATIENCE, what="one gave up")
    lost = next(run for run in runs if run.process.poll() is not None)
    won = next(run for run in runs if run is not lost)
    assert lost.wait() == ExitCode.OWNED_ELSEWHERE, lost.said()
    assert "has an engine already" in lost.said()
    assert place.family().warden.pid == won.pid
    assert front.ask("chat", "hello")


@pytest.mark.long
def test_run_leaves_an_engine_alone_that_serves_more(place: Place) -> None:
    front = place.member()
    before = place.family()
    place.configure({"chat": (Launch("chat"),)})
    refused = place.cli("run")
    assert refused.returncode == ExitCode.OWNED_ELSEWHERE
    assert f"warden pid {before.warden.pid}" in refused.stderr
    assert "taking over" not in refused.stderr
    assert place.family() == before
    assert front.ask("embed", "hello")


@pytest.mark.long
def test_a_service_managers_socket_is_served_from_before_the_start_and_over_keepers(place: Place) -> None:
    with socket.create_server(("127.0.0.1", 0)) as given:
        url = f"http://127.0.0.1:{given.getsockname()[1]}/v1/models"
        place.configure(gateway={"listen": "127.0.0.1:11411"})
        words = [
            "bash",
            "-c",
            f'LISTEN_FDS=1 LISTEN_PID=$$ exec "$@" 3<&{given.fileno()}',
            "bash",
            *place.command("run"),
        ]
        with ThreadPoolExecutor(1) as pool:
            early = pool.submit(httpx.get, url, trust_env=False, timeout=PATIENCE)
            null = subprocess.DEVNULL
            run = subprocess.Popen(
                words, pass_fds=[given.fileno()], env=place.environment, stdout=null, stderr=null
            )  # fmt: skip
            try:
                assert early.result().status_code == 200
                before = place.family()
                assert before.warden.pid == run.pid
                kill(before.keeper)
                assert httpx.get(url, trust_env=False, timeout=PATIENCE).status_code == 200
                assert place.family().keeper != before.keeper
            finally:
                run.terminate()
                run.wait(PATIENCE)
