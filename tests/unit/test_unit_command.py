"""`queenright unit`: what it prints, against the budgets and against systemd's own reader where there is one."""

from __future__ import annotations

import configparser
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from supervisor import budgets, cli
from supervisor.commands import unit
from supervisor.devices import reservations
from supervisor.errors import ExitCode, UsageError
from workers import cache, engines, estimator

if TYPE_CHECKING:
    from collections.abc import Mapping


def facts(text: str) -> Mapping[str, str]:
    parser = configparser.RawConfigParser(strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(text)
    return parser["Service"]


def service(*, system: bool = False) -> str:
    return unit.service_unit("/opt/q r/queenright", ["--config", "/e/100%/$x.toml"], {"PATH": "/bin"}, system=system)


@pytest.mark.parametrize("system", [False, True], ids=["user", "system"])
def test_sslh_168_a_stop_of_the_unit_ends_all_of_it__and_not_before_the_engine_could(system: bool) -> None:
    found = facts(service(system=system))
    assert found["KillMode"] == "mixed"
    assert float(found["TimeoutStopSec"]) > budgets.WARDEN_STOP + budgets.SWEEP_LIMIT
    assert float(found["TimeoutStartSec"]) > budgets.NOTIFY_EXTENSION  # else it ends before the first extension
    longest = budgets.KEEPER_SILENCE + 2 * budgets.KEEPER_LOOK + budgets.KEEPER_DELAYS[-1] + budgets.CONTROL_WAIT
    assert float(found["WatchdogSec"]) > longest
    assert (found["Type"], found["NotifyAccess"]) == ("notify", "main")


def test_a_wrong_configuration_is_not_tried_again_and_a_slot_in_use_is() -> None:
    found = facts(service())
    codes = {int(word) for word in found["RestartPreventExitStatus"].split()}
    assert ExitCode.USAGE in codes
    assert ExitCode.OWNED_ELSEWHERE not in codes
    assert found["Restart"] == "on-failure"
    assert "StartLimitIntervalSec=0\n" in service()


@pytest.mark.parametrize("system", [False, True], ids=["user", "system"])
def test_it_shuts_off_nothing_that_an_engine_needs(system: bool) -> None:
    breaks = {"PrivateDevices", "DevicePolicy", "ProtectProc", "PrivateTmp", "ProtectHome", "NoNewPrivileges",
              "MemoryDenyWriteExecute", "PrivateNetwork", "PrivatePIDs", "RestrictAddressFamilies"}  # fmt: skip
    assert not breaks & set(facts(service(system=system)))


def test_words_reach_the_command_as_they_are() -> None:
    found = facts(service())
    assert found["ExecStart"] == '"/opt/q r/queenright" "run" "--config" "/e/100%%/$$x.toml"'
    assert found["ExecReload"] == '"/opt/q r/queenright" "apply" "--config" "/e/100%%/$$x.toml"'
    assert unit.quoted('a"b\\') == '"a\\"b\\\\"'
    with pytest.raises(UsageError, match="line break"):
        unit.quoted("a\nb")


@pytest.mark.parametrize(
    ("listen", "stream"),
    [("127.0.0.1:11411", "127.0.0.1:11411"), ("localhost:80", "127.0.0.1:80"), ("[::1]:9", "[::1]:9")],
)
def test_the_socket_unit_listens_where_the_gateway_would(listen: str, stream: str) -> None:
    assert f"\nListenStream={stream}\n" in unit.socket_unit(listen)


def configured(folder: Path, gateway: str = "") -> str:
    path = folder / "queenright.toml"
    path.write_text(f"{gateway}\n[groups.chat]\n[[groups.chat.launches]]\nrole = 'chat'\nmodel = '/models/none.gguf'\n")
    return str(path)


def test_the_command_fills_the_paths_in(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = configured(tmp_path)
    assert cli.main(["unit", "--config", path, "--slot", str(tmp_path / "s"), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    program = Path(sys.executable).with_name("queenright")
    assert f'ExecStart="{program}" "run" "--config" "{path}" "--slot" "{tmp_path / "s"}"\n' in said["text"]
    assert said["path"].endswith("/systemd/user/queenright.service")


def test_a_service_finds_the_binaries_and_models_that_the_shell_finds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine of another build would be shared with none of the shell's programs."""
    monkeypatch.chdir(tmp_path)
    named = {
        engines.LLAMA_SERVER_VARIABLE: "build/llama-server",
        engines.LLAMA_SWAP_VARIABLE: "llama-swap",
        cache.CACHE_VARIABLE: "/srv/models",
        estimator.VARIABLE: "none",
        reservations.VARIABLE: "~/book",
    }
    text = unit.service_unit("/bin/queenright", [], named | {"PATH": "/opt/a:/bin", "OTHER": "1"}, system=False)
    given = dict(line.removeprefix('Environment="').rstrip('"').split("=", 1) for line in environment_lines(text))
    assert given == named | {
        "PATH": "/opt/a:/bin",
        engines.LLAMA_SERVER_VARIABLE: str(tmp_path / "build" / "llama-server"),
        reservations.VARIABLE: str(Path("~/book").expanduser()),
    }


def environment_lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("Environment=")]


def test_a_socket_for_a_gateway_that_is_off_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = configured(tmp_path, "[gateway]\nenabled = false")
    assert cli.main(["unit", "--config", path, "--socket"]) == ExitCode.USAGE
    assert "switched off" in capsys.readouterr().err


@pytest.mark.process
@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd-analyze is not here")
@pytest.mark.parametrize("manager", ["--user", "--system"])
def test_systemd_reads_it_without_a_complaint(tmp_path: Path, manager: str) -> None:
    service_text = unit.service_unit("/bin/true", ["--config", "/a b"], {"PATH": "/bin"}, system=manager == "--system")
    (tmp_path / "queenright.service").write_text(service_text)
    (tmp_path / "queenright.socket").write_text(unit.socket_unit("127.0.0.1:11411"))
    done = subprocess.run(
        [
            "systemd-analyze",
            manager,
            "verify",
            str(tmp_path / "queenright.service"),
            str(tmp_path / "queenright.socket"),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path)},
    )
    complaints = [line for line in (done.stdout + done.stderr).splitlines() if "queenright." in line]
    assert not complaints


@pytest.mark.parametrize("listen", ["example.org:11411", "127.0.0.1:0"])
def test_an_address_that_no_socket_unit_can_have_is_refused(listen: str) -> None:
    with pytest.raises(UsageError, match=r"gateway\.listen"):
        unit.socket_unit(listen)
