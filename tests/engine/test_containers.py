"""Groups in containers, on a fake container engine: what is in one is found by no sweep, and yet nothing is left."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest

from supervisor import identity, locks, stopping
from supervisor.control import ControlError
from tests.engine.containers import Containers
from tests.engine.seen import kill
from tests.engine.test_command import DUMMY, get
from tests.fakes.container_engine import RM_GRACE_S
from tests.support import wait_until
from workers import container

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from supervisor.identity import Identity
    from tests.engine.place import Place

pytestmark = [pytest.mark.engine]


@pytest.fixture
def containers(place: Place) -> Iterator[Containers]:
    """Ended before the place looks for what is left."""
    containers = Containers(place.home)
    try:
        yield containers
    finally:
        for front in place.fronts:
            front.end()
        for run in place.running:
            run.end()
        place.wait_empty()
        left = containers.living()
        containers.close()
        assert not left, "containers that nobody ended"


def group(name: str, containers: Containers, *knobs: str, run: tuple[str, ...] = (), **keys: Any) -> list[str]:
    """The lines of a group in a container."""
    argv = [str(containers.program), "run", *run, "-p", "127.0.0.1:{port}:{port}", "image"]
    argv += ["--port", "{port}", "--state", str(containers.home), *knobs]
    lines = [f"[groups.{name}]", 'kind = "command"']
    lines += [f"{key} = {json.dumps(value)}" for key, value in keys.items()]
    lines += [f"[groups.{name}.options]", f"argv = {json.dumps(argv)}", 'health = "/health"']
    return [*lines, f"[[groups.{name}.launches]]", f'role = "{name}"', 'model = "weights"']


def configure(place: Place, *lines: str) -> None:
    """With the slot, and no gateway."""
    head = ["[engine]", f"slot = {json.dumps(str(place.slot.path))}", "[gateway]", "enabled = false"]
    place.config.write_text("\n".join([*head, *lines]) + "\n")


def new_generation(place: Place, name: str, old: str) -> dict[str, Any]:
    """Once it runs."""
    place.until(lambda: place.group(name)["generation"] not in (None, old), within=60, what="a new generation")
    return place.wait_state("running", name)


def who(place: Place, name: str) -> Identity:
    """Warden, keeper, or the leader of the group."""

    def found() -> Identity | None:
        try:
            seen = place.snapshot()
        except ControlError:
            return None
        return identity.of((seen[name] if name in seen else place.group("web")[name])["pid"])

    exact = place.until(found, within=60, what=f"there is a {name}")
    assert exact is not None
    return exact


BAD = ("--fetch", "0.5", "--start-period", "0.5", "--ignore-term", "--grandchild")


def test_whatever_is_killed_the_container_is_rebuilt_and_none_is_left(place: Place, containers: Containers) -> None:
    configure(place, *group("web", containers, *BAD, grace_s=0.5))
    place.run(wait=False)
    first = place.wait_state("running", "web")
    assert get(first["url"]) == b"HTTP/1.1 200 OK"
    assert "fetching weights" in place.slot.group_log("web").read_text()
    assert len(containers.living()) == 2
    # What serves dies: the container ends, and with it the leader.
    (_, _, payload), *_ = containers.did("run")
    subprocess.run(["kill", "-9", payload], check=True)
    second = new_generation(place, "web", first["generation"])
    assert second["url"] == first["url"]
    # The leader dies, which the container does not notice.
    kill(who(place, "proxy"))
    third = new_generation(place, "web", second["generation"])
    assert len(containers.did("run")) == 3
    assert len(containers("ps", "-q").split()) == 1
    # The keeper dies: nothing happens to it.
    keeper = who(place, "keeper")
    kill(keeper)
    place.until(lambda: who(place, "keeper") != keeper, within=60, what="a new keeper")
    assert place.wait_state("running", "web")["generation"] == third["generation"]
    stopping.stop(place.slot, who="a test")
    assert containers.living() == []
    assert containers("ps", "-a", "-q") == ""
    assert not place.slot.undone()
    assert not list(place.slot.groups.glob("web.*.*"))


@pytest.mark.long
@pytest.mark.long
def test_a_stop_takes_our_grace_and_not_the_container_engines_ten_seconds__podman_21134(
    place: Place, containers: Containers
) -> None:
    """The fake's `rm -f` is podman's: SIGTERM first, and ten seconds until SIGKILL."""
    configure(place, *group("web", containers, "--ignore-term", grace_s=0.5))
    running = place.run(wait=False)
    place.wait_state("running", "web")
    began = time.monotonic()
    assert place.cli("stop").returncode == 0
    assert time.monotonic() - began < RM_GRACE_S
    running.wait()
    assert not containers.living()


def test_what_a_dead_warden_left_in_a_container_is_ended_by_the_next_step(place: Place, containers: Containers) -> None:
    configure(place, *group("web", containers, *BAD))
    place.run(wait=False)
    place.wait_state("running", "web")
    kill(who(place, "warden"))
    wait_until(lambda: locks.is_held(place.slot.warden_lock) is False, within=30, what="the warden is dead")
    assert containers.living()  # the kernel takes what is below a warden, and this is not
    _, said = place.status()
    assert "may be left: web." in said["reason"]
    front = place.front()
    front.open()
    assert place.wait_state("running", "web")
    assert len(containers("ps", "-q").split()) == 1
    kill(who(place, "warden"))
    wait_until(lambda: locks.is_held(place.slot.warden_lock) is False, within=30, what="the warden is dead")
    front.end()
    if containers.living():  # else the front end was quick enough to build anew, and leave
        assert stopping.stop(place.slot, who="a test").how in ("leftovers", "keeper")
    wait_until(lambda: not containers.living(), within=30, what="nothing is left")


@pytest.mark.long
def test_a_container_of_somebody_elses_is_left_alone(place: Place, containers: Containers) -> None:
    theirs = subprocess.Popen(
        [str(containers.program), "run", "--name", "mine", "image", "--port", "0"], stdout=subprocess.DEVNULL
    )
    try:
        wait_until(lambda: containers.did("run"), within=30, what="it runs")
        configure(place, *group("web", containers, run=("--name", "mine")))
        place.run(wait=False)
        assert "left alone" in place.wait_state("failed", "web")["reason"]
        assert theirs.poll() is None
        assert containers.did("removed") == []
    finally:
        containers("rm", "-f", "mine")
        theirs.wait(30)


def test_a_name_with_a_dot_is_not_taken_by_one_that_is_only_like_it(tmp_path: Path) -> None:
    """A dot was any character, so `v1x0` was taken for `v1.0`, and the group was not started."""
    containers = Containers(tmp_path)
    program = str(containers.program)
    running = [
        subprocess.Popen([program, "run", "--name", name, "image", "--port", "0"], stdout=subprocess.DEVNULL)
        for name in ("my-v1x0", "my-v1.0.1")
    ]
    try:
        wait_until(lambda: len(containers.did("run")) == 2, within=30, what="they run")
        assert container.of_name(program, "my-v1.0") == ""
        ids = {name: one for name, one, _ in containers.did("run")}
        for name in ids:
            assert container.of_name(program, name) == ids[name]
    finally:
        containers("rm", "-f", "my-v1x0", "my-v1.0.1")
        for one in running:
            one.wait(30)
        containers.close()


@pytest.mark.long
def test_an_old_container_of_ours_is_replaced_by_its_labels(place: Place, containers: Containers) -> None:
    """As after a power cut, where podman keeps what ran."""
    labels = ["--label", f"{container.LABEL}slot={place.slot.path}", "--label", f"{container.LABEL}group=web"]
    old = subprocess.Popen(
        [str(containers.program), "run", *labels, "--name", "mine", "image", "--port", "0"], stdout=subprocess.DEVNULL
    )
    wait_until(lambda: containers.did("run"), within=30, what="it runs")
    configure(place, *group("web", containers, run=("--name=mine",)))
    place.run(wait=False)
    place.wait_state("running", "web")
    assert old.wait(30) == 137
    assert len(containers("ps", "-q").split()) == 1


@pytest.mark.long
def test_a_container_engine_that_does_not_answer_keeps_a_generation_from_being_gone(
    place: Place, containers: Containers
) -> None:
    configure(place, *group("web", containers))
    place.run(wait=False)
    first = place.wait_state("running", "web")
    hidden = containers.socket.with_suffix(".hidden")
    containers.socket.rename(hidden)
    kill(who(place, "proxy"))
    found = place.wait_state("failed", "web", within=60)
    assert "cannot connect" in found["reason"]
    hidden.rename(containers.socket)
    new_generation(place, "web", first["generation"])
    assert len(containers("ps", "-q").split()) == 1


@pytest.mark.long
def test_what_an_earlier_engine_left_in_a_container_whose_engine_is_away_concerns_its_group_alone(
    place: Place, containers: Containers
) -> None:
    words = [sys.executable, "-I", "-S", "-E", str(DUMMY), "--port", "{port}"]
    other = ["[groups.other]", 'kind = "command"', "[groups.other.options]", f"argv = {json.dumps(words)}"]
    other += ['health = "/health"', "[[groups.other.launches]]", 'role = "other"', 'model = "dummy"']
    configure(place, *group("web", containers), *other)
    place.run(wait=False)
    place.wait_state("running", "web")
    first = place.group("web")["generation"]
    hidden = containers.socket.with_suffix(".hidden")
    containers.socket.rename(hidden)
    kill(who(place, "warden"))
    wait_until(lambda: locks.is_held(place.slot.warden_lock) is False, within=30, what="the warden is dead")
    assert len(containers.living()) == 1
    shown = place.cli("status").stdout
    assert f"may be left: web.{first}" in shown
    assert "-> start the container engine again" in shown
    assert "outside web" in place.cli("doctor").stdout
    stopped = place.cli("stop")
    assert stopped.returncode == 1
    assert "cannot connect" in stopped.stderr
    assert "start the container engine again" in stopped.stderr
    # Who comes next is not kept from anything but that group.
    place.run(wait=False)
    place.wait_state("running", "other")
    found = place.until(
        lambda: (now := place.group("web"))["reason"].startswith("of an earlier engine") and now,
        within=60,
        what="it says so",
    )
    assert (found["state"], "cannot connect" in found["reason"]) == ("starting", True)
    assert (found["restarts"], found["cause"]) == (0, None)
    _, seen = place.status()
    assert [one["generation"] for one in seen["outside"]] == [first]
    assert "-> start the container engine again" in place.cli("status").stdout
    hidden.rename(containers.socket)
    place.wait_state("running", "web")
    assert len(containers("ps", "-q").split()) == 1
    assert not place.status()[1]["outside"]


def real_engine() -> str:
    """A container engine that answers. Skips the test where there is none."""
    for name in ("podman", "docker"):
        program = shutil.which(name)
        if program is None:
            continue
        try:
            if subprocess.run([program, "info"], capture_output=True, timeout=20, check=False).returncode == 0:
                return program
        except subprocess.TimeoutExpired:
            continue
    pytest.skip("no container engine answers on this machine (`podman info`, `docker info`)")


IMAGE = "docker.io/library/python:3.12-alpine"


@pytest.mark.long
def test_a_real_container_is_served_killed_rebuilt_and_stopped(place: Place) -> None:
    program = real_engine()
    if subprocess.run([program, "pull", "-q", IMAGE], capture_output=True, timeout=280, check=False).returncode != 0:
        pytest.skip(f"{program} cannot pull {IMAGE}")
    argv = [program, "run", "--init", "-p", "127.0.0.1:{port}:8000", IMAGE, "python", "-m", "http.server", "8000"]
    place.config.write_text(
        f'[engine]\nslot = "{place.slot.path}"\n[gateway]\nenabled = false\n[groups.web]\nkind = "command"\n'
        f'[groups.web.options]\nargv = {json.dumps(argv)}\nhealth = "/"\n'
        '[[groups.web.launches]]\nrole = "web"\nmodel = "none"\n'
    )
    place.run(wait=False)
    first = place.wait_state("running", "web", within=120)
    kill(who(place, "proxy"))
    new_generation(place, "web", first["generation"])
    stopping.stop(place.slot, who="a test")
    label = f"label={container.LABEL}slot={place.slot.path}"
    left = subprocess.run([program, "ps", "-a", "-q", "--filter", label], capture_output=True, check=True).stdout
    assert left == b""
