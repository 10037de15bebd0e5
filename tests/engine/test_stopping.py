"""`queenright stop`: the off switch, whatever state the engine is in."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from supervisor import budgets, identity, locks, records
from supervisor.errors import ExitCode
from tests.engine.kit import Launch
from tests.engine.seen import Deaths, kill, stays
from tests.support import FAKE_LLAMA_SERVER, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.engine.place import Place

pytestmark = pytest.mark.process


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
        assert "still stopping" in done.stderr, "seconds without a word"
        assert deaths.alive() == []
    assert not place.slot.contract_record.exists(), "its member would take this for an accident, and rebuild"


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
