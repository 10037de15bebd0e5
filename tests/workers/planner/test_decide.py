"""Decisions: what is planned, what is refused, and what would fit. Machines are made up; figures are hand values."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
from attrs import evolve

from supervisor.errors import ConfigError
from tests.workers.planner import headers
from workers.planner import kv
from workers.planner.decide import Plan, Refusal, Request, plan
from workers.planner.flags import ALL, Flash, Help, Settings, help_of, settings_of, settled, unsayable, words
from workers.planner.kv import CacheType
from workers.planner.model import Model, read_model
from workers.planner.placing import budgets_of
from workers.planner.shapes import GIB, HOST, MIB, Card, Host, Machine

if TYPE_CHECKING:
    from pathlib import Path

Named = Callable[[str], Model]


def card(gib: float, key: str = "GPU-0") -> Card:
    return Card(key, f"{gib:g} GB card", int(gib * GIB), int(gib * GIB))


def machine(host_gib: float, *cards: Card) -> Machine:
    return Machine(Host(int(host_gib * GIB), int(host_gib * GIB)), cards)


DISCRETE = machine(96, card(24))
CPU_ONLY = machine(96)
UNIFIED = Machine(Host(96 * GIB, 96 * GIB), (Card("GPU-0", "GB10", 96 * GIB, 96 * GIB, unified=True),))


def planned(request: Request, model: Model, where: Machine) -> Plan:
    found = plan(request, model, where)
    assert isinstance(found, Plan), found
    return found


def refused(request: Request, model: Model, where: Machine) -> Refusal:
    found = plan(request, model, where)
    assert isinstance(found, Refusal), found
    return found


def test_a_120b_moe_on_a_24_gb_card_runs_with_offload_and_says_how(model: Named) -> None:
    found = planned(Request(context=32_768), model("gpt-oss-120b"), DISCRETE)
    # One layer's experts: 3 x 128 x 4,406,400 bytes and 3 x 2,880 x 128 floats of bias: 1,696,481,280. The card has
    # 24 GiB less 0.5; beside experts it needs the 36 layers' own ~1.0 GiB, an output of 0.57, keys and values of 18 x
    # 2,048 x 32,768 = 1.125 GiB and 27 MiB, a compute buffer below 0.5 and 0.5 for the driver: 3.7 GiB. So it holds
    # (23.5 - 3.7) / 1.58 = 12 layers' experts, and 24 stay behind.
    assert found.choice.cpu_moe == 24
    assert words(found.choice.settings, Help(), cpu_moe=24, layers=36)[-2:] == ("--n-cpu-moe", "24")
    assert any("experts of 24 of 36 layers" in note for note in found.notes)
    one = 3 * 128 * 4_406_400 + 3 * 2880 * 128 * 4
    on_host = sum(line.bytes for line in found.account.lines if line.place == HOST and "experts" in line.what)
    assert on_host == 24 * one
    # One layer fewer does not go in: the plan keeps no more behind than it must.
    tight = Request(context=32_768, settings=Settings(cpu_moe=23))
    assert isinstance(plan(tight, model("gpt-oss-120b"), DISCRETE), Refusal)


@pytest.mark.parametrize("request_", [Request(), Request(context=8192, sequences=None), Request(sequences=3)])
@pytest.mark.parametrize("where", [DISCRETE, CPU_ONLY, UNIFIED, machine(96, card(24), card(16, "GPU-1"))])
def test_the_ledger_sums_to_the_decision(model: Named, request_: Request, where: Machine) -> None:
    for name in ("gpt-oss-20b", "gpt-oss-120b", "qwen3-4b", "gemma3-1b", "deepseek-v2-lite", "qwen3-next"):
        found = plan(request_, model(name), where)
        assert found.placed is not None
        assert found.choice is not None
        account = found.placed.account
        assert isinstance(found, Plan) is account.fits
        for budget in account.budgets:
            lines = [line.bytes for line in account.lines if line.place == budget.place]
            assert sum(lines) + account.left(budget) == budget.usable
        assert account.total == sum(line.bytes for line in account.lines)
        # Whatever the placement: each weight is somewhere once (and a tied embedding twice, on a card).
        weights = sum(line.bytes for line in account.lines if line.what.startswith("weights"))
        assert weights - model(name).weights.total in (0, model(name).weights.tied)
        caches = sum(line.bytes for line in account.lines if line.what.startswith("keys and values"))
        assert caches == kv.kv_bytes(model(name), found.choice.shape)


def test_auto_takes_the_largest_window_of_the_grid_and_says_what_binds(model: Named) -> None:
    small = machine(6)
    found = planned(Request(), model("qwen3-4b"), small)
    assert found.choice.window % 256 == 0
    assert 512 <= found.choice.window < 40_960
    assert found.binds.startswith("system memory")
    larger = Request(context=found.choice.window + 256)
    assert isinstance(plan(larger, model("qwen3-4b"), small), Refusal)
    roomy = planned(Request(), model("qwen3-4b"), CPU_ONLY)
    assert roomy.choice.window == 40_960
    assert roomy.binds == "the context that the model was trained for"
    assert isinstance(plan(Request(least_context=40_960), model("qwen3-4b"), small), Refusal)


def test_auto_sequences_each_keep_the_whole_window_also_on_split_cards(model: Named) -> None:
    # Two cards of 40 GB, 79 GiB less the reserves. The weights without the input are 58.45 GiB, drivers 1, buffers about
    # 1.5 (four copies of a mask of 131,072 x 512 x 2 bytes on each, and the logits on one): 18.05 remain, and a sequence
    # of 131,072 keeps 18 x 2,048 x 131,072 bytes = 4.5 GiB and 27 MiB. Three go in, four need 18.1.
    pair = machine(64, card(40, "GPU-0"), card(40, "GPU-1"))
    found = planned(Request(context=131_072, sequences=None), model("gpt-oss-120b"), pair)
    assert sum(found.placed.split) == 37
    assert all(found.placed.split)
    assert found.choice.sequences == 3
    assert found.choice.window == 131_072
    assert found.choice.shape.ctx_size == 3 * 131_072
    for budget in found.account.budgets:
        assert found.account.left(budget) >= 0


def test_a_model_goes_to_one_card_where_one_is_enough(model: Named) -> None:
    cards = machine(64, card(8, "GPU-0"), card(24, "GPU-1"))
    assert planned(Request(context=8192), model("gpt-oss-20b"), cards).placed.split == (0, 25)
    assert planned(Request(context=8192), model("qwen3-4b"), machine(64, card(24), card(24, "b"))).placed.split == (
        37,
        0,
    )


@pytest.mark.parametrize(
    ("where", "offload", "name", "runs"),
    [
        (DISCRETE, True, "gpt-oss-120b", True),
        (DISCRETE, False, "gpt-oss-120b", False),
        (machine(16, card(24)), True, "gpt-oss-120b", False),
        (machine(40), True, "gpt-oss-120b", False),
        (machine(96), True, "gpt-oss-120b", True),
        (
            Machine(Host(40 * GIB, 40 * GIB), (Card("u", "GB10", 40 * GIB, 40 * GIB, True),)),
            True,
            "gpt-oss-120b",
            False,
        ),
        (machine(96, card(2)), True, "qwen3-4b", False),
        (DISCRETE, True, "qwen3-4b", True),
    ],
)
def test_lilbee_547_system_memory_is_borrowed_only_on_discrete_with_offload_for_moe(
    model: Named, where: Machine, offload: bool, name: str, runs: bool
) -> None:
    # 120b: 59 GiB. 24 + 96 hold it with offload; 24 + 16 do not. 40 GiB of unified memory are 40, not 80.
    found = plan(Request(context=4096, offload=offload), model(name), where)
    assert isinstance(found, Plan) is runs


def test_unified_memory_is_counted_once(model: Named) -> None:
    (budget,) = budgets_of(UNIFIED)
    assert budget.free == 96 * GIB
    found = planned(Request(context=4096), model("gpt-oss-120b"), UNIFIED)
    assert found.choice.cpu_moe == 0
    assert {line.place for line in found.account.lines} == {HOST}


@pytest.mark.parametrize("settings", [Settings(cpu_moe=ALL), Settings(cpu_moe=5)])
def test_lilbee_547_an_offload_flag_on_a_dense_model_is_rejected_not_ignored(model: Named, settings: Settings) -> None:
    found = refused(Request(context=4096, settings=settings), model("qwen3-4b"), DISCRETE)
    assert "declares no routed experts" in found.why


def test_llama_cpp_20490_experts_that_system_memory_does_not_hold_are_refused_with_numbers(model: Named) -> None:
    # 32 GiB of system memory (less 1.6) for 57 GiB of experts: --cpu-moe cannot be. A 48 GB card takes
    # (47.5 - 3.7) / 1.58 = 27 of 36 layers' experts, and the other 9 are 14.2 GiB.
    where = machine(32, card(48))
    found = refused(Request(context=32_768, settings=Settings(cpu_moe=ALL)), model("gpt-oss-120b"), where)
    assert "its routed experts are 56.88 GiB" in found.why
    assert "30.40 GiB can be had" in found.why
    (offer,) = [offer for offer in found.offers if "--n-cpu-moe" in offer.what]
    assert offer.cpu_moe == 9
    assert isinstance(plan(Request(context=32_768, settings=Settings(cpu_moe=9)), model("gpt-oss-120b"), where), Plan)
    assert isinstance(
        plan(Request(context=32_768, settings=Settings(cpu_moe=8)), model("gpt-oss-120b"), where), Refusal
    )
    # Without a card there is no number that helps.
    alone = refused(Request(context=32_768, settings=Settings(cpu_moe=ALL)), model("gpt-oss-120b"), machine(32))
    assert not [offer for offer in alone.offers if "cpu-moe" in offer.what]


def test_a_refusal_says_what_would_fit_and_every_offer_does(model: Named) -> None:
    where = machine(8)
    request = Request(context=40_960, sequences=4)
    found = refused(request, model("qwen3-4b"), where)
    assert {offer.what.split(" = ")[0].split(" q8")[0] for offer in found.offers} >= {"context"}
    for offer in found.offers:
        settings = Settings(type_k=offer.type_k, type_v=offer.type_k, gpu_layers=offer.gpu_layers)
        again = evolve(request, context=offer.context, sequences=offer.sequences, settings=settings)
        assert isinstance(plan(again, model("qwen3-4b"), where), Plan), offer
    dense = refused(Request(context=8192), model("qwen3-4b"), machine(32, card(3)))
    (offer,) = [offer for offer in dense.offers if offer.gpu_layers]
    again = Request(context=8192, settings=Settings(gpu_layers=offer.gpu_layers))
    assert isinstance(plan(again, model("qwen3-4b"), machine(32, card(3))), Plan)


def test_ollama_18264_the_prompt_cache_is_in_the_ledger_and_in_argv(model: Named) -> None:
    for mib in (0, 2048):
        found = planned(Request(context=4096, settings=Settings(cache_ram_mib=mib)), model("qwen3-4b"), CPU_ONLY)
        argv = words(found.choice.settings, Help())
        assert argv[argv.index("--cache-ram") + 1] == str(mib)
        lines = [line.bytes for line in found.account.lines if line.what == "prompt cache"]
        assert lines == ([mib * MIB] if mib else [])
    # Three of them on a host of 16 GB: each takes what the others left, and the third finds too little.
    left, granted = 16 * GIB, 0
    for _ in range(3):
        where = Machine(Host(16 * GIB, left))
        one = plan(Request(context=8192, settings=Settings(cache_ram_mib=2048)), model("qwen3-4b"), where)
        if isinstance(one, Plan):
            left -= one.account.total
            granted += one.account.total
    assert granted <= 16 * GIB
    assert left > 0


def test_llama_cpp_21690_one_prompt_that_is_being_saved_is_a_transient(model: Named) -> None:
    # Qwen3-4B keeps 147,456 bytes a position: 32,768 of them are 4.5 GiB beside the limit, and 16 each for who sits there.
    request = Request(context=32_768, settings=Settings(cache_ram_mib=1024))
    found = planned(request, model("qwen3-4b"), CPU_ONLY)
    (line,) = [line for line in found.account.lines if line.transient]
    assert line.bytes == (147_456 + 16) * 32_768 + 36 * 64
    assert found.account.needed(HOST) >= 1024 * MIB + 147_456 * 32_768
    # gpt-oss-20b: 24 layers' window of 128 are rolled back by 32 checkpoints: 12 x 2,048 x 128 = 3 MiB each.
    sliding = planned(request, model("gpt-oss-20b"), CPU_ONLY)
    (line,) = [line for line in sliding.account.lines if line.what == "context checkpoints"]
    assert line.bytes == 32 * 3 * MIB


@pytest.mark.parametrize(("tokens", "mib"), [(1501, 32.999), (1402, 30.822), (301, 6.618)])
def test_llama_cpp_21690_a_recorded_state_is_no_larger_than_the_plans(tmp_path: Path, tokens: int, mib: float) -> None:
    """Lines of llama-server b10068 over SmolLM2-135M, whose 30 layers have 3 key-value heads of 64: `prompt_save: - saving
    prompt with length 1501, total state size = 32.999 MiB`. 30 x 2 x 192 x 2 x 1,501 are 32.98 of them."""
    keys = {"block_count": 30, "embedding_length": 576, "attention.head_count": 9, "attention.head_count_kv": 3}
    tensors: headers.Tensors = [("token_embd.weight", (576, 49_152), headers.F16)]
    shown = read_model(headers.write_header(tmp_path / "smol.gguf", "llama", keys, tensors))
    # A window is planned in whole paddings; of those, what so many tokens take.
    per_token = kv.prompt_bytes(shown, kv.Shape(2048, 1), 0) / 2048
    assert mib * MIB <= per_token * tokens + 30 * 64 <= 1.01 * mib * MIB


def test_ollama_11772_experts_in_system_memory_are_a_line_of_their_own(model: Named) -> None:
    found = planned(Request(context=8192), model("gpt-oss-120b"), DISCRETE)
    (line,) = [line for line in found.account.lines if "experts" in line.what and line.place == HOST]
    assert line.bytes > 30 * GIB
    assert "may lock" in line.why


# --- flags ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("type_k", "type_v", "flash"), list(itertools.product(CacheType, CacheType, Flash)))
def test_a_quantised_v_never_goes_without_flash_attention(type_k: CacheType, type_v: CacheType, flash: Flash) -> None:
    done = settled(Settings(type_k=type_k, type_v=type_v, flash=flash))
    assert done.type_k is type_k
    if done.type_v.is_quantised:
        assert done.flash is Flash.ON
    else:
        assert done.type_v in (type_v, CacheType.F16)
    if flash is Flash.OFF and type_v.is_quantised:
        assert done.type_v is CacheType.F16
        assert done.notes
    assert settled(done) == done
    # Estimate and launch are the same words, and read back they are the same settings.
    again, rest = settings_of(words(done, Help()))
    assert (again, rest) == (done, ())


def test_flexllama_15_flash_attention_in_the_form_that_the_binary_knows() -> None:
    new = "-fa,   --flash-attn [on|off|auto]       set Flash Attention use ('on', 'off', or 'auto', default: 'auto')"
    middle = "-fa,   --flash-attn FA                  set Flash Attention use"
    old = "-fa,   --flash-attn                     enable Flash Attention (default: disabled)"
    on, off = Settings(flash=Flash.ON), Settings(flash=Flash.OFF)
    for text, said in ((new, ["--flash-attn", "on"]), (middle, ["--flash-attn", "on"]), (old, ["--flash-attn"])):
        assert [word for word in words(on, help_of(text)) if word in ("--flash-attn", "on")] == said
    assert "--flash-attn" not in words(off, help_of(old))
    assert "off" in words(off, help_of(new))
    assert words(on, help_of(""))[-2:] == ("--flash-attn", "on")
    assert words(Settings(), Help(frozenset({"--cache-ram"}))) == ("--cache-ram", "0")


@pytest.mark.parametrize(
    "arguments",
    [["--fit", "on", "-ngl", "20"], ["--fit", "on", "--cpu-moe"], ["--cpu-moe", "--n-cpu-moe", "4"]],
)  # fmt: skip
def test_turbollm_99_combinations_that_undo_each_other_are_refused(arguments: list[str]) -> None:
    with pytest.raises(ConfigError):
        settings_of(arguments)


def test_turbollm_99_an_explicit_layer_count_is_planned_as_given_and_nothing_is_offloaded_behind_it(
    model: Named,
) -> None:
    request = Request(context=8192, settings=Settings(gpu_layers=99))
    found = refused(request, model("gpt-oss-120b"), DISCRETE)
    assert any("--n-cpu-moe" in offer.what for offer in found.offers)


def test_lemonade_3276_how_the_cache_is_divided_is_always_said() -> None:
    assert "--no-kv-unified" in words(Settings(), Help())
    assert "--kv-unified" in words(Settings(unified=True), Help())


@pytest.mark.parametrize(
    ("arguments", "name"),
    [(["-ctk", "q3_k"], "-ctk"), (["--ubatch-size", "0"], "--ubatch-size"), (["-ngl", "many"], "-ngl"),
     (["--cache-ram", "-1"], "--cache-ram"), (["-ctv"], "-ctv")],
)  # fmt: skip
def test_a_wrong_value_is_refused_by_name(arguments: list[str], name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        settings_of(arguments)


def test_what_is_not_the_planners_is_passed_on() -> None:
    found, rest = settings_of(["--threads", "2", "-fa", "--mmproj=/m.gguf", "-ctk", "q8_0", "--jinja", "-ngl", "all"])
    assert rest == ("--threads", "2", "--mmproj", "/m.gguf", "--jinja")
    assert found == Settings(type_k=CacheType.Q8_0, flash=Flash.ON, gpu_layers=ALL, projector="/m.gguf")


# --- in the words of the build at hand --------------------------------------------------------------------------------


def knows(*names: str) -> Help:
    return Help(frozenset({"--help", *names}))


def test_an_older_build_is_told_in_its_older_words() -> None:
    done = Settings(gpu_layers=ALL, checkpoints=8, type_k=CacheType.Q8_0)
    said = words(done, knows("-ngl", "--swa-checkpoints", "-ctk"))
    assert said == ("-ctk", "q8_0", "--swa-checkpoints", "8", "-ngl", "999")
    assert settings_of(said)[0] == evolve(done, gpu_layers=999)
    # --n-cpu-moe is short for this (August 2025): the same tensors by their names.
    said = words(Settings(), knows("--override-tensor"), cpu_moe=3, layers=36)
    assert said[0] == "--override-tensor"
    pattern, _, where = said[1].partition("=")
    assert where == "CPU"
    for name, kept in {
        "blk.0.ffn_up_exps.weight": True, "blk.2.ffn_gate_up_exps.weight": True, "blk.3.ffn_up_exps.weight": False,
        "blk.12.ffn_down_exps.weight": False, "blk.1.ffn_up.weight": False, "blk.1.ffn_down_chexps.weight": True,
    }.items():  # fmt: skip
        assert bool(re.search(pattern, name)) is kept, name
    assert words(Settings(), knows("--n-cpu-moe"), cpu_moe=36, layers=36) == ("--n-cpu-moe", "36")


def test_what_a_plan_rests_on_and_a_build_has_no_words_for_is_named() -> None:
    done = settled(Settings(type_k=CacheType.Q8_0, type_v=CacheType.Q8_0, gpu_layers=12))
    assert unsayable(done, Help(), cpu_moe=4, layers=36) == []
    found = unsayable(done, knows("--cache-type-k"), cpu_moe=4, layers=36)
    assert found == ["--flash-attn", "--cache-type-v", "--n-gpu-layers", "--n-cpu-moe"]
    assert unsayable(Settings(), knows("--model")) == []
    assert unsayable(Settings(unified=True), knows("--model")) == ["--kv-unified"]
