"""What broke in lilbee's shared engine (our numbers W1 to W24), each as what must hold here. register.py has those that
tests elsewhere hold."""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import pytest

from supervisor import identity, locks, membership
from supervisor.errors import ExitCode
from supervisor.identity import Liveness
from tests.engine.kit import Launch
from tests.engine.seen import Deaths, kill
from tests.fakes.llama_server import story
from tests.support import ROOT, as_plain_user, measured, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.engine.place import Place

pytestmark = pytest.mark.process

BLIP = """
import sys
import httpcore
from pathlib import Path
from supervisor.client import open_engine

errors = {
    "read timeout": lambda: httpcore.ReadTimeout("made up"),
    "reset": lambda: httpcore.ReadError("made up"),
    "refused": lambda: httpcore.ConnectError("made up"),
    "garbage": lambda: httpcore.RemoteProtocolError("made up"),
}
real = httpcore.ConnectionPool.handle_request
planned = []

def blip(self, request):
    if planned:
        raise planned.pop()
    return real(self, request)

httpcore.ConnectionPool.handle_request = blip
with open_engine(Path(sys.argv[1]), program="blip") as engine:
    engine.wait_ready()
    print("ready", flush=True)
    for line in sys.stdin:
        planned.append(errors[line.strip()]())
        url = engine.base_url("chat") + "/completions"
        answer = engine.http.post(url, json={"prompt": "hello", "max_tokens": 3, "model": "chat"})
        assert not planned, "it was never met"
        print(answer.status_code, flush=True)
"""


class Blipping:
    """A front end whose client meets an error of the transport that nobody had, as often as it is told."""

    def __init__(self, place: Place) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-c", BLIP, str(place.config)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=place.home,
            env=place.environment,
        )
        assert self.hear() == "ready"

    def hear(self) -> str:
        """Its next line."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def meet(self, error: str) -> str:
        """One request with that error at its first attempt; the status that the caller saw."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{error}\n")
        self.process.stdin.flush()
        return self.hear()

    def end(self) -> None:
        """Let it leave."""
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()
        self.process.wait(30)


@pytest.fixture
def blipping(place: Place) -> Iterator[Blipping]:
    """One on the place's engine, its only member."""
    front = Blipping(place)
    try:
        yield front
    finally:
        front.end()


def test_an_error_of_the_transport_ends_no_membership_and_touches_no_engine__w1(
    place: Place, blipping: Blipping
) -> None:
    """The only member's connection fails while all is well: it must stay a member while it looks around, or the engine
    is stopped under it."""
    before = place.family()
    (member,) = place.slot.members.iterdir()
    was = member.stat()
    for error, status in (("reset", "200"), ("garbage", "200"), ("refused", "200"), ("read timeout", "503")):
        assert blipping.meet(error) == status, error
        assert [path.stat().st_ino for path in place.slot.members.iterdir()] == [was.st_ino]
        assert locks.is_held(member) is True
    assert place.family() == before
    assert len(place.spawns("chat")) == len(place.spawns("embed")) == 1
    measured("W1", "0 of 6 processes replaced and the membership kept, over 4 errors of the transport")


@pytest.mark.long
def test_a_slow_driver_is_asked_few_times_and_no_lock_is_held_meanwhile__w8(place: Place) -> None:
    """Three seconds for each question what devices there are; lilbee asked 19 times, one after the other."""
    count = place.home / "asked"
    place.configure({role: (Launch(role),) for role in ("r1", "r2", "r3", "r4")})
    began = time.monotonic()
    with subprocess.Popen(
        [sys.executable, "-P", "-c", SLOW_START, str(ROOT), str(place.config), str(count), sys.executable],
        stdout=subprocess.PIPE,
        text=True,
        cwd=place.home,
        env=place.environment,
    ) as front:
        assert front.stdout is not None
        assert front.stdout.readline() == "200\n"
        took, asked = time.monotonic() - began, len(count.read_text().splitlines())
    assert asked <= 9  # one before anything is started, one for each group's plan, one for what each group holds then
    measured("W8", f"{took:.1f} s to the first answer of four groups, {asked} questions of 3 s to the driver")


@pytest.mark.long
def test_one_dead_proxy_is_no_business_of_another_groups_stream__w2(place: Place) -> None:
    knobs = {"rate": 20}
    place.configure({"chat": (Launch("chat", knobs=knobs),), "other": (Launch("other", knobs=knobs),)})
    front = place.member()
    before = place.family()
    stream = front.begin("stream", role="other", prompt="hello", tokens=40)
    front.first(stream)
    began = time.monotonic()
    kill(before.proxies["chat"])
    assert front.ask("chat", "hello")
    measured(
        "W2",
        f"the dead proxy's group answers after {time.monotonic() - began:.2f} s, 0 processes of the other replaced",
    )
    answer = front.result(stream)
    assert (answer["text"], answer["finished"]) == ("".join(story("hello", 0, 40)), True)
    after = place.family()
    assert (after.proxies["other"], after.servers["other"]) == (before.proxies["other"], before.servers["other"])
    assert len(place.spawns("other")) == 1


SLOW_START = """
import json, sys
from pathlib import Path
root, config, count, python = sys.argv[1:]
sys.path.insert(0, root)
from supervisor import wardens
from supervisor.client import open_engine
from tests.cases import slow_driver

slow_driver.slow(3.0, Path(count))
command = wardens.command

def with_it(slot, **options):
    *rest, text = command(slot, **options)
    keeper = [python, "-P", slow_driver.__file__, str(slot.path), "3", count]
    return [*rest, json.dumps({**json.loads(text), "keeper": keeper})]

wardens.command = with_it
with open_engine(Path(config), program="slow") as engine:
    url = engine.base_url("r4") + "/completions"
    answer = engine.http.post(url, json={"prompt": "hello", "max_tokens": 3, "model": "r4"})
    print(answer.status_code, flush=True)
"""

SHIFTED = """
import sys, time
shift = float(sys.argv.pop(1))
wall, nanoseconds = time.time, time.time_ns
time.time = lambda: wall() + shift
time.time_ns = lambda: nanoseconds() + int(shift * 1e9)
import psutil
boot = psutil.boot_time
psutil.boot_time = lambda: boot() + shift
from supervisor.cli import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.long
@pytest.mark.parametrize("shift", [3600.0, -3600.0])
def test_a_stepped_clock_changes_nobodys_identity_and_stop_finds_all__w4(place: Place, shift: float) -> None:
    """Whoever comes after the step must still know the engine for the one it is."""
    place.member()
    family = place.family()

    def shifted(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-P", "-c", SHIFTED, str(shift), *place.command(*words)[1:]],
            capture_output=True,
            text=True,
            cwd=place.home,
            env=place.environment,
            timeout=60,
            check=False,
        )

    looked = shifted("status", "--json")
    assert looked.returncode == ExitCode.OK, looked.stderr
    assert place.family() == family
    with Deaths(family.everybody) as deaths:
        stopped = shifted("stop")
        assert stopped.returncode == ExitCode.OK, stopped.stderr
        assert deaths.alive() == []
    measured("W4", f"clock {shift:+g} s: {len(family.everybody)} of {len(family.everybody)} processes stopped")
    place.assert_gone()


@pytest.mark.long
@pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("unshare"), reason="a time namespace takes root and unshare(1)"
)
def test_a_moved_source_of_the_boot_time_lets_nobody_be_killed_or_overlooked__w4(place: Place) -> None:
    """In a time namespace every process seems to have started an hour earlier (time_namespaces(7))."""
    front = place.member()
    family = place.family()
    moved = ["unshare", "--time", "--boottime", "3600", "--fork"]
    if subprocess.run([*moved, "/bin/true"], capture_output=True, check=False).returncode:
        pytest.skip("no time namespace may be made here")
    place.prefix = [str(shutil.which("unshare")), *moved[1:]]
    assert place.status()[0] == ExitCode.OK
    newcomer = place.front("moved")
    assert newcomer.open() == "bind"
    assert newcomer.ask("chat", "hello")
    newcomer.end()
    assert place.family() == family
    assert front.ask("chat", "still here")
    with Deaths(family.everybody) as deaths:
        assert place.cli("stop").returncode == ExitCode.OK
        deaths.wait(within=2.0)


@pytest.mark.long
def test_a_disk_that_fills_up_under_a_living_engine_loses_no_process__w5(place: Place) -> None:
    """A limit on the size of the keeper's files stands for the full disk. A proxy dies meanwhile: none is started that
    no record could be written of, none is forgotten, and with room again all goes on."""
    front = place.member()
    before = place.family()
    _, hard = resource.prlimit(before.keeper.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(before.keeper.pid, resource.RLIMIT_FSIZE, (1, hard))
    with Deaths([before.proxies["chat"], before.servers["chat"]]) as deaths:
        kill(before.proxies["chat"])
        deaths.wait()
    assert front.ask("embed", "hello")
    assert place.status()[0] == ExitCode.OK
    alive = [one for one in place.started() if identity.liveness(one) is not Liveness.DEAD]
    assert len(alive) <= 1
    room = time.monotonic()
    resource.prlimit(before.keeper.pid, resource.RLIMIT_FSIZE, (hard, hard))
    assert front.ask("chat", "room again")
    measured("W5", f"0 processes lost; answers {time.monotonic() - room:.1f} s after there is room again")
    after = place.family()
    assert after.keeper == before.keeper
    assert (after.proxies["embed"], after.servers["embed"]) == (before.proxies["embed"], before.servers["embed"])
    assert [one for one in place.started() if identity.liveness(one) is not Liveness.DEAD] == [after.servers["chat"]]


@pytest.mark.long
def test_a_record_that_cannot_be_written_at_all_hides_no_process__w5(place: Place) -> None:
    """Where the record should be is a directory: every writing fails, and all that runs is found without it."""
    place.slot.prepare()
    for name in ("chat", "embed"):
        (place.slot.group_record(name) / "in-the-way").mkdir(parents=True)
    front = place.member()
    family = place.family()
    kill(family.keeper)
    assert front.ask("chat", "hello")
    wait_until(lambda: place.family().keeper != family.keeper, what="another keeper")
    assert place.family().engine == family.engine
    with Deaths(family.engine.values()) as deaths:
        done = place.cli("stop", "--json")
        assert deaths.alive() == []
    assert json.loads(done.stdout)["how"] == "keeper", "its own leaving must not fail for want of a record"


@contextmanager
def read_only(place: Place) -> Iterator[None]:
    """Nothing in the slot can be written, made or removed, as after a disk error: meanwhile, for plain users."""
    paths = [place.slot.path, *place.slot.path.rglob("*")]
    modes = {path: path.stat().st_mode for path in paths if path.is_dir() or path.is_file()}
    try:
        for path, mode in modes.items():
            path.chmod(mode & 0o7555)
        yield
    finally:
        for path, mode in modes.items():
            with suppress(FileNotFoundError):
                path.chmod(mode)


@pytest.mark.long
def test_a_slot_that_became_read_only_is_stopped_at_the_first_try_and_usable_after_it__w5(place: Place) -> None:
    place.prefix = as_plain_user()
    front = place.member()
    family = place.family()
    with Deaths(family.everybody) as deaths, read_only(place):
        with Deaths([family.proxies["chat"], family.servers["chat"]]) as chat:
            kill(family.proxies["chat"])
            chat.wait()
        assert front.ask("embed", "hello")
        done = place.cli("stop", "--json")
        assert (done.returncode, deaths.alive()) == (ExitCode.OK, []), done.stderr
        assert json.loads(done.stdout)["how"] == "keeper"
    assert place.member("next").ask("chat", "writable again")


@pytest.mark.long
def test_whoever_watches_the_members_is_replaced_and_the_last_one_out_is_seen__w6(place: Place) -> None:
    """Keeper and last member die in the same moment: the next keeper counts, and nothing stays."""
    front = place.member()
    family = place.family()
    with Deaths(family.everybody) as deaths:
        kill(family.keeper)
        front.kill()
        began = time.monotonic()
        deaths.wait(within=15.0)
        measured("W6", f"nothing is left {time.monotonic() - began:.1f} s after keeper and last member were killed")
    place.wait_empty()
    assert membership.count(place.slot) == 0


@pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("unshare"), reason="a pid namespace takes root and unshare(1)"
)
@pytest.mark.parametrize("first", ["outside", pytest.param("inside", marks=pytest.mark.long)])
def test_members_of_two_pid_namespaces_share_a_slot_and_harm_nobody__w15(place: Place, first: str) -> None:
    """As in containers that share a state directory: nobody's pid means anything to the others."""
    inside = [str(shutil.which("unshare")), "--pid", "--fork", "--kill-child", "--mount-proc"]
    if subprocess.run([*inside, "/bin/true"], capture_output=True, check=False).returncode:
        pytest.skip("no pid namespace may be made here")
    prefixes = {"outside": [], "inside": inside}
    second = "inside" if first == "outside" else "outside"
    place.prefix = prefixes[first]
    builder = place.front(first)
    assert builder.open() == "build"
    servers = {role: place.spawns(role) for role in ("chat", "embed")}
    place.prefix = prefixes[second]
    binder = place.front(second)
    assert binder.open() == "bind"
    assert binder.ask("chat", "hello") == builder.ask("chat", "hello")
    assert membership.count(place.slot) == 2
    place.cli("status")
    binder.end()
    wait_until(lambda: membership.count(place.slot) == 1, what="one member is left")
    assert builder.ask("chat", "still here")
    assert {role: place.spawns(role) for role in servers} == servers
    builder.end()
    place.wait_empty()
