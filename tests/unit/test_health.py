"""The health decider: five words, five rules, and that no further sign of life ever makes a verdict worse.

A case of the field is named where it gave the rule its figures.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.health import FATAL, Evidence, Judgement, Limits, Record, Verdict, judge, observe
from supervisor.kinds import Answer, ServerState

if TYPE_CHECKING:
    from collections.abc import Iterable

LIMITS = Limits()
PROXY = LIMITS.of_a_proxy()
WELL: dict[str, Any] = {"stopped": False, "computing": False, "answer": Answer.ANSWERED, "in_flight": 0, "progress": 0}


class Watched:
    """A process under watch; every look is a second after the one before."""

    def __init__(self, limits: Limits = LIMITS, **first: Any) -> None:
        self.limits, self.facts, self.now = limits, WELL | first, 100.0
        self.record = Record()
        self.look()

    def look(self, **changes: Any) -> Judgement:
        self.facts |= changes
        self.now += 1
        self.record = observe(self.record, Evidence(at=self.now, **self.facts), self.limits)
        for once in ("canary", "closer"):
            self.facts.pop(once, None)
        return self.judgement

    def look_for(self, seconds: int, **changes: Any) -> Judgement:
        for _ in range(seconds):
            self.look(**changes)
        return self.judgement

    @property
    def judgement(self) -> Judgement:
        return judge(self.record, self.limits)

    @property
    def verdict(self) -> Verdict:
        return self.judgement.verdict


def test_what_answers_and_owes_nothing_is_healthy() -> None:
    assert Watched().look_for(1000).verdict is Verdict.HEALTHY


def test_a_stopped_process_is_hung_at_the_second_look() -> None:
    server = Watched()
    assert server.look(stopped=True, answer=Answer.UNKNOWN).verdict is Verdict.HEALTHY
    assert server.look().verdict is Verdict.HUNG
    assert "stopped" in server.judgement.reason


def test_a_stop_that_was_over_by_the_second_look_is_forgotten() -> None:
    server = Watched()
    for _ in range(10):
        server.look(stopped=True)
        assert server.look(stopped=False).verdict is Verdict.HEALTHY


def test_a_stopped_process_is_noticed_while_it_loads() -> None:
    server = Watched(state=ServerState.LOADING, answer=Answer.UNKNOWN)
    assert server.look_for(2, stopped=True).verdict is Verdict.HUNG


def test_three_silent_probes_without_life_are_a_hang() -> None:
    """gonka-ai/gonka#1421 (b)."""
    server = Watched()
    assert server.look_for(2, answer=Answer.SILENT).verdict not in FATAL
    assert server.look().verdict is Verdict.HUNG


def test_a_first_request_that_is_silent_within_the_start_period_is_no_failure() -> None:
    """Not after the period either: what was missed in it never counts."""
    server = Watched(starting=True, in_flight=1)
    said = server.look_for(75, answer=Answer.SILENT, computing=False)
    assert said.verdict is Verdict.BUSY
    assert "start_period_s" in said.reason
    assert server.look(starting=False).verdict not in FATAL
    assert server.look_for(3).verdict is Verdict.HUNG


def test_one_that_was_stopped_within_the_start_period_is_hung_all_the_same() -> None:
    assert Watched(starting=True).look_for(2, stopped=True, answer=Answer.UNKNOWN).verdict is Verdict.HUNG


def test_a_memory_stall_at_full_cpu_is_shown_and_left_alone_for_as_long_as_is_configured() -> None:
    """The engine's own note says that it may last; nothing comes out, no probe is answered, the CPU is busy."""
    limits = Limits.with_wedge(LIMITS.wedge, stall=2 * LIMITS.stall)
    server = Watched(limits, in_flight=1)
    assert server.look_for(int(1.5 * LIMITS.stall), answer=Answer.SILENT, computing=True).verdict in (
        Verdict.BUSY,
        Verdict.STALLED,
    )
    assert server.look_for(int(LIMITS.stall)).verdict is Verdict.HUNG


def test_one_missed_probe_of_three_is_nothing() -> None:
    """gonka-ai/gonka#1421 (a)."""
    server = Watched()
    for _ in range(100):
        assert server.look_for(2, answer=Answer.SILENT).verdict is Verdict.HEALTHY
        assert server.look(answer=Answer.ANSWERED).verdict is Verdict.HEALTHY


def test_refused_connections_are_a_hang_at_the_second_look() -> None:
    """gonka-ai/gonka#1421 (c): nobody listens any more, so CPU time defers nothing."""
    server = Watched()
    assert server.look(answer=Answer.REFUSED, computing=True).verdict not in FATAL
    assert server.look().verdict is Verdict.HUNG


def test_a_saturated_server_that_answers_no_probe_is_busy() -> None:
    """gonka-ai/gonka#1421 (d)."""
    server = Watched(computing=True, in_flight=8)
    assert server.look_for(100, answer=Answer.SILENT).verdict is Verdict.BUSY


def test_a_proxy_that_lets_its_last_answers_out_may_refuse_connections() -> None:
    proxy = Watched(PROXY, in_flight=1)
    assert proxy.look_for(40, answer=Answer.REFUSED).verdict not in FATAL  # llama-swap takes 35 s at most
    assert proxy.look_for(21).verdict is Verdict.HUNG


def test_a_long_prompt_on_a_cpu_is_busy_for_as_long_as_it_takes() -> None:
    """ikawrakow/ik_llama.cpp#1210: every endpoint silent for 30 to 60 minutes, and it computes."""
    server = Watched(in_flight=1)
    assert server.look_for(90, answer=Answer.SILENT, computing=True).verdict is Verdict.BUSY
    for _ in range(3000):
        assert server.look().verdict in (Verdict.BUSY, Verdict.STALLED)
    assert server.look(answer=Answer.ANSWERED, in_flight=0, progress=1).verdict is Verdict.HEALTHY


def test_cpu_time_defers_to_the_stall_limit_and_no_longer() -> None:
    server = Watched(in_flight=1)
    assert server.look_for(3700, answer=Answer.SILENT, computing=True).verdict is Verdict.HUNG


def test_a_server_that_answers_health_and_serves_nobody_is_wedged() -> None:
    """ggml-org/llama.cpp#27388."""
    server = Watched(in_flight=1)
    assert server.look_for(10).verdict is Verdict.STALLED
    assert server.judgement.wants_closer
    assert not server.judgement.wants_canary
    assert server.look_for(25).wants_canary
    assert server.look_for(24, canary=Answer.SILENT).verdict is Verdict.STALLED
    assert server.look_for(2).verdict is Verdict.WEDGED
    assert "canary" in server.judgement.reason


def test_without_the_canarys_silence_nothing_is_wedged() -> None:
    server = Watched(in_flight=1)
    assert server.look_for(4000, canary=Answer.UNKNOWN).verdict is Verdict.STALLED


def test_cpu_time_that_cannot_be_read_is_not_idleness() -> None:
    server = Watched(in_flight=1, computing=None)
    assert server.look_for(500, canary=Answer.SILENT).verdict is Verdict.BUSY


@pytest.mark.parametrize(
    "life",
    [{"canary": Answer.ANSWERED}, {"progress": 7}, {"closer": "n_decoded=2"}],
    ids=["the canary comes back", "bytes pass", "tokens are made"],
)
def test_a_sign_of_progress_begins_the_count_anew(life: dict[str, Any]) -> None:
    server = Watched(in_flight=1, closer="n_decoded=1")
    server.look_for(59, canary=Answer.SILENT)
    assert server.look(**life).verdict is Verdict.HEALTHY
    assert server.look_for(30, canary=Answer.SILENT).verdict not in FATAL


def test_clients_that_give_up_and_come_again_do_not_hide_a_wedge() -> None:
    """oobabooga/textgen#7443: each request ends by its client, and none by an answer."""
    server = Watched()
    for _ in range(8):
        server.look_for(8, in_flight=1, canary=Answer.SILENT)
        server.look_for(2, in_flight=0)
    assert server.look(in_flight=1).verdict is Verdict.WEDGED


def test_a_gpu_that_spins_is_wedged_once_its_scheduler_was_silent_for_long() -> None:
    server = Watched(in_flight=1, computing=True)
    assert server.look_for(310, closer_answer=Answer.SILENT).wants_canary
    assert server.look_for(280, canary=Answer.SILENT).verdict is Verdict.STALLED
    assert server.look_for(20).verdict is Verdict.WEDGED


def test_a_scheduler_that_answers_is_not_a_spinning_gpu() -> None:
    server = Watched(in_flight=1, computing=True, closer_answer=Answer.ANSWERED)
    assert server.look_for(1000, canary=Answer.SILENT).verdict is Verdict.BUSY


def test_a_request_that_nothing_loads_a_server_for_is_a_wedge() -> None:
    """mostlygeek/llama-swap#946: /health is well, and every request waits for ever."""
    server = Watched(state=ServerState.UNLOADED, answer=Answer.UNKNOWN, computing=None, in_flight=1)
    assert server.look_for(50).verdict is Verdict.HEALTHY
    assert server.look_for(11).verdict is Verdict.WEDGED


def test_an_unloaded_server_that_nobody_asks_for_is_well() -> None:
    server = Watched(state=ServerState.UNLOADED, answer=Answer.UNKNOWN, stopped=None, computing=None)
    assert server.look_for(5000).verdict is Verdict.HEALTHY


def test_a_load_that_never_ends_is_a_wedge() -> None:
    """llama-swap does not bound a /health that accepts and never answers (mostlygeek/llama-swap#558)."""
    server = Watched(state=ServerState.LOADING, answer=Answer.UNKNOWN)
    assert server.look_for(120).verdict is Verdict.HEALTHY
    assert server.look_for(5).verdict is Verdict.WEDGED


def test_a_change_of_state_begins_a_new_record() -> None:
    server = Watched(in_flight=1)
    server.look_for(59, canary=Answer.SILENT)
    server.look(state=ServerState.UNLOADED)
    assert server.look_for(2, state=ServerState.READY).verdict is Verdict.HEALTHY


def test_requests_that_do_not_move_on_are_not_their_proxys_fault() -> None:
    proxy = Watched(PROXY, in_flight=3)
    assert proxy.look_for(3000).verdict is Verdict.HEALTHY


def test_time_in_which_nobody_looked_proves_nothing() -> None:
    """The machine slept, or the keeper was stopped, for a day."""
    server = Watched(in_flight=1, canary=Answer.SILENT)
    server.look_for(20, canary=Answer.SILENT)
    server.now += 86_400
    assert server.look().verdict is Verdict.STALLED
    assert server.record.quiet_for < 30


def test_what_was_never_looked_at_is_unknown() -> None:
    assert judge(Record(), LIMITS).verdict in (Verdict.UNKNOWN, Verdict.HEALTHY)


# --- properties ---------------------------------------------------------------------------------------------------------

LIFE_IN_ORDER: dict[str, tuple[Any, ...]] = {
    "stopped": (True, None, False),
    "computing": (False, None, True),
    "answer": (Answer.SILENT, Answer.UNKNOWN, Answer.ANSWERED),
    "closer_answer": (Answer.SILENT, Answer.UNKNOWN, Answer.ANSWERED),
    "canary": (Answer.SILENT, Answer.UNKNOWN, Answer.ANSWERED),
}
"""From the least to the most evidence of life."""
RANK = {Verdict.HEALTHY: 0, Verdict.UNKNOWN: 0, Verdict.BUSY: 1, Verdict.STALLED: 2, Verdict.HUNG: 3, Verdict.WEDGED: 3}
SHORT = Limits(stall_shown=2, wedge=6, loop=10, stall=15)


@st.composite
def two_lives(draw: st.DrawFn) -> tuple[list[Evidence], list[Evidence]]:
    """The same looks twice, the second time with as much evidence of life in each, or more."""
    worse, better = [], []
    ahead = 0
    runs = draw(st.lists(st.integers(1, 6), min_size=1, max_size=6))
    now = 0.0
    for length in runs:
        low = {name: draw(st.integers(0, 2)) for name in LIFE_IN_ORDER}
        high = {name: draw(st.integers(at, 2)) for name, at in low.items()}
        in_flight = draw(st.sampled_from([0, 1, 3]))
        moves = draw(st.booleans())
        for _ in range(length):
            now += draw(st.sampled_from([1.0, 3.0]))
            ahead += moves
            facts: dict[str, Any] = {"at": now, "in_flight": in_flight}
            worse.append(Evidence(**facts, progress=0, **{n: LIFE_IN_ORDER[n][i] for n, i in low.items()}))
            better.append(Evidence(**facts, progress=ahead, **{n: LIFE_IN_ORDER[n][i] for n, i in high.items()}))
    return worse, better


def verdicts(looks: Iterable[Evidence]) -> list[Verdict]:
    record, found = Record(), []
    for seen in looks:
        record = observe(record, seen, SHORT)
        found.append(judge(record, SHORT).verdict)
    return found


@given(two_lives())
def test_more_evidence_of_life_never_makes_a_verdict_worse(lives: tuple[list[Evidence], list[Evidence]]) -> None:
    worse, better = map(verdicts, lives)
    for before, after in zip(worse, better, strict=True):
        assert RANK[after] <= RANK[before]


UNKNOWN_LOOKS = st.builds(
    Evidence,
    at=st.just(0.0),
    stopped=st.sampled_from([None, False]),
    computing=st.sampled_from([None, True, False]),
    answer=st.sampled_from([Answer.UNKNOWN, Answer.ANSWERED, Answer.NOT_YET]),
    in_flight=st.sampled_from([None, 0, 5]),
    closer_answer=st.sampled_from([Answer.UNKNOWN, Answer.ANSWERED]),
    canary=st.sampled_from([Answer.UNKNOWN, Answer.ANSWERED]),
    # Of a NamedTuple hypothesis fills in what has a default, too.
    progress=st.none(),
    closer=st.none(),
    state=st.just(ServerState.READY),
    starting=st.just(False),
)


@given(st.lists(UNKNOWN_LOOKS, max_size=60))
def test_nothing_is_killed_on_the_unknown_alone(looks: list[Evidence]) -> None:
    """No silence, no refusal, no stop was seen: then nothing of what is not known adds up to a death."""
    timed = [seen._replace(at=3.0 * number) for number, seen in enumerate(looks)]
    assert not FATAL & set(verdicts(timed))
