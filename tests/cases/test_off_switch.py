"""`queenright stop` with an engine in a state that nobody plans for. Afterwards the slot is usable at the first try."""

from __future__ import annotations

import shutil
import signal
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from supervisor import identity
from supervisor.errors import ExitCode
from tests.engine.kit import Launch
from tests.engine.seen import Deaths, kill
from tests.engine.test_keeper_seams import SEAM_KEEPER, mark
from tests.fakes.llama_server import story
from tests.support import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from supervisor.identity import Identity
    from tests.engine.place import Place

pytestmark = pytest.mark.process


def stop(place: Place) -> None:
    """The command ends with 0, and nothing is there any more."""
    done = place.cli("stop")
    assert done.returncode == ExitCode.OK, done.stderr
    place.assert_gone()


def usable(place: Place) -> None:
    """Who wants an engine builds one, at once."""
    place.configure({"chat": (Launch("chat"),)})
    front = place.front("next")
    assert front.open() == "build"
    assert front.ask("chat", "hello") == "".join(story("hello", 0, 8))


def keeper_of(place: Place) -> Identity:
    """Also of an engine that has not come up."""
    found = identity.of(place.snapshot()["keeper"]["pid"])
    assert found is not None
    return found


@pytest.mark.long
def test_a_stopped_keeper(place: Place) -> None:
    place.member()
    kill(place.family().keeper, signal.SIGSTOP)
    stop(place)
    usable(place)


@pytest.mark.long
def test_a_stopped_keeper_in_the_middle_of_a_build(place: Place) -> None:
    place.configure({"chat": (Launch("chat", knobs={"load": 600, "term": "ignore"}),)}, grace_s=1.0)
    place.front().open(wait=False)
    wait_until(place.spawns, what="the server loads")
    kill(keeper_of(place), signal.SIGSTOP)
    stop(place)
    usable(place)


@pytest.mark.long
def test_a_keeper_killed_in_the_middle_of_a_build(place: Place) -> None:
    place.configure({"chat": (Launch("chat", knobs={"load": 600}),)})
    place.front().open(wait=False)
    wait_until(place.spawns, what="the server loads")
    kill(keeper_of(place))
    stop(place)
    usable(place)


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_keeper_that_is_lost_in_the_middle_of_a_teardown(place: Place, number: signal.Signals) -> None:
    place.configure({"chat": (Launch("chat", knobs={"term": "ignore"}),)}, grace_s=2.0)
    place.member()
    family = place.family()
    with ThreadPoolExecutor(1) as pool, Deaths(family.everybody) as deaths:
        stopping = pool.submit(place.cli, "stop")
        place.wait_state("stopping")
        kill(family.keeper, number)
        done = stopping.result(60)
        assert (done.returncode, deaths.alive()) == (ExitCode.OK, []), done.stderr
    place.assert_gone()
    usable(place)


SEAMS = ("before spawn", "after spawn", "told spawned", "before record of a group", "after file of a generation")


@pytest.mark.parametrize(
    "seam", [pytest.param(seam, marks=[pytest.mark.long] * (seam != "after spawn")) for seam in SEAMS]
)
def test_a_keeper_killed_between_a_spawn_and_its_record(place: Place, seam: str) -> None:
    """Its successor is stopped in the middle of taking up what it finds."""
    front = place.front()
    front.open(wait=False, keeper=[str(SEAM_KEEPER), seam, str(mark(place))])
    wait_until(mark(place).exists, within=30, what="the keeper died there")
    stop(place)
    usable(place)


@pytest.fixture
def disk() -> Iterator[Path]:
    """A disk of a mebibyte. Skips where none may be mounted."""
    path = Path(tempfile.mkdtemp(prefix="qd-", dir="/tmp"))
    mounted = [shutil.which("mount") or "", "-t", "tmpfs", "-o", "size=1m", "none", str(path)]
    try:
        if not mounted[0] or subprocess.run(mounted, capture_output=True, check=False).returncode:
            pytest.skip("no tmpfs may be mounted here")
        try:
            yield path
        finally:
            subprocess.run(["umount", "--lazy", str(path)], check=True)
    finally:
        path.rmdir()


def fill(disk: Path) -> Path:
    """No byte and no file more fits on it."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file:
        for size in (65536, 4096, 1):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError:
                pass
    return filler


@pytest.mark.long
@pytest.mark.parametrize("keeper", ["goes on", "dies"])
def test_a_disk_that_is_full(disk: Path, place: Place, keeper: str) -> None:
    """ENOSPC for everybody at once: logs, records, locks of new generations. One group is lost in it, and no new one can
    be written down."""
    place.use_slot(disk / "slot")
    place.configure()
    place.member()
    family = place.family()
    filler = fill(disk)
    with Deaths(family.everybody) as deaths:
        kill(family.proxies["chat"])
        place.until(lambda: family.proxies["chat"] not in deaths.alive(), within=10, what="a group is lost")
        if keeper == "dies":
            kill(family.keeper)
        stop(place)
        assert deaths.alive() == []
    filler.unlink()
    usable(place)
