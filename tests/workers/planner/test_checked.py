"""A plan beside llama.cpp's own estimate: whose figure counts, and what becomes of the plan. Estimates are made up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from attrs import evolve

from workers.estimator import Estimate, NoEstimateError, Part
from workers.planner import render
from workers.planner.checked import checked, told
from workers.planner.crosscheck import BUFFER, CACHE, NONE, WEIGHTS, Check, Compared, part_of
from workers.planner.decide import Plan, Refusal, Request, plan
from workers.planner.model import Model
from workers.planner.placing import Choice, Placed, place
from workers.planner.shapes import GIB, HOST, MIB, Card, Host, Known, Machine

Named = Callable[[str], Model]


def host(gib: float) -> Machine:
    return Machine(Host(int(gib * GIB), int(gib * GIB)))


class Engine:
    """A llama.cpp whose figures are this arithmetic's, but for factors; it counts how often it is asked."""

    def __init__(
        self, model: Model, machine: Machine, *, cache: float = 1, buffer: float = 1, knows_cards: bool = True
    ):
        self.model, self.machine = model, machine
        self.factors = {WEIGHTS: 1.0, CACHE: cache, BUFFER: buffer}
        self.knows_cards, self.asked = knows_cards, list[Choice]()

    def __call__(self, choice: Choice, placed: Placed) -> Estimate:
        self.asked.append(choice)
        machine = self.machine if self.knows_cards else Machine(self.machine.host)
        account = place(self.model, machine, evolve(choice, correction=NONE)).account
        parts: list[Part] = []
        for key in (*(card.key for card in machine.cards), HOST):
            sizes = dict.fromkeys(self.factors, 0.0)
            for line in account.lines:
                if line.place == key and (what := part_of(line)) is not None:
                    sizes[what] += line.bytes * self.factors[what]
            name = "Host" if key == HOST else f"CUDA{len(parts)}"
            parts.append(Part(name, *(int(size) // MIB for size in sizes.values())))
        return Estimate("llama-fit-params", tuple(parts))


def how(found: Plan | Refusal, what: str, where: str = HOST) -> set[Known]:
    assert found.placed is not None
    return {line.how for line in found.placed.account.lines if line.what.startswith(what) and line.place == where}


def test_where_the_two_agree_the_lines_stay_and_count_as_checked(model: Named) -> None:
    engine = Engine(model("qwen3-4b"), host(32))
    found, check = checked(Request(context=8192), engine.model, engine.machine, engine)
    assert isinstance(found, Plan)
    assert len(engine.asked) == 1
    assert not check.differing
    assert how(found, "weights") == {Known.HEADER}, "the file's own figure is in bytes, the engine's in MiB"
    assert how(found, "keys and values") == how(found, "compute buffer") == {Known.ESTIMATED}
    alone = plan(Request(context=8192), engine.model, engine.machine)
    assert isinstance(alone, Plan)
    assert abs(found.account.total - alone.account.total) <= MIB
    assert "the same" in "\n".join(render.text("chat", engine.model, found, check))


def test_a_larger_cache_than_the_header_tells_makes_the_window_smaller(model: Named) -> None:
    engine = Engine(model("qwen3-4b"), host(5), cache=1.5)
    alone = plan(Request(), engine.model, engine.machine)
    found, check = checked(Request(), engine.model, engine.machine, engine)
    assert isinstance(alone, Plan)
    assert isinstance(found, Plan)
    assert len(engine.asked) == 2
    assert found.choice.window < alone.choice.window
    assert found.account.fits
    (one,) = [one for one in check.differing if one.what == CACHE]
    assert one.estimated == pytest.approx(1.5 * one.modelled, rel=0.01)
    assert any("keys, values and state" in line for line in told(check))
    data = render.data("chat", engine.model, found, check)["estimate"]
    assert data["differs"]
    assert data["by"] == "llama-fit-params"


def test_an_upper_bound_of_the_header_costs_no_window(model: Named) -> None:
    """gguf-parser-go#32's other side: a model that is counted from above gets what the engine's estimate allows."""
    engine = Engine(model("qwen3-4b"), host(5), cache=0.25)
    alone = plan(Request(), engine.model, engine.machine)
    found, _ = checked(Request(), engine.model, engine.machine, engine)
    assert isinstance(alone, Plan)
    assert isinstance(found, Plan)
    assert found.choice.window > 2 * alone.choice.window
    assert len(engine.asked) == 2


def test_what_the_header_refuses_and_the_engine_has_room_for_is_planned(model: Named) -> None:
    engine = Engine(model("qwen3-4b"), host(5), cache=0.25)
    request = Request(context=32_768)
    assert isinstance(plan(request, engine.model, engine.machine), Refusal)
    found, _ = checked(request, engine.model, engine.machine, engine)
    assert isinstance(found, Plan)
    assert (found.choice.window, found.account.fits) == (32_768, True)
    assert len(engine.asked) <= 2


def test_what_the_engine_says_does_not_fit_is_refused(model: Named) -> None:
    engine = Engine(model("qwen3-4b"), host(6), cache=4)
    request = Request(context=16_384)
    assert isinstance(plan(request, engine.model, engine.machine), Plan)
    found, _ = checked(request, engine.model, engine.machine, engine)
    assert isinstance(found, Refusal)
    assert found.offers
    assert len(engine.asked) <= 2


def test_without_an_estimate_the_plan_is_what_it_was(model: Named) -> None:
    def none(choice: Choice, placed: Placed) -> Estimate:
        raise NoEstimateError("xllamacpp made none (signal 6)")

    for gib in (5, 2):
        found, check = checked(Request(context=16_384), model("qwen3-4b"), host(gib), none)
        assert found == plan(Request(context=16_384), model("qwen3-4b"), host(gib))
        assert check == Check(why_none="xllamacpp made none (signal 6)")
    text = "\n".join(render.text("chat", model("qwen3-4b"), found, check))
    assert "llama.cpp's own estimate: none (xllamacpp made none (signal 6))" in text


def cards(*gib: float, name: str = "") -> Machine:
    made = [
        Card(f"GPU-{at}", "a card", int(one * GIB), int(one * GIB), engine_name=name and f"{name}{at}")
        for at, one in enumerate(gib)
    ]
    return Machine(Host(64 * GIB, 64 * GIB), tuple(made))


@pytest.mark.parametrize("name", ["CUDA", ""])
def test_each_card_has_its_own_figures(model: Named, name: str) -> None:
    machine = cards(24, 16, name=name)
    engine = Engine(model("gpt-oss-20b"), machine, buffer=0.5)
    found, check = checked(Request(context=32_768), engine.model, machine, engine)
    assert {one.place for one in check.compared} >= {"GPU-0", HOST}
    assert how(found, "compute buffer", "GPU-0") == {Known.ESTIMATED}
    assert [one.what for one in check.differing] == [BUFFER] * len(check.differing) != []


def test_an_estimator_without_the_cards_is_held_against_the_sums_and_replaces_nothing(model: Named) -> None:
    machine = cards(24)
    engine = Engine(model("gpt-oss-20b"), machine, knows_cards=False)
    found, check = checked(Request(context=32_768), engine.model, machine, engine)
    assert found == plan(Request(context=32_768), engine.model, machine)
    assert [one.place for one in check.compared] == ["", ""]
    assert not check.differing
    other = Engine(model("gpt-oss-20b"), machine, knows_cards=False, cache=2)
    _, check = checked(Request(context=32_768), engine.model, machine, other)
    assert [one.what for one in check.differing] == [CACHE]
    assert "the latter" in told(check)[0]


def test_other_devices_than_the_plans_say_nothing(model: Named) -> None:
    machine = cards(24, name="Vulkan")
    engine = Engine(model("gpt-oss-20b"), machine)
    found, check = checked(Request(context=32_768), engine.model, machine, engine)
    assert "other devices" in check.why_none
    assert found == plan(Request(context=32_768), engine.model, machine)


def test_a_flag_that_cannot_be_is_refused_without_asking(model: Named) -> None:
    from workers.planner.flags import Settings

    engine = Engine(model("qwen3-4b"), host(32))
    found, check = checked(Request(settings=Settings(cpu_moe=4)), engine.model, engine.machine, engine)
    assert isinstance(found, Refusal)
    assert (engine.asked, check) == ([], Check())


@pytest.mark.parametrize(
    ("what", "ours", "theirs", "differs"),
    [(CACHE, 180, 180, False), (CACHE, 181, 180, False), (CACHE, 200, 180, True), (CACHE, 0, 45, True),
     (BUFFER, 111, 104, False), (BUFFER, 111, 22, True)],
)  # fmt: skip
def test_the_band(what: str, ours: int, theirs: int, differs: bool) -> None:
    assert Compared(HOST, what, ours * MIB, theirs * MIB).differs is differs


def test_the_data_is_plain(model: Named) -> None:
    import json

    engine = Engine(model("qwen3-4b"), host(32), cache=2)
    found, check = checked(Request(context=8192), engine.model, engine.machine, engine)
    again: dict[str, Any] = json.loads(json.dumps(render.data("chat", engine.model, found, check)))
    assert {line["how"] for line in again["ledger"]} >= {"header", "estimated"}
    places = {place["place"]: place["needed"] for place in again["places"]}
    assert places[HOST] == sum(line["bytes"] for line in again["ledger"])


def test_weights_that_an_estimate_leaves_out_are_counted_and_more_than_the_file_has_are_heeded(model: Named) -> None:
    """b11549's estimate leaves out what would be packed anew for the processor: 305 of 2,254 MiB of Qwen3-4B in Q4_K."""
    request, machine = Request(context=8192), host(32)
    for factor, heeded in ((0.135, False), (1.5, True)):
        engine = Engine(model("qwen3-4b"), machine)
        engine.factors[WEIGHTS] = factor
        found, check = checked(request, engine.model, machine, engine)
        weights = (
            sum(line.bytes for line in found.placed.account.lines if line.what.startswith("weights"))
            if found.placed
            else 0
        )
        assert weights == pytest.approx(engine.model.weights.total * (1.5 if heeded else 1), abs=2 * MIB)
        assert ("former" in told(check)[0]) is heeded
