"""A whole configuration foreseen: `queenright plan`, and what its launches leave to each other."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from supervisor.cli import main
from supervisor.config_shape import GroupConfig, LaunchConfig
from supervisor.devices.shape import Device, Figure, HostMemory, Survey
from workers.llama_swap import KIND
from workers.planner.foreseeing import foresee
from workers.planner.shapes import GIB, HOST, Card, Host, Machine, less, machine_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import pytest


def survey(host_gib: float, *cards: Device) -> Survey:
    figure = Figure(int(host_gib * GIB), "made up")
    memory = HostMemory(figure, figure, "made up", figure)
    return Survey(cards, memory)


def gpu(gib: int | None, *, unified: bool = False) -> Device:
    figure = Figure(gib * GIB, "made up") if gib is not None else Figure.unknown("N/A")
    return Device("GPU-1", "0000:01:00.0", "a card", 0, figure, figure, unified=unified, why_unknown="it says N/A")


def test_each_launch_is_planned_in_what_those_before_it_leave(files: dict[str, Path]) -> None:
    # Qwen3-4B at 32,768 tokens is 4.5 GiB of cache and 2.2 of weights: one goes into 12 GiB, and a second does not.
    launches = tuple(LaunchConfig(role, str(files["qwen3-4b"]), context=32_768) for role in ("chat", "other"))
    found = foresee([GroupConfig("a", launches)], survey(12), ())
    assert [one.fits for one in found] == [True, False]
    assert found[1].data["would_fit"]
    assert "does not fit" in "\n".join(found[1].lines)


def test_a_group_is_planned_for_the_cards_that_it_shows_and_beside_those_before_it(
    files: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    figure = Figure(24 * GIB, "made up")
    cards = [Device(f"GPU-{number}", "", "a card", number, figure, figure) for number in (0, 1)]
    one = "Available devices:\n  CUDA0: a card (24000 MiB, 23000 MiB free)\n"
    monkeypatch.setattr("workers.listed.ask", lambda *_: one)
    launch = LaunchConfig("chat", str(files["qwen3-4b"]), context=32_768)
    groups = [
        GroupConfig(name, (launch,), environment={"CUDA_VISIBLE_DEVICES": shown})
        for name, shown in (("a", "0"), ("b", "1"), ("c", "1"), ("d", "1"), ("e", "1"), ("f", "1"))
    ]
    found = foresee(groups, survey(64, *cards), ("/nowhere/llama-server",))
    places: Any = [{line["place"] for line in one.data["ledger"]} - {HOST} for one in found]  # type: ignore[attr-defined]
    assert places[:2] == [{"GPU-0"}, {"GPU-1"}]
    assert [one.fits for one in found] == [True, True, True, True, False, False], "each 7 GiB of 24"


def test_the_prompt_cache_of_the_configuration_is_planned_and_said(files: dict[str, Path]) -> None:
    launch = LaunchConfig("chat", str(files["qwen3-4b"]), cache_ram_mib=256)
    (one,) = foresee([GroupConfig("a", (launch,))], survey(16), ())
    ledger: Any = one.data["ledger"]
    assert [line["bytes"] for line in ledger if line["what"] == "prompt cache"] == [256 << 20]


def test_a_device_whose_memory_is_unknown_is_left_out_and_named() -> None:
    found = machine_of(survey(16, gpu(None)))
    assert found.cards == ()
    assert found.unknown == ("a card: it says N/A",)
    assert machine_of(survey(16, gpu(16, unified=True))).is_unified


def test_what_is_taken_of_unified_memory_is_taken_once() -> None:
    one = Machine(Host(64, 60), (Card("c", "c", 64, 60, unified=True),))
    left = less(one, {HOST: 20})
    assert (left.host.available, left.cards[0].free) == (40, 40)
    apart = less(Machine(Host(64, 60), (Card("c", "c", 24, 20),)), {HOST: 20, "c": 5})
    assert (apart.host.available, apart.cards[0].free) == (40, 15)


def test_plan_shows_every_launch(
    files: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("supervisor.devices.survey.survey", lambda: survey(8))
    path = tmp_path / "queenright.toml"
    launch = '[[groups.a.launches]]\nrole = "{}"\nmodel = "{}"\ncontext = {}\n'
    path.write_text(launch.format("chat", files["gemma3-1b"], 4096))
    assert main(["plan", "--config", str(path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [one["role"] for one in found["launches"]] == ["chat"]
    path.write_text(launch.format("chat", files["gpt-oss-120b"], 4096))
    assert main(["plan", "--config", str(path)]) == 6
    assert "does not fit" in capsys.readouterr().out


def test_the_kind_says_it_can(model: Callable[[str], object]) -> None:
    from supervisor.kinds import Foreseeing, find

    assert isinstance(KIND, Foreseeing)
    assert not isinstance(find("command"), Foreseeing)
