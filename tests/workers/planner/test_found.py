"""Whether a plan came true, of one server: what was planned beside what it printed, serves and holds."""

from __future__ import annotations

from typing import Any

import pytest

from supervisor.contract import LaunchSpec
from supervisor.devices.held import Held
from supervisor.devices.shape import Figure
from workers import printed
from workers.planner.found import account

MIB = 1 << 20
LAUNCH = LaunchSpec("chat", "m", "/m.gguf", 4096, 2)
LEDGER = [
    {"what": "weights: layers", "bytes": 200 * MIB, "place": "host"},
    {"what": "keys and values", "bytes": 180 * MIB, "place": "host"},
    {"what": "compute buffer", "bytes": 100 * MIB, "place": "host"},
    {"what": "keys and values", "bytes": 50 * MIB, "place": "GPU-1"},
]
PRINTED = """\
0.00.1 I load_model: loading model '/m.gguf'
0.00.2 I llama_kv_cache:        CPU KV buffer size =   230.00 MiB
0.00.2 I sched_reserve:        CPU compute buffer size =    90.00 MiB
0.00.3 I srv load_model: initializing slots, n_slots = 2, n_ctx_slot = 2048, kv_unified = 'false'
0.00.3 W srv the slot context (4096) exceeds the training context of the model (2048) - capping
"""


def found(anonymous: int, log: str = "", served: tuple[int | None, int | None] = (None, None)) -> dict[str, Any]:
    held = Held(
        7,
        "llama-server",
        Figure(anonymous, "smaps"),
        Figure(150 * MIB, "smaps"),
        (("GPU-1", Figure(60 * MIB, "NVML")),),
    )
    return account(LAUNCH, {"ledger": LEDGER}, held, printed.parse(log.splitlines()), served)


def verdicts(facts: dict[str, Any]) -> dict[str, str]:
    return {one["what"]: one["verdict"] for one in facts["compared"]}


def test_as_planned_warns_of_nothing() -> None:
    facts = found(300 * MIB, served=(4096, 2))
    assert facts["warnings"] == []
    assert verdicts(facts) == {"system memory of its own": "under", "memory of GPU-1": "as planned"}
    assert [one["effective"] for one in facts["asked"]] == [4096, 2]
    assert facts["held"] == {
        "anonymous": 300 * MIB,
        "file_backed": 150 * MIB,
        "devices": [{"device": "GPU-1", "bytes": 60 * MIB}],
    }


def test_more_than_all_that_was_planned_is_a_warning_with_numbers() -> None:
    """480 MiB were planned for system memory; the band is a tenth, and 64 MiB at least."""
    assert found(540 * MIB)["warnings"] == []
    (warning,) = found(560 * MIB)["warnings"]
    assert "80 MiB more than planned" in warning


def test_a_context_that_was_lowered_is_a_warning_whoever_says_it() -> None:
    for facts in (found(MIB, served=(2048, 2)), found(MIB, PRINTED)):
        (warning,) = facts["warnings"]
        assert "4096 asked for, 2048 in effect" in warning


def test_no_evidence_is_unknown_not_fine() -> None:
    assert [one["effective"] for one in found(MIB)["asked"]] == [None, None]
    assert found(MIB)["warnings"] == []


def test_what_was_printed_goes_before_what_was_worked_out() -> None:
    lines = {one["what"]: one for one in found(MIB, PRINTED)["compared"]}
    assert (lines["keys and values"]["planned"], lines["keys and values"]["found"]) == (230 * MIB, 230 * MIB)
    assert lines["compute buffers"]["how"] == "printed by the engine"
    assert "weights" not in lines, "they were not printed"


@pytest.mark.parametrize("memory", [{}, {"ledger": None}])
def test_without_a_plan_nothing_is_compared(memory: dict[str, Any]) -> None:
    """An earlier keeper made it."""
    held = Held(7, "llama-server", Figure.unknown("gone"), Figure.unknown("gone"))
    facts = account(LAUNCH, memory, held, printed.Printed(), (4096, 2))
    assert [one["verdict"] for one in facts["compared"]] == ["unknown"]
    assert facts["warnings"] == []


# --- where weights lie ------------------------------------------------------------------------------------------------

SPLIT = [
    {"what": "weights: layers", "bytes": 2000 * MIB, "place": "GPU-1"},
    {"what": "weights: routed experts", "bytes": 9000 * MIB, "place": "GPU-1"},
    {"what": "weights: routed experts", "bytes": 30_000 * MIB, "place": "host"},
    {"what": "weights: token embeddings", "bytes": 600 * MIB, "place": "host"},
    {"what": "keys and values", "bytes": 1000 * MIB, "place": "GPU-1"},
]


@pytest.mark.parametrize(
    ("on_card", "experts", "weights", "warns"),
    [
        (11_000.0, 30_000, 11_000, ""),
        (11_150.5, 30_000, 11_000, ""),  # within the band
        (41_000.0, 0, 11_000, "MiB of experts in system memory: 30000 asked for, 0 in effect"),
        (15_000.0, 26_000, 11_000, "MiB of experts in system memory: 30000 asked for, 26000 in effect"),
        (5_000.0, 30_000, 5_000, "MiB of weights on cards: 11000 asked for, 5000 in effect"),
        (None, None, None, ""),
    ],
)
def test_where_weights_lie_is_held_against_the_plan__turbollm_99(
    on_card: float | None, experts: int | None, weights: int | None, warns: str
) -> None:
    """`--n-cpu-moe` beside an explicit layer count did nothing, and only a log line told. The server's lines are of b10068;
    that of system memory is the range of the file that it has mapped, and says nothing."""
    log = "load_model: loading model '/m.gguf'\n"
    if on_card is not None:
        log += f"load_tensors:   CPU_Mapped model buffer size = 41200.00 MiB\nload_tensors:  CUDA0 model buffer size = {on_card:.2f} MiB\n"
    held = Held(7, "llama-server", Figure(MIB, "smaps"), Figure(MIB, "smaps"), ())
    facts = account(LAUNCH, {"ledger": SPLIT}, held, printed.parse(log.splitlines()), (4096, 2))
    asked = {one["what"]: one["effective"] for one in facts["asked"]}
    assert (asked["MiB of experts in system memory"], asked["MiB of weights on cards"]) == (experts, weights)
    placed = [one for one in facts["warnings"] if one.startswith("MiB of")]
    assert [one for one in placed if one.startswith(warns)] == placed
    assert bool(placed) is bool(warns)


def test_without_cards_there_is_nothing_to_lie_elsewhere() -> None:
    assert [one["what"] for one in found(MIB)["asked"]] == ["context per sequence", "sequences"]
