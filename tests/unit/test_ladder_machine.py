"""The ladder among members that come and go and wardens and keepers that die: the real `decide` in a modelled world.

What the model leaves out is what build.lock gives: a step of the ladder is one step here, and so is the keeper's step
into `stopping`. Its *look* at the members is a step before that, as it is in the keeper.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from attrs import define, evolve
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from supervisor.contract import EngineSpec, GroupSpec, LaunchSpec, Lifetime
from supervisor.ladder import Observation, Rung, covers, decide, extended

if TYPE_CHECKING:
    from collections.abc import Callable

MACHINE = "machine"
ROOTS = ("root-a", "root-b")
SLOTS = (MACHINE, *ROOTS)
"""The machine slot, and the private one of each configuration root."""


@define
class Engine:
    """What runs in a slot."""

    spec: EngineSpec
    keeper: bool = True
    stopping: bool = False
    hung: bool = False
    saw_nobody: bool = False
    """The keeper's look at the members, from before it has build.lock."""


@define
class Place:
    """A slot."""

    engine: Engine | None = None
    leftovers: tuple[str, ...] = ()
    unkillable: bool = False
    held: bool = False
    warm: bool = False
    """Whether any configuration wants its engine kept."""


@define
class Process:
    """One that has an engine, or had one that was ended under it."""

    root: str
    wanted: EngineSpec
    slot: str
    lost: bool = False


@st.composite
def specs(draw: st.DrawFn) -> EngineSpec:
    """What one configuration asks for; few of them, so that they meet."""
    roles = draw(st.sets(st.sampled_from(["chat", "embed"]), min_size=1))
    model, pin, least = draw(st.sampled_from("mmn")), draw(st.sampled_from("ppq")), draw(st.sampled_from([0, 0, 8192]))
    cut = draw(st.booleans())
    launches = [LaunchSpec(role, model, f"/{model}", 8192 if least else 4096, 1, least_context=least)
                for role in sorted(roles)]  # fmt: skip
    groups = [(launch.role, (launch,)) for launch in launches] if cut else [("all", tuple(launches))]
    return EngineSpec(
        tuple(GroupSpec(name, "llama-swap", many, pin) for name, many in groups), keep_warm=draw(st.booleans())
    )


places = st.sampled_from(SLOTS)
picks = st.integers(0, 100)


class Machine(RuleBasedStateMachine):
    """See the module."""

    def __init__(self) -> None:
        super().__init__()
        self.places = {name: Place() for name in SLOTS}
        self.processes: list[Process] = []

    # --- the ladder, as acquire carries it out ---

    def members(self, slot: str, but: Process | None = None) -> list[Process]:
        return [one for one in self.processes if one.slot == slot and one is not but]

    def observe(self, slot: str, wanted: EngineSpec, own: Process | None) -> Observation:
        place, engine = self.places[slot], self.places[slot].engine
        hold = "held by ann" if place.held else ""
        overflows = slot == MACHINE
        if engine is None:
            return Observation(
                wanted, False, leftovers=place.leftovers, unkillable=place.unkillable, hold=hold, overflows=overflows
            )
        answers = engine.keeper and not engine.hung
        return Observation(
            wanted,
            True,
            stopping=engine.stopping and answers,
            served=engine.spec if answers else None,
            others=len(self.members(slot, own)),
            hung="it hangs" if engine.hung else "",
            hold=hold,
            overflows=overflows,
        )

    def climb(self, slot: str, root: str, wanted: EngineSpec, own: Process | None) -> str | None:
        """One step of the ladder in that slot; the slot whose engine it led to, if any."""
        place = self.places[slot]
        rung = decide(self.observe(slot, wanted, own)).rung
        if rung is Rung.TAKE_OVER:
            if place.engine is not None:
                assert place.engine.hung
                self.end(slot, leftovers=("pid 7",))
                return None
            if place.unkillable is False and place.leftovers == ("stuck",):
                place.unkillable = True
                return None
            place.leftovers = ()
            rung = decide(self.observe(slot, wanted, own)).rung
            assert rung is Rung.BUILD
        if rung is Rung.OVERFLOW:
            assert place.engine is not None
            assert self.members(slot, own) or place.engine.spec.lifetime is Lifetime.RUN
            return self.climb(root, root, wanted, own)
        if rung is Rung.BUILD:
            assert place.engine is None
            assert not place.leftovers
            assert not place.held
            for other in (MACHINE, root):  # never two engines for one contract
                there = self.places[other].engine
                assert there is None or there.stopping or there.hung or not there.keeper or not covers(
                    wanted, there.spec
                )  # fmt: skip
            place.engine = Engine(wanted)
        elif rung is Rung.EXTEND:
            assert place.engine is not None
            place.engine.spec = self.extended(place.engine.spec, wanted)
        elif rung is Rung.REPLACE:
            assert place.engine is not None
            place.engine.spec = wanted
        elif rung is not Rung.BIND:
            return None
        place.warm = (place.warm and rung in (Rung.EXTEND, Rung.BIND)) or wanted.keep_warm
        return slot

    def get(self, root: str, wanted: EngineSpec, own: Process | None) -> str | None:
        if self.is_at_home(root, wanted, own):
            return root
        return self.climb(MACHINE, root, wanted, own)

    def is_at_home(self, root: str, wanted: EngineSpec, own: Process | None) -> bool:
        """Whether the private engine will do."""
        return self.places[root].engine is not None and decide(self.observe(root, wanted, own)).rung is Rung.BIND

    def extended(self, served: EngineSpec, wanted: EngineSpec) -> EngineSpec:
        return extended(served, wanted)

    # --- who comes and goes ---

    @rule(root=st.sampled_from(ROOTS), wanted=specs())
    def somebody_comes(self, root: str, wanted: EngineSpec) -> None:
        wanted = evolve(wanted, root=root)
        slot = self.get(root, wanted, None)
        if slot is not None:
            self.processes.append(Process(root, wanted, slot))

    @precondition(lambda self: self.processes)
    @rule(pick=picks)
    def somebody_looks_again(self, pick: int) -> None:
        process = self.processes[pick % len(self.processes)]
        slot = self.get(process.root, process.wanted, process)
        if slot is not None:
            process.slot, process.lost = slot, False
        elif not process.lost:
            # Its keeper is away for a moment; what it uses is still there.
            assert self.places[process.slot].engine is not None

    @precondition(lambda self: self.processes)
    @rule(pick=picks)
    def somebody_dies(self, pick: int) -> None:
        self.processes.pop(pick % len(self.processes))

    @rule(wanted=specs())
    def an_owner_runs_one(self, wanted: EngineSpec) -> None:
        if decide(self.observe(MACHINE, wanted, None)).rung is Rung.BUILD:
            self.places[MACHINE].engine = Engine(evolve(wanted, lifetime=Lifetime.RUN))

    # --- what befalls an engine ---

    def end(self, slot: str, leftovers: tuple[str, ...] = ()) -> None:
        self.places[slot].engine, self.places[slot].leftovers = None, leftovers
        self.places[slot].unkillable = False
        self.lose(slot)

    def lose(self, slot: str) -> None:
        for process in self.members(slot):
            process.lost = True

    @rule(slot=places, left=st.sampled_from([(), ("pid 7",), ("stuck",)]))
    def the_warden_dies(self, slot: str, left: tuple[str, ...]) -> None:
        if self.places[slot].engine is not None:
            self.end(slot, left)

    @rule(slot=places)
    def the_warden_hangs(self, slot: str) -> None:
        engine = self.places[slot].engine
        if engine is not None:
            engine.keeper, engine.hung = False, True
            self.lose(slot)

    @rule(slot=places, back=st.booleans())
    def the_keeper_dies_or_is_back(self, slot: str, back: bool) -> None:
        engine = self.places[slot].engine
        if engine is not None and not engine.hung:
            engine.keeper, engine.saw_nobody = back, False

    @rule(slot=places)
    def what_was_left_ends_by_itself(self, slot: str) -> None:
        self.places[slot].leftovers, self.places[slot].unkillable = (), False

    @rule(slot=places, hold=st.booleans())
    def somebody_stops_it(self, slot: str, hold: bool) -> None:
        place = self.places[slot]
        place.held = place.held or hold
        if place.engine is not None:
            place.engine.stopping = True
            self.lose(slot)

    @rule(slot=places)
    def somebody_releases_it(self, slot: str) -> None:
        self.places[slot].held = False

    @rule(slot=places)
    def a_stop_is_done(self, slot: str) -> None:
        engine = self.places[slot].engine
        if engine is not None and engine.stopping:
            self.end(slot)

    @rule(slot=places)
    def the_keeper_looks_at_the_members(self, slot: str) -> None:
        engine = self.places[slot].engine
        if engine is not None and engine.keeper:
            engine.saw_nobody = not self.members(slot)

    @rule(slot=places)
    def the_keeper_takes_the_step(self, slot: str) -> None:
        engine = self.places[slot].engine
        if engine is None or not engine.keeper or not engine.saw_nobody:
            return
        engine.saw_nobody = False
        if engine.spec.lifetime is Lifetime.MEMBERS and not self.places[slot].warm and self.counts_again(slot):
            engine.stopping = True

    def counts_again(self, slot: str) -> bool:
        """Under build.lock."""
        return not self.members(slot)

    # --- what holds at any time ---

    @invariant()
    def everybody_has_an_engine_that_serves_what_he_wants(self) -> None:
        for process in self.processes:
            if not process.lost:
                engine = self.places[process.slot].engine
                assert engine is not None
                assert not engine.stopping
                assert covers(process.wanted, engine.spec)

    @invariant()
    def whoever_lost_his_engine_gets_one_where_nothing_is_in_the_way(self) -> None:
        for process in self.processes:
            place = self.places[MACHINE]
            if process.lost and place.engine is None and not place.held and not place.unkillable:
                rung = decide(self.observe(MACHINE, process.wanted, process)).rung
                assert rung in (Rung.BUILD, Rung.TAKE_OVER)


@pytest.mark.parametrize("examples", [40, pytest.param(800, marks=pytest.mark.long)])
def test_nobody_is_without_an_engine_and_no_contract_has_two(examples: int) -> None:
    run_state_machine_as_test(Machine, settings=settings(max_examples=examples, stateful_step_count=40, deadline=None))


# --- the model can fail: each fault with the story that shows it ---


def engine(*roles: str, model: str = "m", context: int = 4096, least: int = 0) -> EngineSpec:
    launches = tuple(LaunchSpec(role, model, f"/{model}", context, 1, least_context=least) for role in roles)
    return EngineSpec((GroupSpec("all", "llama-swap", launches, "p"),))


class DoesNotCountAgain(Machine):
    """A keeper that trusts its look: the race that build.lock is for."""

    def counts_again(self, slot: str) -> bool:
        return True


def last_out_against_next_in(world: Machine) -> None:
    world.somebody_comes(root="root-a", wanted=engine("chat"))
    world.somebody_dies(pick=0)
    world.the_keeper_looks_at_the_members(slot=MACHINE)
    world.somebody_comes(root="root-a", wanted=engine("chat"))
    world.the_keeper_takes_the_step(slot=MACHINE)


class ForgetsItsPrivateEngine(Machine):
    """A newcomer that only looks into the machine slot."""

    def is_at_home(self, root: str, wanted: EngineSpec, own: Process | None) -> bool:
        return False


def the_first_slot_is_free_again(world: Machine) -> None:
    world.somebody_comes(root="root-a", wanted=engine("chat"))
    world.somebody_comes(root="root-b", wanted=engine("chat", model="n"))  # overflows
    world.somebody_stops_it(slot=MACHINE, hold=False)
    world.a_stop_is_done(slot=MACHINE)
    world.somebody_comes(root="root-b", wanted=engine("chat", model="n"))


class ExtendsToWhatIsWantedAlone(Machine):
    """A newcomer that has its own contract served, and no more."""

    def extended(self, served: EngineSpec, wanted: EngineSpec) -> EngineSpec:
        return wanted


def a_modest_one_extends_the_engine_of_a_demanding_one(world: Machine) -> None:
    world.somebody_comes(root="root-a", wanted=engine("chat", context=8192, least=8192))
    world.somebody_comes(root="root-b", wanted=engine("chat", "embed"))


class CountsItself(Machine):
    """A member that looks again and takes itself for another."""

    def members(self, slot: str, but: Process | None = None) -> list[Process]:
        return super().members(slot)


def one_looks_again_at_what_only_it_uses(world: Machine) -> None:
    world.somebody_comes(root="root-a", wanted=engine("chat"))
    world.the_warden_dies(slot=MACHINE, left=())
    world.an_owner_runs_one(wanted=engine("chat", model="n"))
    world.places[MACHINE].engine.spec = engine("chat", model="n")  # type: ignore[union-attr]  # its lifetime: members
    world.somebody_looks_again(pick=0)
    assert world.processes[0].slot == MACHINE


@pytest.mark.parametrize(
    ("fault", "story"),
    [
        (DoesNotCountAgain, last_out_against_next_in),
        (ForgetsItsPrivateEngine, the_first_slot_is_free_again),
        (ExtendsToWhatIsWantedAlone, a_modest_one_extends_the_engine_of_a_demanding_one),
        (CountsItself, one_looks_again_at_what_only_it_uses),
    ],
)
def test_the_model_sees_a_fault(fault: type[Machine], story: Callable[[Machine], None]) -> None:
    sound = Machine()
    story(sound)
    sound.everybody_has_an_engine_that_serves_what_he_wants()
    faulty = fault()

    def told() -> None:
        story(faulty)
        faulty.everybody_has_an_engine_that_serves_what_he_wants()

    with pytest.raises(AssertionError):
        told()
