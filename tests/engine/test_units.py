"""A warden that is started from within a systemd service. A systemd-run of the test's own stands for the user's manager."""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING, Any

import pytest

from supervisor import budgets, control, units
from tests.engine.seen import Deaths

if TYPE_CHECKING:
    from tests.engine.fronts import Front
    from tests.engine.place import Place

pytestmark = pytest.mark.process

SERVICE = "/user.slice/user-1000.slice/user@1000.service/app.slice/notebook.service"


def inside(place: Place, script: str) -> Front:
    """A front end that believes to be in a service, with this for a systemd-run; its words are in `asked`, a line each."""
    runtime, programs = place.home / "runtime", place.home / "bin"
    (runtime / "systemd").mkdir(parents=True)
    (runtime / "systemd" / "private").touch()
    programs.mkdir()
    program = programs / "systemd-run"
    told = shlex.quote(str(place.home / "asked"))
    program.write_text(f'#!/bin/sh\necho "$XDG_RUNTIME_DIR" "$@" >> {told}\n{script}\n')
    program.chmod(0o755)
    path = f"{programs}:{place.environment['PATH']}"
    front = place.front("unit", PATH=path, XDG_RUNTIME_DIR=str(runtime))
    front.do("pretend", cgroup=SERVICE)
    return front


def told(place: Place) -> list[dict[str, Any]]:
    events = [json.loads(line) for line in place.slot.events.read_text().splitlines()]
    return [event for event in events if event["what"] == "warden's unit"]


RUNS_IT = 'while [ "$1" != -- ]; do shift; done; shift; exec "$@"'


@pytest.mark.long
def test_a_warden_that_a_service_starts_is_put_into_a_scope_of_its_own(place: Place) -> None:
    front = inside(place, RUNS_IT)
    assert front.open() == "build"
    family = place.family()
    (asked,) = (place.home / "asked").read_text().splitlines()
    assert asked.startswith(f"{place.home / 'runtime'} --user --scope ")
    assert f"detach_stub.py {place.slot.warden_log}" in asked
    (event,) = told(place)
    assert (event["out_of"], f"--unit={event['unit']}" in asked) == ("notebook.service", True)
    assert place.snapshot()["warden"]["cgroup"] == units.cgroup_of(family.warden.pid)
    # Who comes next binds, and asks nobody for a unit; the verdict is the warden's own.
    place.member("second")
    assert len((place.home / "asked").read_text().splitlines()) == 1
    with Deaths(family.everybody) as deaths:
        for one in place.fronts:
            one.end()
        deaths.wait()


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("echo Failed to connect to bus: No medium found >&2; exit 1", "Failed to connect to bus: No medium found"),
        pytest.param("exec sleep 600", f"no answer within {budgets.UNIT_WAIT:g} s", marks=pytest.mark.long),
    ],
    ids=["refused", "silent"],
)
def test_where_no_scope_is_to_be_had_it_is_started_without_one(place: Place, script: str, why: str) -> None:
    front = inside(place, script)
    assert front.open() == "build"
    place.family()
    (event,) = told(place)
    assert (event["unit"], event["inside"], event["why"]) == (None, "notebook.service", why)
    assert control.ask(place.slot, "status")["warden"]["keeper_crashes"] == 0
    assert "another warden" not in place.slot.warden_log.read_text()
