"""What an earlier start showed is what the next plan goes by, and never below what is real."""

from __future__ import annotations

import json
from math import inf
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from supervisor.contract import GroupSpec, LaunchSpec
from supervisor.devices.held import Held
from supervisor.devices.shape import Figure
from tests.workers.planner.test_foreseeing import gpu, survey
from workers import cache, estimator, printed
from workers.calibration import FOLDER, bound
from workers.estimator import Estimate, Part
from workers.planner import found, learned
from workers.planner.launching import plan_group
from workers.planner.learned import BEYOND

if TYPE_CHECKING:
    from pathlib import Path

    from supervisor.devices.shape import Device
    from supervisor.kinds import Planned

MIB = 1 << 20
FLAGS = "--cache-ram --kv-unified --no-kv-unified --flash-attn --cache-type-k --cache-type-v --verbosity --fit --n-gpu-layers"
LINES = [
    "srv    load_model: loading model '/m.gguf'",
    "sched_reserve:        CPU compute buffer size =    17.00 MiB",
    "llama_context:        CPU  output buffer size =     0.50 MiB",
]


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(cache.CACHE_VARIABLE, str(tmp_path / "cache"))
    return tmp_path / "cache" / FOLDER


def planned(
    path: Path,
    *arguments: str,
    context: int = 8192,
    pin: str = "llama-server=b1;proxy=p1",
    environment: dict[str, str] | None = None,
    cards: tuple[Device, ...] = (),
) -> Planned:
    launch = LaunchSpec("chat", "a-model", str(path), context, 1, arguments)
    options = {"llama_server": "/nowhere/llama-server", "flags": FLAGS, "proxy": "built-in"}
    spec = GroupSpec("a", "llama-swap", (launch,), pin, options, environment or {})
    return plan_group(spec, survey(16, *cards))


def line(plan: Planned, what: str) -> dict[str, Any]:
    found = [one for one in plan.memory["chat"]["ledger"] if one["what"] == what]
    assert len(found) == 1
    return dict(found[0])


def started(plan: Planned, lines: list[str] = LINES, beyond: int = 0) -> None:
    key = plan.memory["chat"]["learns"]
    learned.remember(key, learned.printed(key, printed.parse(lines)), {"host": beyond})


def test_the_next_plan_goes_by_what_was_printed_and_says_so(files: dict[str, Path], place: Path) -> None:
    first = planned(files["qwen3-4b"])
    assert (line(first, "compute buffer")["how"], line(first, "compute buffer")["bytes"] > 300 * MIB) == (
        "modelled",
        True,
    )
    assert first.spec.launches[0].arguments[:2] == ("--verbosity", "4"), "nobody has seen its buffers yet"
    started(first)
    second = planned(files["qwen3-4b"])
    assert (line(second, "compute buffer")["how"], line(second, "compute buffer")["bytes"]) == (
        "measured",
        17 * MIB + MIB // 2,
    )
    assert "--verbosity" not in second.spec.launches[0].arguments, "what is known is not asked for again"
    assert sum(one["bytes"] for one in second.memory["chat"]["ledger"]) == second.grants["host"] < first.grants["host"]
    assert len(list(place.iterdir())) == 1


@pytest.mark.parametrize(
    ("arguments", "context", "pin"),
    [
        ((), 16384, "llama-server=b1;proxy=p1"),
        (("--ubatch-size", "256"), 8192, "llama-server=b1;proxy=p1"),
        (("--no-repack",), 8192, "llama-server=b1;proxy=p1"),
        ((), 8192, "llama-server=b2;proxy=p1"),
    ],
    ids=["a longer context", "another batch", "another argument", "another build"],
)
def test_it_says_nothing_of_what_may_take_more(
    files: dict[str, Path], arguments: tuple[str, ...], context: int, pin: str
) -> None:
    started(planned(files["qwen3-4b"]))
    assert line(planned(files["qwen3-4b"], *arguments, context=context, pin=pin), "compute buffer")["how"] == "modelled"


def test_what_a_launch_held_beside_a_card_says_nothing_of_one_without(
    files: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a suspend that lost the driver the whole compute buffer is in system memory, and not the part beside a card."""
    monkeypatch.setattr("workers.listed.ask", lambda *_: None)
    with_card = planned(files["qwen3-4b"], cards=(gpu(24),))
    lines = [*LINES, "sched_reserve:      CUDA0 compute buffer size =   300.00 MiB"]
    started(with_card, lines, beyond=5 * MIB)
    again = planned(files["qwen3-4b"], cards=(gpu(24),))
    assert "measured" in {one["how"] for one in again.memory["chat"]["ledger"]}
    alone = planned(files["qwen3-4b"])
    assert line(alone, "compute buffer")["how"] == "modelled"
    assert not [one for one in alone.memory["chat"]["ledger"] if one["what"] == BEYOND]


def test_in_another_environment_nothing_was_seen(files: dict[str, Path]) -> None:
    started(planned(files["qwen3-4b"]))
    other = planned(files["qwen3-4b"], environment={"GGML_CUDA_FORCE_MMQ": "1"})
    assert line(other, "compute buffer")["how"] == "modelled"


def test_what_a_prompt_cache_hid_is_not_taken_for_nothing(files: dict[str, Path]) -> None:
    """A plan with a large one that is not full yet is never exceeded: that is no word on a plan without."""
    started(planned(files["qwen3-4b"]), beyond=300 * MIB)
    started(planned(files["qwen3-4b"], "--cache-ram", "2048"), beyond=0)
    assert line(planned(files["qwen3-4b"]), BEYOND)["bytes"] == 300 * MIB


def test_a_log_that_lost_its_beginning_teaches_nothing(files: dict[str, Path]) -> None:
    """It is read anew each minute, and its end alone: of buffers that are only there in part the sum is too small."""
    started(planned(files["qwen3-4b"]))
    started(planned(files["qwen3-4b"]), LINES[2:])
    assert line(planned(files["qwen3-4b"]), "compute buffer")["bytes"] == 17 * MIB + MIB // 2
    weights = "load_tensors:   CPU_Mapped model buffer size =    43.48 MiB"
    assert printed.parse([weights, *LINES[1:]]).is_whole, "they come first"
    assert not printed.parse([LINES[2], weights]).is_whole


def test_of_a_shorter_context_it_is_a_bound_and_another_proxy_changes_nothing(files: dict[str, Path]) -> None:
    started(planned(files["qwen3-4b"]))
    shorter = planned(files["qwen3-4b"], context=4096, pin="llama-server=b1;proxy=p2")
    assert (line(shorter, "compute buffer")["how"], line(shorter, "compute buffer")["bytes"] >> 20) == ("measured", 17)


def test_a_server_that_takes_more_than_planned_is_planned_with_that(files: dict[str, Path]) -> None:
    started(planned(files["qwen3-4b"]), LINES[:1], beyond=300 * MIB)
    again = planned(files["qwen3-4b"])
    assert (line(again, BEYOND)["how"], line(again, BEYOND)["bytes"]) == ("measured", 300 * MIB)
    started(again, LINES[:1], beyond=0)
    assert not [one for one in planned(files["qwen3-4b"]).memory["chat"]["ledger"] if one["what"] == BEYOND]


def test_a_buffer_above_the_bound_is_planned_as_it_is(files: dict[str, Path]) -> None:
    """The bound was none, then: the plan is not made below what was seen."""
    started(planned(files["qwen3-4b"]), [LINES[0], LINES[1].replace("17.00", "9000.00")])
    again = line(planned(files["qwen3-4b"]), "compute buffer")
    assert (again["how"], again["bytes"]) == ("measured", 9000 * MIB)


def test_what_was_seen_goes_before_an_estimate(files: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    started(planned(files["qwen3-4b"]))
    monkeypatch.setattr(estimator, "find", lambda server: estimator.Estimator("llama-fit-params", ("x",), "x"))
    estimate = Estimate("llama-fit-params", (Part("Host", 2253, 1152, 320),))
    monkeypatch.setattr(estimator, "ask", lambda *_: estimate)
    again = planned(files["qwen3-4b"])
    assert line(again, "compute buffer")["how"] == "measured"
    assert not [one for one in again.memory["chat"]["estimate"]["compared"] if one["what"] == "compute buffer"]


def test_a_damaged_file_is_none(files: dict[str, Path], place: Path) -> None:
    started(planned(files["qwen3-4b"]))
    for file in place.iterdir():
        file.write_text(file.read_text()[:50])
    assert line(planned(files["qwen3-4b"]), "compute buffer")["how"] == "modelled"


@pytest.mark.parametrize("size", [-(1 << 40), inf, "many"])
def test_a_figure_that_is_none_takes_nothing_off_a_plan(files: dict[str, Path], place: Path, size: object) -> None:
    first = planned(files["qwen3-4b"])
    started(first)
    for file in place.iterdir():
        said = json.loads(file.read_text())
        changed = {name: [[x, size] for x, _ in boots] for name, boots in said["buffers"].items()}
        file.write_text(json.dumps({**said, "buffers": changed}))
    assert planned(files["qwen3-4b"]).grants == first.grants


def test_who_says_himself_how_much_a_server_tells_is_not_overruled(files: dict[str, Path]) -> None:
    assert "--verbosity" not in planned(files["qwen3-4b"], "-lv", "1").spec.launches[0].arguments


def test_what_is_held_beyond_the_plan_is_the_most_of_the_first_ten_minutes(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("workers.planner.found.time.monotonic", lambda: now[0])
    held = Held(7, "x", Figure(130 * MIB, "smaps"), Figure(9, "smaps"), (("GPU-1", Figure.unknown("WSL")),))
    ledger = [
        {"what": "compute buffer", "bytes": 100 * MIB, "place": "host"},
        {"what": BEYOND, "bytes": 20 * MIB, "place": "host"},
    ]
    beyond = found._beyond(ledger, held, {})
    assert beyond == {"host": 30 * MIB}
    assert found._peaks(("a", "chat"), "one", beyond) == beyond
    assert found._peaks(("a", "chat"), "one", {"host": 0}) == beyond
    now[0] += found.LEARN_WITHIN + 1
    assert found._peaks(("a", "chat"), "one", {"host": 900 * MIB}) == beyond, "a leak is no plan's matter"
    assert found._peaks(("a", "chat"), "two", {"host": 0}) == {"host": 0}


def test_a_bound_that_was_planned_for_a_buffer_hides_nothing_that_is_held_beside_it(files: dict[str, Path]) -> None:
    """Planned with an upper bound of 350 MiB, of which 18 were taken, a start is within its plan whatever else it holds; the
    next plan has the 18."""
    first = planned(files["qwen3-4b"])
    key, ledger = first.memory["chat"]["learns"], first.memory["chat"]["ledger"]
    buffers = found._printed(("a", "chat"), "one", learned.printed(key, printed.parse(LINES)))
    real = first.grants["host"] - 40 * MIB
    held = Held(7, "x", Figure(real, "smaps"), Figure(9, "smaps"), ())
    learned.remember(key, buffers, found._beyond(ledger, held, buffers))
    assert planned(files["qwen3-4b"]).grants["host"] == real, "not below what was seen"
    assert found._printed(("a", "chat"), "one", {}) == buffers, "its log may have lost it meanwhile"
    assert found._printed(("a", "chat"), "two", {}) == {}


@given(
    some.lists(some.tuples(some.integers(0, 10**6), some.integers(0, 500)), min_size=1, max_size=4),
    some.sets(some.integers(1, 10**4), min_size=1, max_size=5),
    some.integers(1, 10**4),
)
def test_a_bound_is_never_below_what_grows_as_buffers_do(parts: list[tuple[int, int]], seen: set[int], at: int) -> None:
    """The largest of some that each grow linearly: logits, scores, a feed-forward part."""

    def real(cells: int) -> int:
        return max(base + slope * cells for base, slope in parts)

    got = bound({cells: real(cells) for cells in seen}, at)
    assert (got is None) == (at > max(seen))
    assert got is None or got >= real(at)
