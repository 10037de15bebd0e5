"""What a server said and what its processes hold, beside what was planned. The log lines are a real llama-server's."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from supervisor.contract import LaunchSpec
from supervisor.devices.held import held
from supervisor.devices.shape import Device, Figure, Holding, HostMemory, How, Survey
from supervisor.errors import QueenrightError
from tests.support import Marker, end, free_port, spawn, wait_until
from workers import engines, models
from workers.calibration import BOOTS_KEPT, Calibrations, fit
from workers.planner.found import account
from workers.printed import VERBOSITY, Kind, Printed, parse
from workers.readback import Verdict, line, printed_figures, read_back

if TYPE_CHECKING:
    from pathlib import Path

MIB = 2**20
GIB = 2**30

LOAD = """\
0.00.007.147 I srv    load_model: loading model '/m/SmolLM2-135M-Instruct.Q4_1.gguf'
0.00.267.124 I load_tensors:   CPU_Mapped model buffer size =    92.10 MiB
0.00.269.508 I llama_context: n_ctx_seq (2048) < n_ctx_train (8192) -- the full capacity of the model will not be utilized
0.00.269.574 I llama_context:        CPU  output buffer size =     0.75 MiB
0.00.269.794 I llama_kv_cache:        CPU KV buffer size =   180.00 MiB
0.00.402.592 I llama_kv_cache: size =  180.00 MiB (  2048 cells,  30 layers,  4/4 seqs), K (f16):   90.00 MiB, V (f16):   90.00 MiB
0.00.407.738 I sched_reserve:        CPU compute buffer size =    15.51 MiB
0.00.453.341 I srv    load_model: initializing, n_slots = 4, n_ctx_slot = 2048, kv_unified = 'false'
""".splitlines()

CAPPED = """\
0.00.008.248 I srv    load_model: loading model '/m/SmolLM2-135M-Instruct.Q4_1.gguf'
0.00.291.993 W llama_context: n_ctx_seq (16384) > n_ctx_train (8192) -- possible training context overflow
0.02.538.722 W srv    load_model: the slot context (16384) exceeds the training context of the model (8192) - capping
0.03.521.313 I srv    load_model: initializing, n_slots = 2, n_ctx_slot = 8192, kv_unified = 'false'
""".splitlines()


def test_the_servers_own_buffers() -> None:
    said = parse(LOAD)
    assert [(one.kind, one.place, one.bytes) for one in said.buffers] == [
        (Kind.MODEL, "CPU_Mapped", round(92.10 * MIB)),
        (Kind.OUTPUT, "CPU", round(0.75 * MIB)),
        (Kind.KV, "CPU", 180 * MIB),
        (Kind.COMPUTE, "CPU", round(15.51 * MIB)),
    ]
    assert (said.context, said.sequences, said.lowered) == (2048, 4, ())


def test_parts_of_a_cache_add_up_a_graph_that_is_reserved_anew_does_not_and_only_the_last_load_counts() -> None:
    more = [
        "llama_kv_cache:      CUDA0 KV buffer size =    10.00 MiB",
        "llama_kv_cache:      CUDA0 KV buffer size =    22.50 MiB",
        "llama_memory_recurrent:      CUDA0 RS buffer size =     1.00 MiB",
        "sched_reserve:      CUDA0 compute buffer size =    99.00 MiB",
        "sched_reserve:      CUDA0 compute buffer size =    98.00 MiB",
    ]
    said = parse([*LOAD, LOAD[0], *more])
    assert (said.total(Kind.KV), said.total(Kind.RECURRENT), said.total(Kind.COMPUTE)) == (
        round(32.5 * MIB),
        MIB,
        98 * MIB,
    )
    assert (said.total(Kind.MODEL), said.context) == (0, None)


def back(
    said: list[str], *, context: int, sequences: int, pool: int | None = None
) -> tuple[list[bool | None], list[str]]:
    found = read_back(planned=(), printed=parse(said), context=context, sequences=sequences, pool=pool)
    return [one.is_lowered for one in found.asked], [*found.warnings]


def test_a_clamp_is_told_as_requested_against_effective__seed_003() -> None:
    lowered, warnings = back(CAPPED, context=16384, sequences=2)
    assert lowered == [True, False]
    assert len(warnings) == 1
    assert "16384 asked for, 8192 in effect" in warnings[0]
    assert "exceeds the training context" in warnings[0]
    pool = "kv pool: 524288 positions need ~35.0 GiB with 33.5 to spend: LOWERING THE POOL TO 262144 (~27.8 GiB)"
    lowered, warnings = back([pool], context=262144, sequences=4, pool=524288)
    assert lowered == [True, None]
    assert "524288 asked for, 262144 in effect" in warnings[0]


def test_what_is_served_as_asked_for_warns_of_nothing__seed_003() -> None:
    assert back(LOAD, context=2048, sequences=4) == ([False, False], [])
    assert back(["3 slot(s) over one 524288-position pool"], context=1, sequences=3, pool=524288) == (
        [False, False],
        [],
    )


def test_without_evidence_it_is_unknown_and_never_fine__seed_003() -> None:
    """Sizes that are printed only when they were lowered: silence was once read as headroom."""
    found = read_back(planned=(), printed=parse(["", "listening on port 8731"]), context=2048, sequences=4, pool=9)
    assert [one.is_lowered for one in found.asked] == [None, None]
    assert all("unknown" in one.text for one in found.asked)
    assert found.warnings == ()


def test_printed_goes_before_measured_and_that_before_modelled() -> None:
    figures = [Figure(1, "m", How.MODELLED), Figure(2, "p", How.PRINTED), Figure(3, "x", How.MEASURED)]
    assert line("kv", 2, *figures).found.source == "p"
    assert line("kv", 2, *figures[::2]).found.source == "x"
    assert printed_figures(parse(LOAD))["kv"] == Figure(180 * MIB, "the server's own log", How.PRINTED)


@pytest.mark.parametrize(
    ("planned", "found", "verdict"),
    [
        (GIB, GIB + GIB // 11, Verdict.AS_PLANNED),
        (GIB, GIB + GIB // 9, Verdict.OVER),
        (GIB, GIB // 2, Verdict.UNDER),
        (10 * MIB, 60 * MIB, Verdict.AS_PLANNED),
        (GIB, None, Verdict.UNKNOWN),
        (None, GIB, Verdict.UNKNOWN),
    ],
)
def test_drift_beyond_the_band_is_a_warning(planned: int | None, found: int | None, verdict: Verdict) -> None:
    figure = Figure.unknown("gone") if found is None else Figure(found, "NVML")
    got = read_back(planned=[("weights", planned, (figure,))], printed=parse(LOAD), context=2048, sequences=4)
    assert got.lines[0].verdict is verdict
    assert bool(got.warnings) is (verdict is Verdict.OVER)


def root_with(tmp_path: Path, pid: int, rollup: str) -> str:
    place = tmp_path / "proc" / str(pid)
    place.mkdir(parents=True, exist_ok=True)
    (place / "smaps_rollup").write_text(rollup)
    (place / "comm").write_text("llama-server\n")
    return str(tmp_path)


def test_file_backed_pages_are_listed_apart__ollama_16637(tmp_path: Path) -> None:
    """48 GiB of experts are mapped and 20 GiB are on the card: the server's own size is 20 + 3, not 71."""
    card = Device("GPU-a", "", "", 0, Figure(24 * GIB, ""), Figure(3 * GIB, ""), holdings=(Holding(7, 20 * GIB, True),))
    host = HostMemory(Figure(64 * GIB, ""), Figure(8 * GIB, ""), "", Figure(8 * GIB, ""))
    kib = GIB // 1024
    root = root_with(tmp_path, 7, f"Rss: {51 * kib} kB\nPss_Anon: {3 * kib} kB\nPss_File: {48 * kib} kB\n")
    (server,) = held([7], Survey((card,), host), root)
    assert (server.anonymous.bytes, server.file_backed.bytes) == (3 * GIB, 48 * GIB)
    assert [(uuid, one.bytes) for uuid, one in server.on_device] == [("GPU-a", 20 * GIB)]


@pytest.mark.parametrize(
    ("others", "unified", "found"),
    [
        pytest.param((), False, 0, id="nobody uses the card"),
        pytest.param((Holding(9, GIB, True),), False, 0, id="somebody else does"),
        pytest.param((Holding(9, GIB, False),), False, None, id="one whom we cannot see, who may be it"),
        pytest.param((), True, None, id="the card's memory is the host's"),
    ],
)
def test_a_server_that_lost_its_card_is_told_and_nothing_is_made_up__ollama_5464(
    tmp_path: Path, others: tuple[Holding, ...], unified: bool, found: int | None
) -> None:
    """20 GiB were planned for the card. After a suspend the driver was gone for this server: it answers, from the processor."""
    card = Device("GPU-a", "", "", 0, Figure(24 * GIB, ""), Figure(23 * GIB, ""), unified=unified, holdings=others)
    host = HostMemory(Figure(64 * GIB, ""), Figure(8 * GIB, ""), "", Figure(8 * GIB, ""))
    (holds,) = held([7], Survey((card,), host), root_with(tmp_path, 7, "Pss_Anon: 10 kB\n"))
    assert dict(holds.on_device).get("GPU-a", Figure.unknown("")).bytes == found
    memory = {"ledger": [{"what": "weights", "place": "GPU-a", "bytes": 20 * GIB}]}
    launch = LaunchSpec("chat", "model", str(tmp_path / "model.gguf"), 4096, 1)
    told = account(launch, memory, holds, Printed(), (4096, 1))
    verdicts = {one["what"]: one["verdict"] for one in told["compared"]}
    assert verdicts.get("memory of GPU-a") == (None if found is None else "absent")
    wanted = ["memory of GPU-a: 20480 MiB planned, and it has none (NVML: it is not among those that use the device)"]
    assert told["warnings"] == ([] if found is None else wanted)


def test_there_is_a_line_for_every_process_of_the_group__llama_cpp_21692(tmp_path: Path) -> None:
    """A router holds 300 MB on the card though it serves no model; of one that cannot be read nothing is made up."""
    card = Device(
        "GPU-a", "", "", 0, Figure(24 * GIB, ""), Figure(3 * GIB, ""), holdings=(Holding(6, 300 * MIB, True),)
    )
    host = HostMemory(Figure(1, ""), Figure(1, ""), "", Figure(1, ""))
    root = root_with(tmp_path, 6, "Pss_Anon: 10 kB\n")
    proxy, gone = held([7, 6], Survey((card,), host), root)
    assert (proxy.pid, proxy.on_device[0][1].bytes) == (6, 300 * MIB)
    assert (gone.pid, gone.anonymous.bytes, gone.on_device) == (7, None, ())


def test_two_boots_tell_the_third__seed_003(tmp_path: Path) -> None:
    """An arena of 3.80 GiB + 8.40 GiB per 16,384 tokens: boots at 16,384 (12.2) and 32,768 (20.6) were measured; the one at
    65,536, which ran out of memory, needed 37.3. What stays within 13.6 GiB are 19,115 tokens: (13.6 - 3.8) / 8.4 * 16384.
    """
    known = Calibrations("pin", "model", "GPU-a", tmp_path)
    assert known.growth("arena") is None
    known.remember("arena", 16384, round(12.2 * GIB))
    assert known.growth("arena") is None
    known.remember("arena", 32768, round(20.6 * GIB))
    growth = Calibrations("pin", "model", "GPU-a", tmp_path).growth("arena")
    assert growth is not None
    assert abs(growth.at(65536) - 37.3 * GIB) <= 0.1001 * GIB
    assert abs(growth.base - 3.8 * GIB) < 0.001 * GIB
    ceiling = growth.ceiling(round(13.6 * GIB))
    assert ceiling is not None
    assert abs(ceiling - 19_115) <= 1
    assert growth.ceiling(GIB) is None
    for other in (Calibrations("pin2", "model", "GPU-a", tmp_path), Calibrations("pin", "model", "GPU-b", tmp_path)):
        assert other.growth("arena") is None


def test_a_damaged_calibration_is_none_and_few_boots_are_kept(tmp_path: Path) -> None:
    known = Calibrations("pin", "model", "host", tmp_path)
    for x in range(20):
        known.remember("compute", x, 100 + 2 * x)
    assert list(known.boots("compute")) == list(range(20 - BOOTS_KEPT, 20))
    known.path.write_text('{"version": 1, "key": ["pin"')
    assert known.growth("compute") is None
    known.remember("compute", 1, 1)
    assert known.boots("compute") == {1: 1}
    assert fit({5: 3}) is None


@pytest.mark.process
@pytest.mark.engine
def test_a_real_server_prints_its_buffers_and_what_it_serves(tmp_path: Path) -> None:
    """SmolLM2: 30 layers, 3 KV heads of 64: 2 * 30 * 3 * 64 elements of 2 bytes (f16) are 23,040 bytes a token, and
    180 MiB for 8,192."""
    try:
        binary, model = engines.find_llama_server(), models.resolve("smollm2-135m")
    except QueenrightError as error:
        pytest.skip(str(error))
    log = tmp_path / "log"
    words = ["--model", str(model), "--ctx-size", "8192", "--parallel", "4", "-lv", str(VERBOSITY), "-t", "2"]
    port = free_port()
    argv = [*binary.argv, *words, "--host", "127.0.0.1", "--port", str(port)]
    server = spawn(argv, Marker(), log=log)
    try:
        wait_until(lambda: "listening on" in log.read_text(errors="replace"), within=60)
        said = parse(log.read_text(errors="replace").splitlines())
        assert (said.context, said.sequences) == (2048, 4)
        assert said.total(Kind.KV) == 180 * MIB
        (process,) = held([server.pid])
        assert process.anonymous.bytes is not None
    finally:
        end(server)
