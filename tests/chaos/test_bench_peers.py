"""The bench of peers: its sums, what it shows, how each peer is told, and that it runs. No figure is asserted."""

from __future__ import annotations

import io
import json
import os
import shlex
import subprocess
import sys
from contextlib import redirect_stdout
from typing import TYPE_CHECKING

import pytest

from chaos import bench, bench_peers, peers, peers_report, peers_rig
from chaos.bench_peers import Sample, lines
from chaos.bench_rig import NotMeasuredError
from chaos.peers import FLOOR, OURS, PEERS, Work
from supervisor import config, resolving
from supervisor.errors import UsageError
from tests.support import ROOT

if TYPE_CHECKING:
    from pathlib import Path

SAMPLES = [
    *(Sample("recovery", "SIGKILL to healthy", OURS, float(value), "ms") for value in (6, 5, 40)),
    *(Sample("recovery", "SIGKILL to healthy", FLOOR, value, "ms") for value in (2.0, 4.0, 3.0)),
    *(Sample("recovery", "SIGKILL to healthy", "runit", value, "ms") for value in (None, 5.0, None)),
    Sample("orphans", "left of a killed child", FLOOR, 1.0, ""),
    Sample("orphans", "left of a killed child", OURS, 0.0, ""),
    Sample("hang", "SIGSTOP to healthy", OURS, None, "s"),
]


def test_samples_are_summed_up_by_peer_and_what_never_came_is_later_than_all() -> None:
    ours, floor, runit, *_ = lines(SAMPLES)
    assert (ours.middle, ours.late, ours.n, ours.ratio) == (6.0, 40.0, 3, 2.0)
    assert (floor.middle, floor.late, floor.ratio) == (3.0, 4.0, 1.0)
    assert (runit.middle, runit.late, runit.ratio) == (None, None, None)


def test_only_ours_has_a_goal_and_never_misses_it() -> None:
    assert [(line.what, line.verdict) for line in lines(SAMPLES) if line.verdict] == [
        ("SIGKILL to healthy", "met"),
        ("left of a killed child", "met"),
        ("SIGSTOP to healthy", "missed"),
    ]


def test_the_table_of_plain_text() -> None:
    assert peers_report.plain(lines(SAMPLES)).splitlines() == [
        "what                    who             median   p95       bare loop  goal               n",
        "SIGKILL to healthy      queenright      6.00 ms  40.00 ms  2.00       <= 8.00 ms: met    3",
        "                        bare trio loop  3.00 ms  4.00 ms   1.00       -                  3",
        "                        runit           never    never     -          -                  3",
        "left of a killed child  queenright      0        -         -          <= 0: met          1",
        "                        bare trio loop  1        -         -          -                  1",
        "SIGSTOP to healthy      queenright      never    -         -          <= 5.00 s: missed  1",
    ]


def test_what_is_told_names_the_children_and_who_was_left_out() -> None:
    said = io.StringIO()
    with redirect_stdout(said):
        peers_report.tell(lines(SAMPLES), {"pm2": "not on PATH"}, "children in C")
    first, *_, last = said.getvalue().splitlines()
    assert (first, last) == ("children in C", "pm2: not measured: not on PATH")


def test_every_goal_is_of_something_that_is_measured() -> None:
    assert set(bench_peers.GOALS) >= {line.what for line in lines(SAMPLES)}
    assert bench_peers.GOALS["stop of 4 that ignore SIGTERM"] > bench_peers.GRACE


@pytest.mark.parametrize("peer", PEERS, ids=lambda peer: peer.name)
def test_each_peer_is_told_of_every_child(peer: peers.Peer, tmp_path: Path) -> None:
    work = Work(tmp_path, ("/bin/dummy", "--x"), (5001, 5002), 2.5)
    argv = peer.prepare(work, [f"/opt/{tool}" for tool in peer.tools])
    said = shlex.join(argv) + "".join(path.read_text() for path in tmp_path.rglob("*") if path.is_file())
    for port in work.ports:
        assert str(port) in said
    assert "/bin/dummy" in said


def test_ours_is_a_configuration_that_can_be_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUEENRIGHT_CACHE", str(tmp_path / "cache"))
    work = Work(tmp_path, (sys.executable, "--x"), (5001, 5002), 2.5)
    *_, path = PEERS[0].prepare(work, [])
    spec = resolving.resolve(config.load(tmp_path / "queenright.toml"))
    assert path == str(tmp_path / "queenright.toml")
    assert [(group.name, group.grace_s) for group in spec.groups] == [("g5001", 2.5), ("g5002", 2.5)]


def test_a_peer_is_found_on_path_or_where_its_variable_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "runsvdir"
    tool.write_text("#!/bin/sh\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(NotMeasuredError, match="runsvdir: not on PATH"):
        peers.find("runit", "runsvdir")
    for named in (tmp_path, tool):
        monkeypatch.setenv("QUEENRIGHT_BENCH_RUNIT", str(named))
        assert peers.find("runit", "runsvdir") == str(tool)
    monkeypatch.setenv("QUEENRIGHT_BENCH_RUNIT", str(tmp_path / "none"))
    with pytest.raises(NotMeasuredError, match="QUEENRIGHT_BENCH_RUNIT is"):
        peers.find("runit", "runsvdir")


def test_a_cell_or_configuration_that_is_not_for_peers_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main(["peers", "--only", "version"]) == int(UsageError.exit_code)
    assert "recovery, cold, stop" in capsys.readouterr().err
    assert bench.main(["peers", "--config", "x.toml"]) == int(UsageError.exit_code)


@pytest.mark.process
def test_without_a_compiler_the_children_are_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    program, what = peers_rig.dummy(tmp_path)
    assert program[0] == sys.executable
    assert "no compiler" in what


@pytest.mark.long
@pytest.mark.process
def test_it_runs_and_nothing_is_left(tmp_path: Path) -> None:
    """With no peer but the bare loop: PATH has the compiler's directories, the variables name nobody."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("QUEENRIGHT_BENCH_")}
    nobody = {peers.variable_of(peer.name.replace(" ", "_")): "/nowhere" for peer in PEERS}
    done = subprocess.run(
        [sys.executable, "-m", "chaos.bench", "peers", "--only", "recovery,orphans", "--pairs", "1", "--json"],
        cwd=ROOT,
        env=environment | nobody | {"TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    data = json.loads(done.stdout)
    assert set(data["skipped"]) == {peer.name for peer in PEERS} - {OURS, FLOOR}
    by_peer = {(line["what"], line["peer"]): line for line in data["lines"]}
    assert by_peer["SIGKILL to healthy", OURS]["n"] == bench_peers.FEW
    assert by_peer["SIGKILL to healthy", OURS]["middle"] > 0
    assert by_peer["left of a killed child", OURS]["middle"] == 0
    assert by_peer["left of a killed child", FLOOR]["middle"] == 1
    assert not list(tmp_path.iterdir())
