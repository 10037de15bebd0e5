"""Which systemd unit a process is in, and whether there is a way out of it."""

from __future__ import annotations

import os
import pwd
from typing import TYPE_CHECKING

import pytest

from supervisor import identity, units

if TYPE_CHECKING:
    from pathlib import Path

V2 = "0::{}\n"
V1 = "12:pids:{0}\n11:memory:/user.slice\n3:cpu,cpuacct:/\n1:name=systemd:{0}\n"
HYBRID = "5:memory:/\n1:name=systemd:{0}\n0::{0}\n"
HYBRID_IN_PART = "4:memory:/pod/1\n1:name=systemd:/\n0::{}\n"

USER = "/user.slice/user-1000.slice/user@1000.service"


@pytest.mark.parametrize("text", [V2, V1, HYBRID, HYBRID_IN_PART], ids=["v2", "v1", "hybrid", "half"])
@pytest.mark.parametrize("path", ["/", "/system.slice/web.service", f"{USER}/app.slice/a:b.scope"])
def test_the_path_is_that_of_systemds_hierarchy(text: str, path: str) -> None:
    assert units.systemd_path(text.format(path)) == path


@pytest.mark.parametrize("text", ["", "\n", "nonsense", "7:pids:/x\n", "0:\n"])
def test_where_there_is_no_systemd_there_is_no_path(text: str) -> None:
    assert units.systemd_path(text) == ""


def test_a_process_that_is_gone_is_in_no_unit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identity, "PROC", str(tmp_path))
    assert units.cgroup_of(1) == ""


PATHS = {
    "/system.slice/web.service": "web.service",
    "/system.slice/system-worker.slice/worker@3.service": "worker@3.service",
    "/system.slice/web.service/own/deeper": "web.service",
    f"{USER}/app.slice/notebook.service": "notebook.service",
    f"{USER}/app.slice/app-vscode.service/inner.scope": "app-vscode.service",
    f"{USER}/app.slice/run-r1.scope": "",
    f"{USER}/app.slice/queenright-01ab.scope": "",
    f"{USER}/init.scope": "",
    "/user.slice/user-1000.slice/session-3.scope": "",
    "/system.slice/docker-0123456789.scope": "",
    "/docker/0123456789": "",
    "/kubepods/burstable/pod1/0123": "",
    "/init.scope": "",
    "/": "",
    "": "",
}


@pytest.mark.parametrize("path", PATHS)
def test_a_service_is_what_can_be_stopped_around_us(path: str) -> None:
    assert units.service_around(path) == PATHS[path]


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """Of a user whose manager can be asked."""
    (tmp_path / "run" / "systemd").mkdir(parents=True)
    (tmp_path / "run" / "systemd" / "private").touch()
    program = tmp_path / "systemd-run"
    program.touch(mode=0o755)
    return {"XDG_RUNTIME_DIR": str(tmp_path / "run"), "PATH": str(tmp_path)}


SERVICE = f"{USER}/app.slice/notebook.service"


def test_out_of_a_service_leads_a_scope_by_the_users_manager(environ: dict[str, str]) -> None:
    way = units.way_out(SERVICE, environ)
    assert way is not None
    assert way.words[:3] == [f"{environ['PATH']}/systemd-run", "--user", "--scope"]
    assert way.words[-1] == "--"
    assert f"--unit={way.unit}" in way.words
    assert way.unit.startswith(units.OURS)
    assert (way.service, way.environment["XDG_RUNTIME_DIR"]) == ("notebook.service", environ["XDG_RUNTIME_DIR"])
    again = units.way_out(SERVICE, environ)
    assert again is not None
    assert again.unit != way.unit, "an earlier engine's scope may still be there"


@pytest.mark.parametrize("path", [path for path, service in PATHS.items() if not service])
def test_nobody_leaves_what_is_no_service(environ: dict[str, str], path: str) -> None:
    assert units.way_out(path, environ) is None


@pytest.mark.parametrize("missing", ["manager", "program"])
def test_without_a_manager_or_its_program_there_is_no_way(environ: dict[str, str], missing: str) -> None:
    name = "run/systemd/private" if missing == "manager" else "systemd-run"
    os.unlink(f"{environ['PATH']}/{name}")
    assert units.way_out(SERVICE, environ) is None


@pytest.mark.parametrize("lingers", [True, False])
def test_out_of_a_systems_service_only_where_the_users_manager_stays(
    environ: dict[str, str], monkeypatch: pytest.MonkeyPatch, lingers: bool
) -> None:
    monkeypatch.setattr(units, "lingers", lambda: lingers)
    assert (units.way_out("/system.slice/web.service", environ) is not None) is lingers


def test_a_user_lingers_where_systemd_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(units, "LINGER", tmp_path)
    assert not units.lingers()
    (tmp_path / pwd.getpwuid(os.getuid()).pw_name).touch()
    assert units.lingers()
