"""`queenright stop`: the off switch, whatever state the engine is in."""

from __future__ import annotations

import json
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from supervisor import budgets, identity, locks, looking, records, stopping
from supervisor.errors import ExitCode, UnkillableError
from tests.engine.kit import Launch
from tests.engine.seen import Deaths, kill, stays
from tests.support import FAKE_LLAMA_SERVER, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.engine.place import Place

pytestmark = pytest.mark.process


@pytest.mark.long
def test_stop_ends_an_engine_in_use_and_says_who_used_it(place: Place) -> None:
    front = place.member("user")
    with Deaths(place.family().everybody) as deaths:
        done = place.cli("stop")
        assert deaths.alive() == []
    assert (done.returncode, done.stderr) == (ExitCode.OK, "")
    assert done.stdout.startswith("stopped in ")
    assert f"in use by: {front.name} ({front.pid})" in done.stdout

    # It stays down for as long as its member does not need it; whose request then has it built again.
    assert stays(lambda: locks.is_held(place.slot.warden_lock) is False, during=1.0)
    assert front.ask("chat", "again")
    assert len(place.spawns("chat")) == 2


def test_stop_on_an_empty_slot_says_that_there_is_nothing(place: Place) -> None:
    place.slot.prepare()
    done = place.cli("stop")
    assert (done.returncode, done.stdout) == (ExitCode.NO_ENGINE, "")
    assert f"no engine runs in {place.slot.path}" in done.stderr
    as_data = place.cli("stop", "--json")
    assert as_data.returncode == ExitCode.NO_ENGINE
    facts = json.loads(as_data.stdout)
    assert (facts["error"], facts["exit_code"]) == ("NoEngineError", ExitCode.NO_ENGINE)


@pytest.mark.long
@pytest.mark.parametrize("how", ["stop", "last one out"])
def test_a_stop_in_the_middle_of_a_load_does_not_wait_for_it(place: Place, how: str) -> None:
    place.configure({"chat": (Launch("chat", knobs={"load": 600}),)})
    front = place.front()
    front.open(wait=False)
    wait_until(place.spawns, what="the server is loading")
    place.snapshot()
    if how == "stop":
        done = place.cli("stop", "--json")
        assert done.returncode == ExitCode.OK
        facts = json.loads(done.stdout)
        assert (facts["stopped"], facts["how"]) == (True, "keeper")
    else:
        front.kill()
        place.wait_empty()
    place.assert_gone()


@pytest.mark.long
def test_servers_that_ignore_sigterm_are_killed_when_the_grace_ends(place: Place) -> None:
    place.configure({"chat": tuple(Launch(f"r{number}", knobs={"term": "ignore"}) for number in range(4))}, grace_s=1.0)
    place.member()
    with Deaths(place.family().everybody) as deaths:
        done = place.cli("stop", "--json")
        assert deaths.alive() == []
    facts = json.loads(done.stdout)
    assert facts["how"] == "keeper"
    assert facts["seconds"] < budgets.TEARDOWN
    front = place.front("next")
    assert front.open() == "build"


def swallow(place: Place, name: str) -> socket.socket:
    """Ask a group for a long stream, and read nothing of it: what is sent stays in the buffers on the way."""
    body = json.dumps({"model": name, "prompt": "hello", "max_tokens": 5_000_000, "stream": True})
    key = place.slot.group_key(name).read_text().strip()
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.connect(("127.0.0.1", place.group(name)["proxy"]["port"]))
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\nContent-Length: {len(body)}\r\n"
    connection.sendall(f"{head}Content-Type: application/json\r\n\r\n{body}".encode())
    return connection


@pytest.mark.long
@pytest.mark.parametrize("how", ["command", "SIGTERM"])
def test_a_stop_takes_five_seconds_with_stubborn_servers_and_streams_that_nobody_reads(place: Place, how: str) -> None:
    """Four groups at once: each server ignores SIGTERM and has more to send than fits on the way."""
    names = [f"r{number}" for number in range(4)]
    place.configure({name: (Launch(name, knobs={"term": "ignore"}),) for name in names})
    place.member()
    family = place.family()
    with ExitStack() as stack, Deaths(family.everybody) as deaths:
        for name in names:
            stack.enter_context(swallow(place, name))
        wait_until(lambda: all(place.receipts(name) for name in names), what="all stream")
        began = time.monotonic()
        if how == "command":
            done = place.cli("stop", "--json")
            assert (done.returncode, json.loads(done.stdout)["how"]) == (ExitCode.OK, "keeper")
            assert deaths.alive() == []
        else:
            kill(family.warden, signal.SIGTERM)
            deaths.wait(within=3 * budgets.GROUP_STOP)
        assert time.monotonic() - began < 3 * budgets.GROUP_STOP
    (said,) = stops(place)
    assert (said["clean"], sorted(said["groups"])) == (True, names)
    # Together, not one after the other: four graces alone would take ten seconds. Three times the slack, as above.
    assert float(said["took"].removesuffix(" s")) < 3 * budgets.GROUP_STOP


def stops(place: Place) -> list[dict[str, Any]]:
    """The lines that stops left, the last engine's behind the others'."""
    events = [json.loads(line) for line in place.slot.events.read_text().splitlines()]
    return [event for event in events if event["what"] == "stopped"]


@pytest.mark.long
def test_a_sigterm_to_every_process_at_once_rebuilds_nothing_round_after_round(place: Place) -> None:
    """As systemd does with a unit, or init with everybody. In whatever order they get it, the engine ends in order."""
    dice = random.Random(15)
    orders: list[Callable[[list[identity.Identity]], object]] = [
        list.reverse,
        lambda who: None,
        dice.shuffle,
        dice.shuffle,
    ]
    for turn, arrange in enumerate(orders, 1):
        front = place.member()
        family = place.family()
        everybody = family.everybody
        arrange(everybody)
        with Deaths(everybody) as deaths:
            for who in everybody:
                identity.signal_exact(who, signal.SIGTERM)  # one may be gone already, by another's end
            deaths.wait(within=3 * budgets.TEARDOWN)
        place.wait_empty()
        assert [len(place.spawns(role)) for role in ("chat", "embed")] == [turn, turn], "a rebuild"
        assert len(stops(place)) == turn
        assert stops(place)[-1]["clean"]
        front.end()
    words = place.slot.warden_log.read_text()
    assert "ending the engine without the keeper" not in words
    assert "next in" not in words, f"a keeper crashed: {words}"


def test_a_second_signal_to_the_keeper_kills_at_once(place: Place) -> None:
    place.configure({"chat": (Launch("chat", knobs={"term": "ignore"}),)}, grace_s=3.4)
    place.member()
    family = place.family()
    with Deaths(family.everybody) as deaths:
        kill(family.keeper, signal.SIGTERM)
        place.wait_state("stopping")
        assert deaths.alive()
        kill(family.keeper, signal.SIGTERM)
        deaths.wait()
    (said,) = stops(place)
    assert said["killed"] == ["chat"]
    assert float(said["took"].removesuffix(" s")) < 3.4 - budgets.UNLOAD_LIMIT, "it waited for the grace all the same"


STUCK_WARDEN = Path(__file__).parent / "stuck" / "warden.py"


@pytest.mark.long
def test_what_cannot_be_killed_ends_a_stop_in_a_result_of_its_own_that_names_it(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a server had forked hangs in a driver. Its lock stays, and nothing is started beside it until it is gone."""
    place.configure({"chat": (Launch("chat", knobs={"fork": "sleep"}),)}, grace_s=1.0)
    front = place.front()
    front.do("use_warden", script=str(STUCK_WARDEN))
    front.open()
    family = place.family()
    (grandchild,) = [one for one in identity.descendants(family.warden.pid) if one not in family.everybody]
    (place.slot.path.parent / "stuck").write_text(str(grandchild.pid))
    signal_exact = identity.signal_exact

    def spares(who: identity.Identity, number: int) -> bool:
        return who == grandchild or signal_exact(who, number)

    with monkeypatch.context() as patched:
        patched.setattr(identity, "signal_exact", spares)
        with pytest.raises(UnkillableError) as caught:
            stopping.stop(place.slot, who="a test")
        error = caught.value
        assert error.pids == (grandchild.pid,)
        assert f"cannot be killed: pid {grandchild.pid} of chat." in error.what
        assert (error.exit_code, error.as_dict()["pids"]) == (ExitCode.ERROR, [grandchild.pid])
        (said,) = stops(place)
        assert not said["clean"]
        assert identity.liveness(grandchild) is identity.Liveness.ALIVE
        (generation,) = place.slot.generations()
        assert locks.is_held(place.slot.generation_lock(*generation)) is True
        status, shown = place.status()
        assert (status, shown["state"]) == (ExitCode.NO_ENGINE, "down")
        assert "still alive: chat." in shown["reason"]
        with pytest.raises(UnkillableError):
            stopping.stop(place.slot, who="a test")
    # It can be killed at last: the first who wants an engine has one.
    assert place.member("next").ask("chat", "hello")
    assert identity.liveness(grandchild) is identity.Liveness.DEAD


FORKING = {
    "wrapper": "setsid {fake} & wait",
    "wrapper without environment": "setsid env -i {fake} & wait",
    "wrapper that leaves": "setsid env -i {fake} & sleep 1",
    "server with a grandchild": "exec {fake} --fake-fork hold-port --fake-close-fds 1 --fake-title innocent",
    "server that becomes a daemon": "exec {fake} --fake-daemonize 1 --fake-close-fds 1",
}


QUICK = ("wrapper", "server with a grandchild")


@pytest.mark.parametrize("how", [how if how in QUICK else pytest.param(how, marks=pytest.mark.long) for how in FORKING])
def test_nothing_is_left_of_a_server_that_forked_itself_away(place: Place, how: str) -> None:
    script = place.home / "wrapper"
    fake = f'{sys.executable} -I -S {FAKE_LLAMA_SERVER} "$@"'
    script.write_text(f"#!/bin/sh\n{FORKING[how].format(fake=fake)}\n")
    script.chmod(0o755)
    place.configure({"chat": (Launch("chat"),)}, engine={"llama_server": str(script)})
    place.front().open(wait=False)
    wait_until(place.spawns, what="a server was started")
    if how in ("wrapper", "wrapper without environment", "server with a grandchild"):
        place.wait_state("running")
    started = place.started()
    assert started
    place.snapshot()
    assert place.cli("stop").returncode == ExitCode.OK
    assert [one for one in started if identity.liveness(one) is not identity.Liveness.DEAD] == []
    place.assert_gone()


@contextmanager
def keeper_killer(warden: identity.Identity) -> Iterator[list[int]]:
    """Kill every keeper of a warden as soon as it is seen; the list is of those that were."""
    killed: list[int] = []
    enough = threading.Event()

    def work() -> None:
        while not enough.is_set():
            for pid in identity.children(warden.pid):
                mark = identity.marker(pid, "QUEENRIGHT_GENERATION") or ""
                who = identity.of(pid)
                if mark.startswith("keeper.") and who is not None and identity.signal_exact(who, signal.SIGKILL):
                    killed.append(pid)
            time.sleep(0.002)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield killed
    finally:
        enough.set()
        thread.join()


@pytest.mark.long
def test_stop_works_while_every_keeper_is_killed_at_once(place: Place) -> None:
    place.member()
    family = place.family()
    with Deaths(family.everybody) as deaths, keeper_killer(family.warden) as killed:
        wait_until(lambda: killed, what="a keeper was killed")
        done = place.cli("stop", "--json")
        assert done.returncode == ExitCode.OK, done.stderr
        assert deaths.alive() == []
    assert json.loads(done.stdout)["how"] in ("keeper", "warden")


@pytest.mark.long
def test_stop_works_with_a_keeper_that_hangs(place: Place) -> None:
    place.member()
    family = place.family()
    with Deaths(family.everybody) as deaths:
        kill(family.keeper, signal.SIGSTOP)
        done = place.cli("stop")
        assert done.returncode == ExitCode.OK, done.stderr
        assert "by the warden" in done.stdout
        assert "waiting for the engine to stop" in done.stderr, "seconds without a word"
        assert deaths.alive() == []
    assert not place.slot.contract_record.exists(), "its member would take this for an accident, and rebuild"
    last = json.loads(place.slot.events.read_text().splitlines()[-1])
    assert (last["what"], last["how"]) == ("stopped", "warden"), "no keeper was there to say it"
    assert "queenright stop" in last["why"]


@pytest.mark.long
def test_stop_works_with_a_warden_that_hangs(place: Place) -> None:
    place.member()
    family = place.family()
    with Deaths(family.everybody) as deaths:
        kill(family.warden, signal.SIGSTOP)
        done = place.cli("stop")
        assert done.returncode == ExitCode.OK, done.stderr
        assert "killed" in done.stdout
        deaths.wait(within=2.0)
    front = place.front("next")
    assert front.open() == "build"


@pytest.mark.long
def test_stop_never_signals_a_process_that_only_a_record_names(place: Place) -> None:
    place.slot.prepare()
    received = place.home / "received"
    code = (
        "import signal, sys, time\n"
        "for n in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):\n"
        "    signal.signal(n, lambda *_: open(sys.argv[1], 'a').write('x'))\n"
        "print('ready', flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(received)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as bystander:
        assert bystander.stdout is not None
        bystander.stdout.readline()
        who = identity.of(bystander.pid)
        assert who is not None
        facts = {"pid": who.pid, "warden_pid": who.pid, "warden_ticks": who.ticks, "version": "0", "since": 0.0}
        records.write(place.slot.keeper_record, facts | {"control": str(place.slot.control_socket)}, version=1)
        Path(place.slot.warden_lock).write_text(str(who.pid))
        assert place.cli("stop").returncode == ExitCode.NO_ENGINE
        front = place.front()
        assert front.open() == "build"
        assert place.cli("stop").returncode == ExitCode.OK
        assert identity.liveness(who) is identity.Liveness.ALIVE
        assert not received.exists()
        bystander.stdin.close()  # type: ignore[union-attr]


def test_whoever_only_holds_the_lock_is_never_signalled(place: Place) -> None:
    """`flock warden.lock sleep 60` is no warden, whatever the kernel's table of locks says."""
    place.slot.prepare()
    code = "import fcntl, sys; f = open(sys.argv[1], 'a'); fcntl.flock(f, fcntl.LOCK_EX); print(1, flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", code, str(place.slot.warden_lock)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as bystander:
        assert bystander.stdout is not None
        bystander.stdout.readline()
        done = place.cli("stop")
        assert done.returncode == ExitCode.ERROR
        assert "no warden that could be found" in done.stderr
        assert bystander.poll() is None
        assert bystander.stdin is not None
        bystander.stdin.close()
    assert bystander.returncode == 0


def test_no_look_at_an_engine_that_stops_takes_it_for_a_wounded_one(place: Place) -> None:
    front = place.member()
    seen: list[str] = []

    def look_until_down() -> None:
        while not seen or seen[-1] != "down":
            seen.append(looking.look(place.slot)["state"])

    looker = threading.Thread(target=look_until_down)
    looker.start()
    front.end()
    looker.join(60)
    assert set(seen) - {"running"} == {"stopping", "down"}, seen
