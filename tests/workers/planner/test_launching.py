"""The plan of a group that is about to be started, as its kind is asked for it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
import trio
from attrs import evolve

from supervisor.contract import GroupSpec, LaunchSpec
from supervisor.devices import reservations
from supervisor.devices.shape import Device, Figure
from supervisor.errors import ConfigError, DoesNotFitError, EngineBinaryError
from supervisor.planning import Ledger
from tests.workers.planner.test_foreseeing import survey
from workers import estimator
from workers.estimator import Estimate, Part
from workers.llama_swap import KIND
from workers.planner.flags import of_variables
from workers.planner.launching import plan_group

if TYPE_CHECKING:
    from pathlib import Path

FLAGS = "--cache-ram --kv-unified --no-kv-unified --flash-attn --cache-type-k --cache-type-v"


def group(path: Path, *arguments: str, flags: str = FLAGS, context: int = 8192) -> GroupSpec:
    launch = LaunchSpec("chat", "a-model", str(path), context, 1, arguments)
    options = {"llama_server": "/nowhere/llama-server", "flags": flags, "proxy": "built-in"}
    return GroupSpec("a", "llama-swap", (launch,), "pin", options)


def test_a_plan_without_an_estimate_says_why_there_is_none(files: dict[str, Path]) -> None:
    shown = plan_group(group(files["qwen3-4b"]), survey(16)).memory["chat"]
    assert shown["estimate"]["by"] is None
    assert "QUEENRIGHT_ESTIMATOR" in shown["estimate"]["why_none"]
    assert not shown["notes"], "that there is none is no warning"


def test_what_the_estimate_says_differently_is_noted_and_planned_for(
    files: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Qwen3-4B at 8,192 tokens: 36 x 2 x 1,024 x 2 bytes x 8,192 = 1,152 MiB of cache.
    monkeypatch.setattr(estimator, "find", lambda server: estimator.Estimator("llama-fit-params", ("x",), "x"))
    asked: list[list[str]] = []

    def ask(who: object, model: object, flags: list[tuple[str, ...]], environment: object) -> Estimate:
        asked.append([word for flag in flags for word in flag])
        return Estimate("llama-fit-params", (Part("Host", 2253, 2304, 320),))

    monkeypatch.setattr(estimator, "ask", ask)
    planned = plan_group(group(files["qwen3-4b"], "--threads", "2", "-ctk", "f16", "--pooling", "last"), survey(16))
    shown = planned.memory["chat"]
    assert shown["estimate"]["differs"]
    assert any("2,304 MiB of keys, values and state" in note and "1,152 MiB" in note for note in shown["notes"])
    (line,) = [line for line in shown["ledger"] if line["what"].startswith("keys")]
    assert (line["how"], line["bytes"] >> 20) == ("estimated", 2305)
    assert sum(line["bytes"] for line in shown["ledger"]) == planned.grants["host"]
    assert asked[0][:6] == ["--ctx-size", "8192", "--parallel", "1", "--no-kv-unified", "--cache-ram"]
    assert asked[0][-3:] == ["--pooling", "last", "--no-repack"], (
        "what an estimate depends on is passed on, and nothing else"
    )
    assert "--threads" not in asked[0]


def test_an_estimator_that_hangs_is_asked_once(files: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimator, "find", lambda server: estimator.Estimator("llama-fit-params", ("x",), "x"))
    asked: list[object] = []

    def hang(*_: object) -> Estimate:
        asked.append(1)
        raise estimator.TookTooLongError("llama-fit-params said nothing within 10 s")

    monkeypatch.setattr(estimator, "ask", hang)
    spec = group(files["gemma3-1b"], context=0)
    both = GroupSpec("a", "llama-swap", spec.launches * 2, "pin", spec.options)
    planned = plan_group(both, survey(16))
    assert planned.memory["chat"]["estimate"]["why_none"] == "llama-fit-params said nothing within 10 s"
    assert len(asked) == 1


def test_a_build_without_words_for_the_plan_is_refused_by_name(files: dict[str, Path]) -> None:
    quantised = ("--cache-type-k", "q8_0", "--cache-type-v", "q8_0")
    assert "q8_0" in plan_group(group(files["qwen3-4b"], *quantised), survey(16)).spec.launches[0].arguments
    with pytest.raises(EngineBinaryError, match="a/chat: this llama-server has no --cache-type-v, and the plan"):
        plan_group(group(files["qwen3-4b"], *quantised, flags=FLAGS.replace("--cache-type-v", "")), survey(16))


@pytest.mark.parametrize("total", [Figure(0, "a driver"), Figure.unknown("N/A")])
def test_two_models_take_turns_on_a_card_of_no_known_size__model_runner_334(
    files: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, total: Figure
) -> None:
    """Each plan takes what the other one was promised back, or is refused with numbers; none of the ten waits."""
    card = Device("GPU-1", "0000:01:00.0", "a card", 0, total, total, why_unknown="N/A")
    monkeypatch.setenv(reservations.VARIABLE, str(tmp_path / "book"))
    monkeypatch.setattr("supervisor.devices.survey.survey", lambda: survey(4, card))
    monkeypatch.setattr("workers.listed.ask", lambda *_: None)
    monkeypatch.setattr("supervisor.budgets.MEMORY_SETTLE", 0.01)
    ledger, lock = Ledger(tmp_path, "a"), tmp_path / "generation.lock"
    fitting, too_large = group(files["qwen3-4b"], context=4096), group(files["gpt-oss-20b"], context=4096)
    for _ in range(10):
        began = time.monotonic()
        assert trio.run(ledger.plan, fitting, KIND, lock).launches[0].context == 4096
        ledger.release()
        with pytest.raises(DoesNotFitError, match=r"GiB of system memory, and 3\.\d\d GiB can be had"):
            trio.run(ledger.plan, too_large, KIND, lock)
        ledger.release()
        assert time.monotonic() - began < 30  # two looks; the limit is for a busy machine


def test_a_variable_for_the_server_counts_as_the_flag_of_its_name(files: dict[str, Path]) -> None:
    """It was told of and not reckoned with, and a server with a cache of 8 bits was planned with one of 16."""
    path = files["qwen3-4b"]
    variables = {
        "LLAMA_ARG_CACHE_TYPE_K": "q8_0",
        "LLAMA_ARG_CACHE_TYPE_V": "q8_0",
        "LLAMA_ARG_CTX_SIZE": "7",
        "A": "1",
    }
    flags = plan_group(group(path, "-ctk", "q8_0", "-ctv", "q8_0"), survey(16))
    told = plan_group(evolve(group(path), environment=variables), survey(16))
    assert told.grants == flags.grants
    assert told.grants["host"] < plan_group(group(path), survey(16)).grants["host"]
    assert told.spec.launches == flags.spec.launches
    assert told.spec.environment == {"LLAMA_ARG_CTX_SIZE": "7", "A": "1"}, "what is said by flags is said once"
    assert [one for one in told.memory["chat"]["notes"] if "LLAMA_ARG" in one] == [
        "LLAMA_ARG_CTX_SIZE in `environment` comes to nothing: give `context` instead"
    ]
    # The launch's own word goes before it, as a flag does before a variable; also where it is the default.
    own = plan_group(evolve(group(path, "-ctk", "f16", "-ctv", "f16"), environment=variables), survey(16))
    assert own.grants == plan_group(group(path), survey(16)).grants
    assert own.spec.environment == {"LLAMA_ARG_CTX_SIZE": "7", "A": "1"}
    for name, value in (("CACHE_TYPE_K", "q9"), ("KV_OFFLOAD", "maybe"), ("FLASH_ATTN", "maybe"), ("UBATCH", "-1")):
        with pytest.raises(ConfigError, match=f"environment: LLAMA_ARG_{name} cannot be '{value}'"):
            plan_group(evolve(group(path), environment={f"LLAMA_ARG_{name}": value}), survey(16))


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("SWA_FULL", "1", ("--swa-full",)),
        ("SWA_FULL", "0", ()),
        ("CPU_MOE", "on", ("--cpu-moe",)),
        ("KV_OFFLOAD", "false", ("--no-kv-offload",)),
        ("KV_OFFLOAD", "enabled", ("--kv-offload",)),
        ("NO_KV_OFFLOAD", "0", ("--no-kv-offload",)),
        ("FLASH_ATTN", "1", ("--flash-attn=on",)),
        ("FIT", "disabled", ("--fit", "off")),
        ("N_GPU_LAYERS", "all", ("--n-gpu-layers", "all")),
        ("TENSOR_SPLIT", "3,1", ("--tensor-split", "3,1")),
        ("MMPROJ", "/m/a=b.gguf", ("--mmproj", "/m/a=b.gguf")),
    ],
)
def test_what_a_variable_says(name: str, value: str, words: tuple[str, ...]) -> None:
    assert of_variables({f"LLAMA_ARG_{name}": value, "LLAMA_ARG_THREADS": "2", name: value}) == (
        words,
        {"LLAMA_ARG_THREADS": "2", name: value},
    )
