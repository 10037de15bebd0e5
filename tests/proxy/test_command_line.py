"""Flags, configuration errors, exit codes."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from tests.support import ROOT, end, free_port

if TYPE_CHECKING:
    from pathlib import Path

    from tests.proxy.rig import Rig

pytestmark = pytest.mark.process


def run(rig: Rig, *words: str | Path) -> subprocess.CompletedProcess[str]:
    """Run the proxy to its end."""
    return subprocess.run(
        [*rig.kind.command, *map(str, words)],
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
        env=rig.marker.env,
    )


def test_version(rig: Rig) -> None:
    for flag in ("-version", "--version"):
        done = run(rig, flag)
        assert done.returncode == 0
        assert done.stdout.startswith("version: ")


def test_a_flag_it_does_not_know_is_exit_2(rig: Rig) -> None:
    done = run(rig, "-nope")
    assert done.returncode == 2
    assert "flag provided but not defined: -nope" in done.stderr


@pytest.mark.parametrize("words", [[], ["-config", "/no/such/file.json"]])
def test_no_configuration_is_exit_1(rig: Rig, words: list[str]) -> None:
    done = run(rig, *words, "-listen", f"127.0.0.1:{free_port()}")
    assert done.returncode == 1
    assert "Traceback" not in done.stderr


def test_a_taken_port_is_exit_1(rig: Rig) -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        done = run(rig, "-config", rig.config(rig.model("a")), "-listen", f"127.0.0.1:{port}")
    assert done.returncode == 1
    assert "ddress already in use" in done.stderr


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"healthCheckTimeoutt": 3}, "healthCheckTimeoutt: unknown key; did you mean 'healthCheckTimeout'?"),
        ({"models": {"a": {"cmd": "x", "proxy": "http://h:1", "tttl": 1}}}, "models.a.tttl: unknown key"),
        ({"models": {"a": {"proxy": "http://h:1"}}}, "models.a.cmd: expected a string"),
        ({"models": {"a": {"cmd": "x"}}}, "models.a.proxy: expected a string"),
        ({"models": {"a": {"cmd": "x", "proxy": "unix:/x"}}}, "models.a.proxy: expected http://HOST:PORT"),
        ({"models": {"a": {"cmd": "x ${PORT}", "proxy": "http://h:1"}}}, "macro"),
        ({"models": {"a": {"cmd": "x '", "proxy": "http://h:1"}}}, "models.a.cmd: cannot be split"),
        ({"models": {"a": {"cmd": "x", "proxy": "http://h:1", "ttl": True}}}, "models.a.ttl: expected a number"),
        ({"models": {"a": {"cmd": "x", "proxy": "http://h:1", "env": ["X"]}}}, "models.a.env: expected NAME=VALUE"),
        ({"models": []}, "models: expected an object"),
        ({"groups": {"g": {"members": ["a"]}}}, "groups.g.members: there is no model 'a'"),
        ({"apiKeys": [""]}, "apiKeys: an empty key"),
        ({"logLevel": "loud"}, "logLevel: expected one of"),
        (
            {"models": {n: {"cmd": "x", "proxy": "http://h:1"} for n in "ab"}},
            "models.b.proxy: port 1 is already that of 'a'",
        ),
        ("models: {}", "not JSON"),
    ],
)
def test_a_wrong_configuration_is_named_and_exit_1(built_in: Rig, tmp_path: Path, change: Any, named: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(change if isinstance(change, str) else json.dumps(change))
    done = run(built_in, "-config", path, "-listen", f"127.0.0.1:{free_port()}")
    assert done.returncode == 1
    assert named in done.stderr
    assert str(path) in done.stderr
    assert "Traceback" not in done.stderr


def test_an_unknown_key_in_either(rig: Rig) -> None:
    port = free_port()
    config = str(rig.config(rig.model("a"), nope=1))
    words = [*rig.kind.command, "-config", config, "-listen", f"127.0.0.1:{port}"]
    process = subprocess.Popen(words, env=rig.marker.env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    if rig.kind.traits.unknown_keys_refused:
        assert process.wait(20) == 1
    else:
        rig.adopt(process, port)
        assert end(process) == 0


def test_it_runs_as_a_module_from_any_directory(built_in: Rig, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "workers.proxy", "-version"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("version: builtin-")


def test_by_path_it_takes_nothing_from_the_working_directory(built_in: Rig, tmp_path: Path) -> None:
    for name in ("workers", "supervisor", "trio", "h11"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit(9)")
    done = subprocess.run(
        [*built_in.kind.command, "-version"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("version: builtin-")
    assert (ROOT / "workers").is_dir()
