"""The ladder: which rung follows from what was observed. Nothing is looked at here."""

from __future__ import annotations

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from supervisor import ladder
from supervisor.contract import EngineSpec, GroupSpec, LaunchSpec
from supervisor.ladder import Observation, Rung, decide


def group(name: str, *pairs: tuple[str, str], pin: str = "p1") -> GroupSpec:
    launches = tuple(LaunchSpec(role, "model", path, 4096, 1) for role, path in pairs)
    return GroupSpec(name, "llama-swap", launches, pin)


CHAT, EMBED = ("chat", "/chat.gguf"), ("embed", "/embed.gguf")
BOTH = EngineSpec((group("a", CHAT), group("b", EMBED)))
ONE = EngineSpec((group("c", CHAT),))

# Few names, so that specs often cover one another; a role stands once in an engine (config_check sees to that).
names = st.sampled_from(["a", "b", "c"])
paths = st.sampled_from(["/m1.gguf", "/m2.gguf"])
pins = st.sampled_from(["p1", "p2"])


@st.composite
def specs(draw: st.DrawFn) -> EngineSpec:
    models = draw(st.dictionaries(st.sampled_from(["chat", "embed", "rerank"]), paths, min_size=1))
    groups: dict[str, list[tuple[str, str]]] = {}
    for pair in models.items():
        groups.setdefault(draw(names), []).append(pair)
    return EngineSpec(tuple(group(name, *pairs, pin=draw(pins)) for name, pairs in groups.items()))


leftovers = st.lists(st.sampled_from(["chat.0a", "embed.0b"]), unique=True).map(tuple)
observations = st.builds(
    Observation, specs(), st.sampled_from([True, False, None]), st.booleans(), st.none() | specs(), leftovers
)


@pytest.mark.parametrize(
    ("seen", "rung", "reason"),
    [
        (Observation(ONE, None), Rung.REFUSE, "cannot be told: its lock cannot be read"),
        (Observation(ONE, False), Rung.BUILD, "no engine in the slot"),
        (Observation(ONE, False, leftovers=("chat.0a",)), Rung.WAIT, "without a warden are still alive: chat.0a"),
        (Observation(ONE, True, stopping=True, served=ONE), Rung.WAIT, "is stopping"),
        (Observation(ONE, True), Rung.WAIT, "keeper does not answer yet"),
        (Observation(ONE, True, served=ONE), Rung.BIND, "serves all that is wanted"),
        (Observation(ONE, True, served=BOTH), Rung.BIND, "serves all that is wanted"),
        (Observation(BOTH, True, served=ONE), Rung.REFUSE, "does not serve embed (/embed.gguf)"),
        (
            Observation(ONE, True, served=EngineSpec((group("c", ("chat", "/other.gguf")),))),
            Rung.REFUSE,
            "does not serve chat (/chat.gguf)",
        ),
        (
            Observation(ONE, True, served=EngineSpec((group("c", CHAT, pin="p9"),))),
            Rung.REFUSE,
            "is of another build: p9",
        ),
    ],
)
def test_each_rung(seen: Observation, rung: Rung, reason: str) -> None:
    decision = decide(seen)
    assert decision.rung is rung
    assert reason in decision.reason


def test_how_an_engine_is_cut_into_groups_is_its_own_business() -> None:
    """What binds is the role, the model and the pin of its group; not what groups are called."""
    wanted = EngineSpec((group("mine", EMBED, CHAT),))
    assert decide(Observation(wanted, True, served=BOTH)).rung is Rung.BIND


def test_only_the_pins_of_what_is_wanted_matter() -> None:
    served = EngineSpec((group("a", CHAT), group("b", EMBED, pin="p9")))
    assert decide(Observation(ONE, True, served=served)).rung is Rung.BIND
    assert decide(Observation(BOTH, True, served=served)).rung is Rung.REFUSE


@given(observations)
def test_every_observation_gets_a_rung_and_a_reason(seen: Observation) -> None:
    decision = decide(seen)
    assert decision.rung in Rung
    assert decision.reason
    assert "\n" not in decision.reason


@given(observations)
def test_nothing_is_built_while_anything_may_live(seen: Observation) -> None:
    built = decide(seen).rung is Rung.BUILD
    assert built == (seen.warden_alive is False and not seen.leftovers)


@given(observations)
def test_nobody_binds_to_what_does_not_serve_all_he_wants(seen: Observation) -> None:
    if decide(seen).rung is not Rung.BIND:
        return
    assert seen.warden_alive is True
    assert not seen.stopping
    assert seen.served is not None
    served = {(launch.role, launch.path, group.pin) for group in seen.served.groups for launch in group.launches}
    wanted = {(launch.role, launch.path, group.pin) for group in seen.wanted.groups for launch in group.launches}
    assert wanted <= served


@given(specs())
def test_whoever_wants_what_is_served_binds(spec: EngineSpec) -> None:
    assert decide(Observation(spec, True, served=spec)).rung is Rung.BIND


@given(observations)
def test_the_decision_depends_on_the_observation_alone(seen: Observation) -> None:
    assert decide(seen) == decide(evolve(seen))
    shuffled = evolve(
        seen,
        wanted=evolve(seen.wanted, groups=seen.wanted.groups[::-1]),
        served=seen.served and evolve(seen.served, groups=seen.served.groups[::-1]),
    )
    assert decide(shuffled) == decide(seen)


@given(observations)
def test_without_a_living_warden_a_keepers_word_decides_nothing(seen: Observation) -> None:
    if not seen.warden_alive:
        assert decide(seen) == decide(evolve(seen, served=None, stopping=False))


def test_a_pin_is_found_by_role_and_model() -> None:
    assert ladder.pins_by_pair(BOTH) == {CHAT: "p1", EMBED: "p1"}
