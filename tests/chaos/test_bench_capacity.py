"""`bench sweep` and `bench quants`: their arithmetic, what is refused, and that they run on fakes. No figure is asserted
of a machine: only that a difference that was put in comes out."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from chaos import bench, bench_quants, bench_streams, bench_sweep, gpu
from chaos.bench_quants import Measured, Visit
from chaos.bench_streams import Streamed
from supervisor.devices.shape import Device, Figure, HostMemory, Survey
from supervisor.errors import UsageError
from tests.engine.kit import Kit, make_kit
from tests.leak_check import MARKER
from tests.support import RAN, ROOT, Marker

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def streamed(first: float, seconds: float = 1.0, streams: int = 2) -> Streamed:
    return Streamed((first,) * streams, (50.0,) * streams, 100, seconds, 40)


# --- the sweep's arithmetic -----------------------------------------------------------------------------------------


def test_what_a_way_costs_is_taken_within_each_round() -> None:
    # In the second round the machine was ten times as slow: the cost of the way is still its own.
    base = [streamed(0.10, 1.0), streamed(1.00, 10.0)]
    ours = [streamed(0.12, 1.2), streamed(1.02, 12.0)]
    added, per_token = bench_sweep.costs(4, "gateway", ours, base)
    assert (round(added.value), round(added.low), round(added.high)) == (20, 20, 20)
    assert round(per_token.value, 6) == 1.2
    assert added.unit == "ms"
    assert "4 at once" in added.name


def test_a_way_that_costs_nothing_is_told_so() -> None:
    same = [streamed(0.1), streamed(0.2)]
    added, per_token = bench_sweep.costs(1, "client", same, same)
    assert (added.value, per_token.value) == (0, 1)


def test_rounds_that_are_not_pairs_are_refused() -> None:
    with pytest.raises(ValueError, match="longer"):
        bench_sweep.costs(1, "client", [streamed(0.1)], [streamed(0.1), streamed(0.1)])


@pytest.mark.parametrize(("percent", "wanted"), [(50, 50), (95, 95), (99, 99), (100, 100), (1, 1)])
def test_a_percentile_is_the_nearest_rank(percent: float, wanted: int) -> None:
    assert bench_sweep.nearest_rank([float(number) for number in range(100, 0, -1)], percent) == wanted


def test_the_p99_of_few_is_the_longest() -> None:
    assert bench_sweep.nearest_rank([0.1, 0.9, 0.2], 99) == 0.9
    with pytest.raises(ValueError, match="nothing was measured"):
        bench_sweep.nearest_rank([], 50)


def test_a_level_has_the_requests_of_all_its_rounds() -> None:
    one = bench_sweep.level(2, "client", [streamed(0.1, 1.0), streamed(0.3, 4.0), streamed(0.2, 2.0)])
    assert (one.requests, one.p50, one.p99) == (6, 0.2, 0.3)
    assert (one.per_stream, one.aggregate) == (50, 50)  # of 100, 25 and 50 tokens/s


def test_each_way_is_first_as_often_as_it_happens() -> None:
    chance = random.Random(1)
    orders = [bench_sweep.order(chance) for _ in range(200)]
    assert all(sorted(one) == sorted(bench_sweep.WAYS) for one in orders)
    assert min(Counter(one[0] for one in orders).values()) > 30


def test_streams_are_summed_from_the_first_sending_to_the_last_token() -> None:
    # (sent, first, last, tokens, prompt): 10 and 20 tokens between 1.0 s and 4.0 s.
    one = bench_streams.summed([(1.0, 1.5, 2.5, 11, 7), (1.2, 2.0, 4.0, 21, 9)])
    assert (one.tokens, one.seconds, one.prompt) == (32, 3.0, 9)
    assert one.firsts == (0.5, 0.8)
    assert one.rates == (10, 10)


def test_no_prompt_begins_as_another() -> None:
    begun = {bench_streams.prompt(40, number, round_)[:40] for number in range(16) for round_ in range(5)}
    assert len(begun) == 16 * 5
    assert 40 <= len(bench_streams.prompt(40, 1, 1).split()) < 80


@pytest.mark.parametrize(("text", "wanted"), [("1", (1,)), ("8,1-3,2", (1, 2, 3, 8)), ("64", (64,))])
def test_levels_are_read(text: str, wanted: tuple[int, ...]) -> None:
    assert bench_sweep.levels_of(text) == wanted


@pytest.mark.parametrize("text", ["0", "3-1", "65", "many", "", "1,,2"])
def test_levels_that_are_none_are_refused(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match=r"is not from 1|invalid literal"):
        bench_sweep.levels_of(text)
    if text:
        assert bench.main(["sweep", "--streams", text]) == int(UsageError.exit_code)
        assert "--streams" in capsys.readouterr().err


# --- one stream -----------------------------------------------------------------------------------------------------

PIECE = 'data: {"choices":[{"delta":{"content":"bee "}}]}\n\n'
LAST = 'data: {"choices":[{"delta":{}}],"usage":{"prompt_tokens":9,"completion_tokens":5}}\n\n'


def answered(text: str, status: int = 200) -> tuple[float, float, float, int, int]:
    def answer(_: httpx.Request) -> httpx.Response:
        return httpx.Response(status, text=text, headers={"Content-Type": "text/event-stream"})

    with httpx.Client(transport=httpx.MockTransport(answer)) as client:
        return bench_streams.one(client, "http://hive", "", {})


def test_a_stream_has_as_many_tokens_as_the_server_counted() -> None:
    began, first, last, tokens, asked = answered(PIECE * 3 + LAST + "data: [DONE]\n\n")
    assert began <= first <= last
    assert (tokens, asked) == (5, 9)  # a piece may be of several tokens, or of none


@pytest.mark.parametrize(
    ("text", "status"),
    [
        (PIECE * 3 + LAST, 200),  # cut: no end marker
        (LAST + "data: [DONE]\n\n", 200),  # nothing came
        ('data: {"error":{"message":"out of honey"}}\n\n', 200),
        ("no", 503),
    ],
)
def test_a_stream_that_is_not_whole_gives_no_figure(text: str, status: int) -> None:
    with pytest.raises(RuntimeError):
        answered(text, status)


# --- two files ------------------------------------------------------------------------------------------------------


def visit(prompt: float, generation: float, memory: int = 100, device: int | None = None) -> Visit:
    return Visit({0: Measured(prompt, generation, 8)}, memory << 20, None if device is None else device << 20)


def test_the_second_file_is_told_as_a_ratio_to_the_first() -> None:
    first, second = [visit(100, 10), visit(50, 5)], [visit(200, 5), visit(100, 2.5)]
    figures = bench_quants.figures(("a", "b"), first, second)
    assert [figure.value for figure in figures] == [0.5, 2.0]  # of times
    compared = bench_quants.Compared(("a", "b"), (1 << 20, 2 << 20), (tuple(first), tuple(second)), tuple(figures))
    rows = [line.split("  ") for line in bench_quants.table(compared).splitlines()]
    text = bench_quants.table(compared)
    assert any("prompt, depth 0" in row[0] and "2.00x" in row for row in rows), text  # of rates
    assert any("generation, depth 0" in row[0] and "0.50x" in row for row in rows), text
    assert "GPU" not in text


def test_gpu_memory_is_told_where_there_is_one() -> None:
    both = ((visit(1, 1, device=1000),), (visit(1, 1, device=1500),))
    figures = tuple(bench_quants.figures(("a", "b"), *both))
    text = bench_quants.table(bench_quants.Compared(("a", "b"), (1, 1), both, figures))
    assert "GPU memory, MiB" in text
    assert "1.50x" in text


@pytest.mark.parametrize(
    "words",
    [
        ["quants", "one.gguf"],
        ["quants", "none.gguf", "nor-this.gguf"],
        ["quants", __file__, __file__, "--depth", "deep"],
        ["quants", __file__, __file__, "--only", "x"],
        ["sweep", __file__],
    ],
)
def test_what_cannot_be_compared_is_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main(words) == int(UsageError.exit_code)
    assert "Traceback" not in capsys.readouterr().err


# --- what the cards hold --------------------------------------------------------------------------------------------


def card(total: int | None, free: int | None) -> Device:
    first, second = (Figure.unknown("no word") if one is None else Figure(one, "nvml") for one in (total, free))
    return Device("GPU-1", "0", "Hive 9000", 0, first, second, why_unknown="no word")


def survey(*devices: Device, reason: str = "", incomplete: bool = False) -> Survey:
    host = HostMemory(Figure(1, "x"), Figure(1, "x"), "x", Figure(1, "x"))
    return Survey(devices, host, "", reason, incomplete)


def test_no_card_is_something_else_than_one_that_cannot_be_read() -> None:
    assert gpu.read(survey(reason="there is no NVIDIA driver")).is_absent
    assert gpu.read(survey(card(10, 4))).total == 6
    for unreadable in (survey(card(10, None)), survey(reason="it hangs", incomplete=True)):
        held = gpu.read(unreadable)
        assert held.total is None
        assert held.why
        assert not held.is_absent


# --- on fakes -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def kit(tmp_path_factory: pytest.TempPathFactory) -> Kit:
    return make_kit(tmp_path_factory.mktemp("capacity"))


@pytest.fixture
def config(kit: Kit, tmp_path: Path) -> Iterator[Path]:
    """A configuration of fakes; and no process may be left."""
    RAN.setdefault("proxies", set()).add(kit.proxy_title)
    RAN.setdefault("servers", set()).add(kit.title)
    path = tmp_path / "fake.toml"
    path.write_text(
        f"[engine]\nllama_server = {json.dumps(str(kit.server))}\nllama_swap = {json.dumps(kit.proxy)}\n"
        f'[groups.chat]\n[[groups.chat.launches]]\nrole = "chat"\nmodel = {json.dumps(str(kit.chat))}\nsequences = 4\n'
        'arguments = ["--fake-rate=500"]\n'
    )
    yield path
    Marker(os.environ[MARKER]).assert_no_process_left(within=20)


def measured(config: Path, *words: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "chaos.bench", *words, "--config", str(config), "--json"],
        cwd=ROOT,
        env=os.environ | {"QUEENRIGHT_SLOT": str(config.parent / "users")},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


@pytest.mark.long
@pytest.mark.process
def test_a_sweep_has_each_way_at_each_level_and_leaves_nothing(config: Path) -> None:
    data = measured(config, "sweep", "--streams", "1,3", "--pairs", "2", "--tokens", "8")
    assert [(one["streams"], one["way"]) for one in data["levels"]] == [
        (streams, way) for streams in (1, 3) for way in bench_sweep.WAYS
    ]
    assert [one["requests"] for one in data["levels"]] == [2] * 4 + [6] * 4
    assert all(0 < one["p50"] <= one["p95"] <= one["p99"] for one in data["levels"])
    # Tokens through time: no way can give more than the server's own rate, each stream.
    assert all(0 < one["aggregate"] < 500 * one["streams"] * 1.2 for one in data["levels"])
    assert len(data["costs"]) == 2 * 3 * 2
    assert len(data["rounds"]) == 2 * 2 * 4


@pytest.mark.long
@pytest.mark.process
def test_two_files_are_compared_at_depth_and_nothing_is_left(config: Path, kit: Kit, tmp_path: Path) -> None:
    second = tmp_path / "second.gguf"
    second.write_bytes(kit.chat.read_bytes() + bytes(64))
    data = measured(config, "quants", str(kit.chat), str(second), "--pairs", "1", "--depth", "0,64")
    assert data["sizes"][1] == data["sizes"][0] + 64
    for visits in data["visits"]:
        (one,) = visits
        assert set(one["depths"]) == {"0", "64"}
        assert all(400 < at["generation"] < 500 for at in one["depths"].values())  # the fake's own rate
        assert one["memory"] > 1 << 20
    assert len(data["figures"]) == 4
