"""The kind `attached`: what it makes of a configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from supervisor import config, resolving
from supervisor.errors import ConfigError
from workers.attachment import Unit

if TYPE_CHECKING:
    from pathlib import Path

    from supervisor.contract import GroupSpec

LAUNCH = '[[groups.theirs.launches]]\nrole = "theirs"\nmodel = "m"\n'


def spec_of(folder: Path, options: str, launch: str = LAUNCH) -> GroupSpec:
    text = f'[groups.theirs]\nkind = "attached"\n[groups.theirs.options]\n{options}\n{launch}'
    (group,) = resolving.resolve(config.parse(text, folder / "queenright.toml")).groups
    return group


def test_clients_go_to_the_server_itself_and_its_start_has_no_limit(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("k")
    spec = spec_of(tmp_path, 'url = "http://gpu-box:8000"\nkey_file = "key"')
    assert (spec.url, spec.key_file, spec.is_outside) == ("http://gpu-box:8000", str(tmp_path / "key"), False)
    assert spec.start_limit_s > 31_536_000


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("", "options.url: expected http://HOST:PORT"),
        ('url = "http://gpu-box"', "options.url: expected http://HOST:PORT"),
        ('url = "https://gpu-box:1"', "options.url: expected http://HOST:PORT"),
        ('url = "http://gpu-box:1/v1"', "options.url: expected http://HOST:PORT"),
        ('url = "http://gpu-box:99999"', "options.url: expected http://HOST:PORT"),
        ('url = "http://b:1"\nhealth = "x"', "options.health: expected a path"),
        ('url = "http://b:1"\nkey_file = "none"', "options.key_file: there is no file"),
        ('url = "http://b:1"\nunit = "vllm"', "options.unit: expected the name of a systemd service"),
        ('url = "http://b:1"\nunit = "-H.service"', "options.unit: expected the name of a systemd service"),
        ('url = "http://b:1"\nulr = "x"', "options.ulr: unknown key; expected `url`?"),
    ],
)
def test_what_is_wrong_is_said(options: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as raised:
        spec_of(tmp_path, options)
    assert says in str(raised.value)


def test_what_it_cannot_do_to_somebody_elses_server_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is not started by us"):
        spec_of(tmp_path, 'url = "http://b:1"', LAUNCH + "idle_ttl_s = 5\n")


def test_a_group_without_a_unit_is_what_it_was_before_there_were_units(tmp_path: Path) -> None:
    assert spec_of(tmp_path, 'url = "http://b:1"').options == {"health": "/health"}
    assert spec_of(tmp_path, 'url = "http://b:1"\nunit = "vllm@0.service"').options["unit"] == "vllm@0.service"


SYSTEMCTL = """#!/bin/sh
echo "$@" >> {home}/asked
[ -e {home}/away ] && exit 1
cat {home}/$1
"""


@pytest.fixture
def systemd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A systemctl whose managers say what stands in files named after their option."""
    (tmp_path / "systemctl").write_text(SYSTEMCTL.format(home=tmp_path))
    (tmp_path / "systemctl").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    (tmp_path / "--user").write_text("LoadState=not-found\nActiveState=inactive\n")
    return tmp_path


def says(systemd: Path, active: str, sub: str = "running", result: str = "success", invocation: str = "one") -> None:
    (systemd / "--system").write_text(
        f"LoadState=loaded\nActiveState={active}\nSubState={sub}\nResult={result}\nMainPID=7\nInvocationID={invocation}\n"
    )


@pytest.mark.process
def test_a_unit_is_up_while_systemd_says_so_and_its_end_has_systemds_words(systemd: Path) -> None:
    unit = Unit("vllm.service")
    says(systemd, "activating", "start")
    assert unit.trouble(often=True) == "vllm.service is activating (start)"
    says(systemd, "active")
    assert unit.trouble(often=True) == ""
    says(systemd, "failed", "failed", "oom-kill")
    assert unit.trouble(often=False) == ""  # it was asked a moment ago
    assert unit.trouble(often=True) == "vllm.service is failed (failed, oom-kill)"
    says(systemd, "active", invocation="two")
    assert unit.trouble(often=True) == "vllm.service was started anew (pid 7)"
    (systemd / "--system").write_text("LoadState=not-found\n")
    assert unit.trouble(often=True) == "there is no unit vllm.service"
    asked = (systemd / "asked").read_text()
    assert all(" show " in line and line.endswith(" -- vllm.service") for line in asked.splitlines())  # it only looks


@pytest.mark.process
def test_what_systemd_does_not_say_counts_for_nothing(systemd: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (systemd / "away").touch()
    assert Unit("vllm.service").trouble(often=True) == ""
    monkeypatch.setenv("PATH", "/nowhere")
    assert Unit("vllm.service").trouble(often=True) == ""
    assert Unit("").trouble(often=True) == ""


@pytest.mark.process
def test_a_manager_that_is_silent_is_not_spoken_for_by_the_other(systemd: Path) -> None:
    """systemd that is executed anew does not answer for a second: the server is no less there."""
    unit = Unit("vllm.service")
    says(systemd, "active")
    assert unit.trouble(often=True) == ""
    (systemd / "--system").rename(systemd / "kept")  # cat fails: so does systemctl
    assert unit.trouble(often=True) == ""
    (systemd / "kept").rename(systemd / "--system")
    says(systemd, "failed", "failed")
    assert unit.trouble(often=True) == "vllm.service is failed (failed)"
    unit.forget()
    (systemd / "--system").rename(systemd / "--user")
    says(systemd, "active")
    assert unit.trouble(often=True) == "vllm.service is failed (failed)"
    (systemd / "--user").unlink()
    (systemd / "--system").write_text("LoadState=not-found\n")
    assert unit.trouble(often=True) == ""
