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
