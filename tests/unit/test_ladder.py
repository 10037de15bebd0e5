"""The ladder: which rung follows from what was observed. Nothing is looked at here."""

from __future__ import annotations

from typing import Any

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from supervisor.contract import EngineSpec, GatewaySpec, GroupSpec, LaunchSpec, Lifetime
from supervisor.ladder import Observation, Rung, by_pair, covers, decide, extended, gives_way, least_context


def launch(role: str, path: str, context: int = 4096, least: int = 0) -> LaunchSpec:
    return LaunchSpec(role, "model", path, context, 1, least_context=least)


def group(name: str, *pairs: tuple[str, str], pin: str = "p1", kind: str = "llama-swap") -> GroupSpec:
    return GroupSpec(name, kind, tuple(launch(*pair) for pair in pairs), pin)


CHAT, EMBED = ("chat", "/chat.gguf"), ("embed", "/embed.gguf")
BOTH = EngineSpec((group("a", CHAT), group("b", EMBED)))
ONE = EngineSpec((group("c", CHAT),))
OTHER_MODEL = EngineSpec((group("c", ("chat", "/other.gguf")),))
OTHER_BUILD = EngineSpec((group("c", CHAT, pin="p9"),))


def chat(context: int, least: int = 0) -> EngineSpec:
    """An engine of one chat server with that context."""
    return EngineSpec((GroupSpec("c", "llama-swap", (launch(*CHAT, context, least),), "p1"),))


# Few names, so that specs often cover one another; a role stands once in an engine (config_check sees to that).
names = st.sampled_from(["a", "b", "c"])
paths = st.sampled_from(["/m1.gguf", "/m2.gguf"])
pins = st.sampled_from(["p1", "p1", "p2"])
contexts = st.sampled_from([512, 4096, 8192])


@st.composite
def specs(draw: st.DrawFn) -> EngineSpec:
    models = draw(st.dictionaries(st.sampled_from(["chat", "embed", "rerank"]), paths, min_size=1))
    groups: dict[str, list[LaunchSpec]] = {}
    for role, path in models.items():
        one = launch(role, path, draw(contexts), draw(st.just(0) | contexts))
        groups.setdefault(draw(names), []).append(one)
    return EngineSpec(
        tuple(GroupSpec(name, "llama-swap", tuple(many), draw(pins)) for name, many in groups.items()),
        lifetime=draw(st.sampled_from([Lifetime.MEMBERS, Lifetime.MEMBERS, Lifetime.RUN])),
        keep_warm=draw(st.booleans()),
    )


observations = st.builds(
    Observation,
    specs(),
    st.sampled_from([True, True, True, False, None]),
    stopping=st.sampled_from([False, False, False, True]),
    served=st.none() | specs(),
    leftovers=st.lists(st.sampled_from(["chat.0a", "pid 7"]), unique=True).map(tuple),
    unkillable=st.booleans(),
    others=st.sampled_from([0, 0, 1, 5, None]),
    hung=st.sampled_from(["", "it hangs"]),
    hold=st.sampled_from(["", "", "held by ann"]),
    overflows=st.booleans(),
)


@pytest.mark.parametrize(
    ("seen", "rung", "reason"),
    [
        (Observation(ONE, None), Rung.REFUSE, "cannot be told: its lock cannot be read"),
        (Observation(ONE, False), Rung.BUILD, "no engine in the slot"),
        (Observation(ONE, False, hold="held by ann: bench"), Rung.HELD, "held by ann: bench"),
        (Observation(ONE, False, leftovers=("chat.0a",)), Rung.TAKE_OVER, "processes of it are still alive: chat.0a"),
        (
            Observation(ONE, False, leftovers=("chat.0a", "pid 7"), unkillable=True),
            Rung.WAIT,
            "cannot be killed: chat.0a, pid 7",
        ),
        (Observation(ONE, True, stopping=True, served=ONE), Rung.WAIT, "is stopping"),
        (Observation(ONE, True), Rung.WAIT, "keeper does not answer yet"),
        (Observation(ONE, True, hung="pid 7 is stopped"), Rung.TAKE_OVER, "pid 7 is stopped"),
        (Observation(ONE, True, hung="pid 7 is stopped", hold="held by ann"), Rung.HELD, "held by ann"),
        (Observation(ONE, True, served=ONE, hung="pid 7 is stopped"), Rung.BIND, "serves all that is wanted"),
        (Observation(ONE, True, served=OTHER_MODEL, others=1, hold="held by ann"), Rung.HELD, "held by ann"),
        (Observation(ONE, True, served=ONE, hold="held by ann"), Rung.BIND, "serves all that is wanted"),
        (Observation(ONE, True, served=ONE), Rung.BIND, "serves all that is wanted"),
        (Observation(ONE, True, served=BOTH, others=3), Rung.BIND, "serves all that is wanted"),
        (Observation(BOTH, True, served=ONE, others=3), Rung.EXTEND, "does not serve embed (/embed.gguf)"),
        (Observation(BOTH, True, served=ONE, others=None), Rung.EXTEND, "does not serve embed (/embed.gguf)"),
        (
            Observation(ONE, True, served=OTHER_MODEL),
            Rung.REPLACE,
            "does not serve chat (/chat.gguf), and serves others chat (/other.gguf), and nobody uses it",
        ),
        (
            Observation(ONE, True, served=OTHER_BUILD),
            Rung.REPLACE,
            "is of another build: p9 and not p1, and nobody uses it",
        ),
        (
            Observation(ONE, True, served=OTHER_BUILD, others=1),
            Rung.OVERFLOW,
            "p9 and not p1, and another process uses it",
        ),
        (Observation(ONE, True, served=OTHER_MODEL, others=2), Rung.OVERFLOW, "and 2 other processes use it"),
        (Observation(ONE, True, served=OTHER_BUILD, others=None), Rung.OVERFLOW, "others use it cannot be told"),
        (
            Observation(ONE, True, served=evolve(OTHER_BUILD, lifetime=Lifetime.RUN)),
            Rung.OVERFLOW,
            "kept by `queenright run`",
        ),
        (Observation(ONE, True, served=OTHER_BUILD, others=1, overflows=False), Rung.REFUSE, "another process uses it"),
    ],
)
def test_each_rung(seen: Observation, rung: Rung, reason: str) -> None:
    decision = decide(seen)
    assert decision.rung is rung
    assert reason in decision.reason


@pytest.mark.parametrize(
    ("wanted", "served", "rung"),
    [
        (chat(8192), chat(512), Rung.BIND),  # whoever says nothing of it takes what there is
        (chat(8192, least=512), chat(512), Rung.BIND),
        (chat(8192, least=513), chat(512), Rung.EXTEND),
        (chat(512, least=8192), chat(512), Rung.BIND),  # nobody needs more than he would make himself
        (chat(8192, least=4096), evolve(chat(512), groups=(*chat(512).groups, group("b", EMBED))), Rung.OVERFLOW),
    ],
)
def test_an_engine_planned_for_the_least_context_will_do(wanted: EngineSpec, served: EngineSpec, rung: Rung) -> None:
    assert decide(Observation(wanted, True, served=served, others=1)).rung is rung


def test_how_an_engine_is_cut_into_groups_is_its_own_business() -> None:
    """What binds is the role, the model and the pin of its group; not what groups are called."""
    wanted = EngineSpec((group("mine", EMBED, CHAT),))
    assert decide(Observation(wanted, True, served=BOTH)).rung is Rung.BIND


def test_only_the_pins_of_what_is_wanted_matter() -> None:
    served = EngineSpec((group("a", CHAT), group("b", EMBED, pin="p9")))
    assert decide(Observation(ONE, True, served=served, others=1)).rung is Rung.BIND
    assert decide(Observation(BOTH, True, served=served, others=1)).rung is Rung.OVERFLOW


@given(observations)
def test_every_observation_gets_a_rung_and_a_reason(seen: Observation) -> None:
    decision = decide(seen)
    assert decision.rung in Rung
    assert decision.reason
    assert "\n" not in decision.reason


@given(observations)
def test_nothing_is_built_while_anything_may_live_or_the_slot_is_held(seen: Observation) -> None:
    built = decide(seen).rung is Rung.BUILD
    assert built == (seen.warden_alive is False and not seen.leftovers and not seen.hold)


@given(observations)
def test_a_warden_is_ended_only_where_it_is_dead_or_proven_to_hang(seen: Observation) -> None:
    if decide(seen).rung is Rung.TAKE_OVER:
        assert seen.leftovers if seen.warden_alive is False else seen.warden_alive and seen.hung and not seen.served
        assert not seen.hold


@given(observations)
def test_nobody_binds_to_what_does_not_serve_all_he_wants(seen: Observation) -> None:
    if decide(seen).rung is not Rung.BIND:
        return
    assert seen.warden_alive is True
    assert not seen.stopping
    assert seen.served is not None
    served = by_pair(seen.served)
    for pair, (mine, wants) in by_pair(seen.wanted).items():
        assert served[pair][0].pin == mine.pin
        assert served[pair][1].context >= least_context(wants)


@given(observations)
def test_what_others_use_or_own_is_never_taken_from_them(seen: Observation) -> None:
    rung = decide(seen).rung
    if rung is Rung.REPLACE:
        assert seen.others == 0
        assert not seen.hold
        assert seen.served is not None
        assert seen.served.lifetime is Lifetime.MEMBERS
    if rung is Rung.EXTEND:
        assert seen.served is not None
        assert seen.served.pairs <= seen.wanted.pairs


@given(observations)
def test_only_who_may_overflows_and_only_beside_a_living_engine(seen: Observation) -> None:
    if decide(seen).rung is Rung.OVERFLOW:
        assert seen.overflows
        assert not seen.hold
        assert seen.warden_alive
        assert seen.served is not None
        assert not covers(seen.wanted, seen.served)


@given(observations)
def test_a_second_look_at_what_was_made_binds(seen: Observation) -> None:
    """Else two processes would rebuild one engine for ever."""
    rung, served = decide(seen).rung, seen.served
    made = {Rung.BUILD: seen.wanted, Rung.REPLACE: seen.wanted}.get(rung)
    if rung is Rung.EXTEND and served is not None:
        made = extended(served, seen.wanted)
    if made is not None:
        assert decide(Observation(seen.wanted, True, served=made, others=seen.others)).rung is Rung.BIND


@given(observations)
def test_extending_takes_nothing_from_anybody_and_touches_only_what_it_must(seen: Observation) -> None:
    served, wanted = seen.served, seen.wanted
    if served is None or decide(seen).rung is not Rung.EXTEND:
        return
    made = extended(served, wanted)
    assert made.pairs == served.pairs | wanted.pairs
    assert len(by_pair(made)) == sum(len(one.launches) for one in made.groups)  # each once
    assert len({one.name for one in made.groups}) == len(made.groups)
    assert made.lifetime is served.lifetime
    assert (made.keep_warm, made.root) == (wanted.keep_warm, wanted.root)
    before, after = by_pair(served), by_pair(made)
    for pair, (old, was) in before.items():
        assert after[pair][0].pin == old.pin
        assert after[pair][1].context >= was.context
    missing = wanted.pairs - served.pairs
    into = {mine.name for pair, (mine, _) in by_pair(wanted).items() if pair in missing}
    narrow = {old.name for pair, (old, was) in before.items() if was.context < least_context(by_pair(wanted)[pair][1])}
    unchanged = [one for one in served.groups if one.name not in into | narrow]
    assert [one for one in made.groups if one in unchanged] == unchanged


def test_a_group_that_cannot_take_what_is_missing_gets_a_neighbour() -> None:
    served = EngineSpec((group("main", CHAT),))
    wanted = EngineSpec((group("mine", CHAT), group("main", EMBED, pin="p2")))
    assert [one.name for one in extended(served, wanted).groups] == ["main", "main-2"]
    assert extended(served, wanted).groups[0] == served.groups[0]


@given(specs())
def test_whoever_wants_what_is_served_binds(spec: EngineSpec) -> None:
    assert decide(Observation(spec, True, served=spec)).rung is Rung.BIND


@given(observations)
def test_the_decision_depends_on_the_observation_alone(seen: Observation) -> None:
    assert decide(seen) == decide(evolve(seen))

    def backwards(spec: Any) -> Any:
        return spec and evolve(spec, groups=spec.groups[::-1])

    assert decide(evolve(seen, wanted=backwards(seen.wanted), served=backwards(seen.served))) == decide(seen)


@given(observations)
def test_without_a_living_warden_a_keepers_word_decides_nothing(seen: Observation) -> None:
    if not seen.warden_alive:
        assert decide(seen) == decide(evolve(seen, served=None, stopping=False, others=0, hung=""))


def test_the_least_context_makes_no_other_launch() -> None:
    """What runs is the same: a keeper that compares contracts must not restart anything for it."""
    assert launch(*CHAT, least=512) == launch(*CHAT)


def test_what_gives_way_to_run_loses_nothing() -> None:
    here = GatewaySpec(True, "127.0.0.1", 11411, aliases={"chat": ("gpt",)})
    elsewhere = evolve(here, port=11412)
    assert gives_way(BOTH, BOTH)
    assert gives_way(ONE, BOTH)
    assert gives_way(evolve(ONE, gateway=here), evolve(BOTH, gateway=here))
    assert gives_way(ONE, evolve(BOTH, gateway=elsewhere))
    assert not gives_way(evolve(BOTH, lifetime=Lifetime.RUN), BOTH)
    assert not gives_way(BOTH, ONE)
    assert not gives_way(ONE, OTHER_MODEL)
    assert not gives_way(ONE, OTHER_BUILD)
    assert not gives_way(chat(8192, 8192), chat(4096))
    for ours in (GatewaySpec(), elsewhere, evolve(here, aliases={}), evolve(here, key_file="/k")):
        assert not gives_way(evolve(ONE, gateway=here), evolve(BOTH, gateway=ours)), ours
