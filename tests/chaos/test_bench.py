"""The bench: its arithmetic, what it shows, and that it runs. No figure is asserted anywhere: the machine is busy."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaos import bench, bench_cells, bench_report, bench_rig, measuring
from chaos.measuring import Figure
from supervisor import cli, locks
from supervisor.errors import UsageError
from tests.engine.kit import Kit, make_kit
from tests.leak_check import MARKER
from tests.support import RAN, ROOT, Marker, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

TIMES = st.floats(0.001, 10)
PAIRS = st.lists(st.tuples(TIMES, TIMES), min_size=1, max_size=12)


# --- the arithmetic -------------------------------------------------------------------------------------------------


def test_a_ratio_is_taken_within_each_pair() -> None:
    # The third pair was taken while the machine was busy: both took ten times as long, and it says the same.
    figure = measuring.ratio_figure("c", "ours", "base", [(2.0, 1.0), (4.0, 2.0), (20.0, 10.0)])
    assert (figure.value, figure.low, figure.high) == (2.0, 2.0, 2.0)
    assert figure.ours == (2.0, 4.0, 20.0)
    assert figure.base == (1.0, 2.0, 10.0)


def test_it_is_the_median_of_the_ratios_and_not_the_ratio_of_the_medians() -> None:
    pairs = [(1.0, 1.0), (6.0, 2.0), (8.0, 4.0)]
    assert measuring.ratio_figure("c", "o", "b", pairs).value == 2.0  # of 1, 3, 2; the medians would say 3


def test_the_interval_of_a_known_sample() -> None:
    # By hand: of all 27 samples of three with replacement, 7 have the median 1 (those with two or three ones): more
    # than 2.5 %, so the interval reaches both ends.
    assert measuring.interval([1.0, 2.0, 3.0]) == (1.0, 3.0)
    assert measuring.interval([5.0]) == (5.0, 5.0)


def test_the_interval_leaves_out_a_single_outlier() -> None:
    low, high = measuring.interval([*(1 + number / 100 for number in range(30)), 50.0])
    assert 1.0 < low < 1.15 < high < 1.3


def test_the_same_times_give_the_same_interval_and_another_seed_may_not() -> None:
    values = [float(number * number % 37) for number in range(20)]
    assert measuring.interval(values) == measuring.interval(values)
    few = {measuring.interval(values, seed=seed, resamples=20) for seed in range(10)}
    assert len(few) > 1


@given(PAIRS)
def test_the_interval_lies_about_the_median_and_within_the_values(pairs: list[tuple[float, float]]) -> None:
    ratios = measuring.paired_ratios(pairs)
    low, high = measuring.interval(ratios, resamples=400)
    assert min(ratios) <= low <= median(ratios) <= high <= max(ratios)


@given(PAIRS, st.sampled_from([0.5, 2.0, 1024.0]))
def test_a_machine_so_much_slower_gives_the_same_ratio(pairs: list[tuple[float, float]], slower: float) -> None:
    there = [(ours * slower, base * slower) for ours, base in pairs]
    assert measuring.paired_ratios(there) == measuring.paired_ratios(pairs)


def test_what_cannot_be_a_figure_is_refused() -> None:
    with pytest.raises(ValueError, match="nothing was measured"):
        measuring.ratio_figure("c", "o", "b", [])
    with pytest.raises(ValueError, match="cannot be compared"):
        measuring.ratio_figure("c", "o", "b", [(1.0, 0.0)])


def test_both_sides_are_measured_in_turn() -> None:
    order: list[str] = []
    done: list[int] = []

    def side(name: str, took: float) -> float:
        order.append(name)
        return took

    found = measuring.in_turn(lambda: side("a", 2.0), lambda: side("b", 1.0), 3, done.append)
    assert order == ["a", "b"] * 3
    assert done == [1, 2, 3]
    assert found == [(2.0, 1.0)] * 3


@pytest.mark.parametrize(
    ("low", "value", "high", "goal", "verdict"),
    [
        (1.0, 2.0, 3.0, 5.0, "met"),
        (1.0, 2.0, 3.0, 2.5, "met, but not surely"),
        (1.0, 2.0, 3.0, 2.0, "met, but not surely"),
        (1.0, 2.0, 3.0, 1.5, "missed, but not surely"),
        (1.0, 2.0, 3.0, 0.5, "missed"),
        (1.0, 2.0, 3.0, 3.0, "met"),
        (1.0, 2.0, 3.0, None, ""),
    ],
)
def test_the_verdict(low: float, value: float, high: float, goal: float | None, verdict: str) -> None:
    assert Figure("c", "n", "a", measuring.RATIO, value, low, high, goal, (), ()).verdict == verdict


# --- what is shown --------------------------------------------------------------------------------------------------

FIGURES = [
    measuring.ratio_figure("version", "queenright version", "python -c pass", [(0.02, 0.01), (0.03, 0.01)], goal=5),
    measuring.ratio_figure("recovery", "healthy again", "started bare", [(1.5, 1.0)], goal=1.25),
    measuring.amount("memory", "keeper, PSS", measuring.MEBIBYTES, [30.04]),
    measuring.amount("idle", "keeper", measuring.PERCENT, [0.125, 0.25], goal=0.5),
]
HERE = bench_report.Machine(cores=4, python="CPython 3.11.0", kernel="Linux 6.1 x86_64", load=0.5)


def test_the_table_of_plain_text() -> None:
    assert bench_report.plain(FIGURES).splitlines() == [
        "cell      what                takes     against         takes    ratio  95 % interval  goal             n",
        "version   queenright version  25.0 ms   python -c pass  10.0 ms  2.50   2.00 to 3.00   <= 5: met        2",
        "recovery  healthy again       1.50 s    started bare    1.00 s   1.50   -              <= 1.25: missed  1",
        "memory    keeper, PSS         30.0 MiB  -               -        -      -              -                1",
        "idle      keeper              0.19 %    -               -        -      0.12 to 0.25   <= 0.5: met      2",
    ]


def test_the_table_of_a_terminal_says_the_same_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    shown = io.StringIO()
    bench_report.on_terminal(FIGURES, shown)
    assert shown.getvalue().split() == bench_report.plain(FIGURES).split()


def test_the_data_has_every_time_that_was_taken() -> None:
    data = json.loads(json.dumps(bench_report.as_data(HERE, None, FIGURES, {"recovery": "no llama-server"})))
    assert data["machine"] == {**data["machine"], "cores": 4, "load": 0.5, "warning": ""}
    assert data["pair"] is None
    assert data["figures"][0]["ours"] == [0.02, 0.03]
    assert [figure["verdict"] for figure in data["figures"]] == ["met", "missed", None, "met"]
    assert data["skipped"] == {"recovery": "no llama-server"}


def test_a_busy_machine_is_named_one() -> None:
    assert bench_report.Machine(4, "", "", load=2.0).warning == ""
    assert "busy" in bench_report.Machine(4, "", "", load=2.1).warning
    assert bench_report.machine().cores >= 1


def test_progress_is_told_in_lines_where_there_is_no_terminal() -> None:
    said = io.StringIO()
    with bench_report.Teller(said) as tell:
        for done in range(4):
            tell("version", done, 3)
    assert said.getvalue().splitlines() == ["bench: version, 0 of 3", "bench: version, 3 of 3"]


# --- the command ----------------------------------------------------------------------------------------------------


def test_an_unknown_cell_is_refused_with_those_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main(["--only", "version,speed"]) == int(UsageError.exit_code)
    said = capsys.readouterr().err
    assert "'speed'" in said
    assert "version, status, direct, bind, exec, members, recovery, keeper, memory, idle" in said


@pytest.mark.parametrize("number", ["0", "-1", "many", "10001"])
def test_a_number_of_pairs_that_is_none_is_refused(number: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        bench.main([f"--pairs={number}"])
    assert ended.value.code == 2
    assert "from 1 to 10000" in capsys.readouterr().err


def test_a_cell_that_was_named_and_cannot_be_measured_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("QUEENRIGHT_LLAMA_SERVER", str(tmp_path / "none"))
    assert bench.main(["--only", "recovery"]) == 1
    assert str(tmp_path / "none") in capsys.readouterr().err


@pytest.mark.long
@pytest.mark.process
def test_cells_that_need_an_engine_are_left_out_where_there_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("QUEENRIGHT_LLAMA_SERVER", str(tmp_path / "none"))
    assert bench.main(["--pairs", "1", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    names = [figure["name"] for figure in data["figures"] if figure["cell"] != "direct"]
    assert names == ["queenright version", "queenright status, no engine", "count of 1000"]
    assert len(data["figures"]) == len(names) + 4
    assert set(data["skipped"]) == {"status, engine runs", "bind", "exec", "recovery", "keeper", "memory", "idle"}


@pytest.mark.process
def test_it_runs_by_itself_and_leaves_nothing_behind(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "chaos.bench", "--only", "version", "--pairs", "2"],
        cwd=ROOT,
        env=os.environ | {"TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    machine, *_, head, row = done.stdout.splitlines()
    assert "cores" in machine
    assert "load average" in machine
    assert head.split()[0] == "cell"
    assert row.startswith("version  queenright version")
    assert row.endswith("2")
    assert "version, 2 of 2" in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.process
def test_a_child_that_fails_is_not_timed(tmp_path: Path) -> None:
    words = [sys.executable, "-c", "import sys; sys.exit('out of honey')"]
    with pytest.raises(bench_rig.NotMeasuredError, match="exit status 1, expected 0: out of honey"):
        bench_rig.child_seconds(words, os.environ, tmp_path)


def test_children_write_bytecode_and_look_at_no_slot_of_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.setenv("QUEENRIGHT_SLOT", "/somebody/elses")
    environment = bench_rig.child_environment(tmp_path)
    assert "PYTHONDONTWRITEBYTECODE" not in environment
    assert environment["QUEENRIGHT_SLOT"] == str(tmp_path)


# --- with an engine, of fake servers ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def kit(tmp_path_factory: pytest.TempPathFactory) -> Kit:
    return make_kit(tmp_path_factory.mktemp("bench-kit"))


@pytest.fixture
def home() -> Iterator[Path]:
    """A short directory for what the bench makes, with a configuration in it; and no process may be left."""
    path = Path(tempfile.mkdtemp(prefix="qb-", dir="/tmp"))
    try:
        yield path
        Marker(os.environ[MARKER]).assert_no_process_left(within=20)
    finally:
        shutil.rmtree(path, ignore_errors=True)


def start(home: Path, kit: Kit, *words: str) -> subprocess.Popen[str]:
    config = home / "fake.toml"
    config.write_text(
        f"[engine]\nllama_server = {json.dumps(str(kit.server))}\nllama_swap = {json.dumps(kit.proxy)}\n"
        f'[groups.chat]\n[[groups.chat.launches]]\nrole = "chat"\nmodel = {json.dumps(str(kit.chat))}\n'
    )
    (home / "tmp").mkdir()
    RAN.setdefault("proxies", set()).add(kit.proxy_title)
    RAN.setdefault("servers", set()).add(kit.title)
    return subprocess.Popen(
        [sys.executable, "-m", "chaos.bench", "--config", str(config), *words],
        cwd=ROOT,
        env=os.environ | {"TMPDIR": str(home / "tmp"), "QUEENRIGHT_SLOT": str(home / "users")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


QUICK = {
    "version": ["x"],
    "status": ["x", "x"],
    "direct": ["x"] * 4,
    "recovery": ["x"],
    "keeper": ["x"],
    "memory": ["MiB"] * 3,
}
SLOW = {"bind": ["x"] * 3, "exec": ["x"], "members": ["x"], "idle": ["%"]}
"""Units of the figures of each cell."""


def test_every_cell_is_run_by_a_test() -> None:
    assert QUICK.keys() | SLOW.keys() == bench_cells.CELLS.keys()


@pytest.mark.process
@pytest.mark.parametrize(
    "cells",
    [pytest.param(QUICK, id="quick", marks=pytest.mark.long), pytest.param(SLOW, id="slow", marks=pytest.mark.long)],
)
def test_every_cell_has_its_figures_and_nothing_is_left(cells: dict[str, list[str]], home: Path, kit: Kit) -> None:
    process = start(home, kit, "--pairs", "1", "--json", "--only", ",".join(cells))
    out, said = process.communicate(timeout=240)
    assert process.returncode == 0, said
    data = json.loads(out)
    found: dict[str, list[str]] = {}
    for figure in data["figures"]:
        found.setdefault(figure["cell"], []).append(figure["unit"])
    assert found == cells
    assert all(figure["value"] > 0 for figure in data["figures"])
    assert data["pair"]["model"] == "chat"
    assert data["skipped"] == {}
    assert not list((home / "tmp").iterdir())
    assert not (home / "users").exists()  # the slot that the user's own engine would have


@pytest.mark.process
@pytest.mark.long
def test_the_gateways_cells_have_their_figures_and_nothing_is_left(home: Path, kit: Kit) -> None:
    """But for the one of a real model."""
    process = start(home, kit, "gateway", "--pairs", "1", "--json", "--only", "streams,saturation,bodies")
    out, said = process.communicate(timeout=240)
    assert process.returncode == 0, said
    found = [(figure["cell"], figure["unit"]) for figure in json.loads(out)["figures"]]
    assert found == [
        ("streams", "%"),
        ("streams", "x"),
        ("streams", "ms"),
        ("streams", "ms"),
        ("saturation", "tokens/s"),
        ("saturation", "tokens/s"),
        ("bodies", "ms"),
        ("bodies", "ms"),
    ]
    assert not list((home / "tmp").iterdir())


@pytest.mark.process
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_bench_that_is_ended_takes_its_engine_with_it(number: signal.Signals, home: Path, kit: Kit) -> None:
    process = start(home, kit, "--only", "keeper", "--pairs", "1000")
    wait_until(
        lambda: any(locks.is_held(path) for path in (home / "tmp").glob("*/slot/warden.lock")),
        within=60,
        what="the bench has an engine",
    )
    process.send_signal(number)
    _, said = process.communicate(timeout=60)
    if number is signal.SIGKILL:
        return  # its engine has lost its one member; the fixture waits for the end of it
    assert process.returncode == 130
    assert "Traceback" not in said
    assert not list((home / "tmp").iterdir())


# --- what keeps the quick commands quick ----------------------------------------------------------------------------


@pytest.mark.process
@pytest.mark.parametrize(
    ("words", "unwanted"),
    [
        (["version"], {"typing", "argparse", "enum", "importlib.metadata"}),
        (["status"], {"socket", "json", "threading", "shutil", "signal", "tomllib", "platformdirs", "attr", "trio"}),
    ],
)
def test_a_quick_command_imports_nothing_slow(words: list[str], unwanted: set[str], tmp_path: Path) -> None:
    program = (
        "import sys\n"
        "before = set(sys.modules)\n"  # site-packages may import things of their own (coverage, setuptools)
        "from supervisor.cli import main\n"
        f"main({words!r})\n"
        "print(*sorted(set(sys.modules) - before), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env=os.environ | {"QUEENRIGHT_SLOT": str(tmp_path / "none")},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert not unwanted & set(done.stderr.split())


def test_the_width_of_a_help_is_that_of_shutil(monkeypatch: pytest.MonkeyPatch) -> None:
    for named in ("", "0", "-3", "wide", "57"):
        monkeypatch.setenv("COLUMNS", named)
        assert cli._columns() == shutil.get_terminal_size().columns
