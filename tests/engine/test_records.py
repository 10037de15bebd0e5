"""Damaged, foreign and newer records never stop a start, a status or a stop: the locks are the truth."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from supervisor import budgets, looking, records
from supervisor.errors import ExitCode
from supervisor.screen import plain
from tests.engine.kit import Launch
from tests.engine.place import TRACEBACK, Place
from tests.engine.seen import kill

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.process


def damage(path: Path, how: str) -> None:
    """Put something there that is no record of this program."""
    path.unlink(missing_ok=True)
    if how == "garbage":
        path.write_bytes(os.urandom(3000))
    elif how == "half":
        records.write(path, {"name": "chat", "state": "running", "servers": []}, version=1)
        whole = path.read_bytes()
        path.write_bytes(whole[: len(whole) // 2])
    elif how == "foreign":
        path.write_text(json.dumps({"pid": 1, "port": 8080, "models": ["another program's"]}))
    elif how == "newer":
        records.write(path, {"nothing": "that this program knows"}, version=99)
    elif how == "empty":
        path.touch()
    else:
        records.write(path, {"name": "a record of ours", "but": "of something else"}, version=1)


DAMAGE = ("garbage", "half", "foreign", "newer", "empty", "other")


@pytest.mark.long
def test_an_engine_starts_whatever_stands_in_its_records(place: Place) -> None:
    place.configure({"chat": (Launch("chat"),)})
    for how in DAMAGE:
        place.slot.prepare()
        damage(place.slot.contract_record, how)
        damage(place.slot.keeper_record, how)
        damage(place.slot.group_record("chat"), how)
        (place.slot.members / "garbage").write_bytes(b"\0")
        (place.slot.joining / "garbage").write_bytes(b"\0")
        assert place.status()[0] == ExitCode.NO_ENGINE, how
        if how in ("garbage", "newer"):  # one that does not parse, and one that must not be touched
            front = place.front()
            assert front.open() == "build", how
            assert front.ask("chat", "hello"), how
            assert place.cli("stop").returncode == ExitCode.OK, how


@pytest.mark.long
def test_a_look_without_a_keeper_survives_whatever_stands_in_a_groups_record(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budgets, "LOOK_LIMIT", 0.05)  # the keeper does not answer, however long we wait
    place.member()
    family = place.recorded()
    kill(family.keeper, signal.SIGSTOP)
    for how in DAMAGE:
        damage(place.slot.group_record("chat"), how)
        before = place.slot.group_record("chat").read_bytes()
        found = looking.look(place.slot)
        assert found["state"] == "degraded", how
        assert [group["name"] for group in found["groups"] if group["name"] == "embed"] == ["embed"], how
        text = plain(found, time.time())
        assert "embed" in text, how
        assert place.slot.group_record("chat").read_bytes() == before, "who only looks moves nothing"
    assert place.cli("status").returncode == ExitCode.OK
    kill(family.keeper, signal.SIGCONT)
    place.wait_state("running")


def test_a_keeper_that_takes_over_needs_no_record(place: Place) -> None:
    front = place.member()
    family = place.family()
    for path in (place.slot.contract_record, place.slot.keeper_record, place.slot.group_record("chat")):
        damage(path, "garbage")
    kill(family.keeper)
    assert front.ask("chat", "hello")
    after = place.family()
    assert after.engine == family.engine


@pytest.mark.long
def test_a_start_on_a_full_disk_says_so_starts_nothing_and_works_later(place: Place) -> None:
    """A limit on the size of files stands for the full disk: a write fails in the same place."""
    limited = (
        "import os, resource, sys\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (400, 400))\n"
        "os.execv(sys.argv[1], sys.argv[1:])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", limited, *place.command("run")],
        capture_output=True,
        text=True,
        cwd=place.home,
        env=place.environment,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (ExitCode.ERROR, "")
    assert f"{place.slot.contract_record} cannot be written" in done.stderr
    assert TRACEBACK not in done.stderr
    place.assert_never_started()
    assert place.member().ask("chat", "there is room again")
