"""The restart policy: whether, when and why. Nothing is started here; time is a number."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor import budgets, records, restart
from supervisor.restart import EXITED, KILLED, SIGTERM, History, Verdict

SIGKILL, SIGSEGV = 9, 11
DUMPED = 3

exits = st.one_of(
    st.tuples(st.just(EXITED), st.integers(0, 255)),
    st.tuples(st.sampled_from([KILLED, DUMPED]), st.integers(1, 64)),
)


def die(history: History, now: float = 0.0, code: int = KILLED, status: int = SIGKILL) -> tuple[History, Verdict]:
    history = history.died(now)
    return history, restart.decide(history, code=code, status=status, why="killed by SIGKILL")


def served(now: float = 0.0) -> History:
    return History().became_ready(now)


def test_the_first_death_of_a_group_that_served_is_answered_at_once() -> None:
    _, verdict = die(served())
    assert verdict == Verdict(True, 0.0, "killed by SIGKILL; restart 1 in a row at once")


def test_deaths_in_a_row_are_answered_later_and_later() -> None:
    history, delays = served(), []
    for _ in range(len(budgets.RESTART_DELAYS) + 3):
        history, verdict = die(history)
        assert verdict.restart
        delays.append(verdict.delay)
        history = history.started_again().became_ready(0.0)
    assert tuple(delays) == budgets.RESTART_DELAYS + budgets.RESTART_DELAYS[-1:] * 3
    assert history.restarts == len(delays)
    assert verdict.reason == f"killed by SIGKILL; restart {len(delays)} in a row in 30 s"


@pytest.mark.parametrize(("healthy_for", "failures"), [(0.999, 3), (1.0, 1), (1.001, 1)])
def test_a_life_in_health_ends_the_row(healthy_for: float, failures: int) -> None:
    history = History(failures=2, ever_ready=True, ready_at=1000.0)
    assert history.died(1000.0 + healthy_for * budgets.RESTART_RESET).failures == failures


def test_a_life_that_never_was_ready_again_does_not_end_the_row() -> None:
    """However long it took to load, it was not healthy meanwhile."""
    history = served(0.0).died(1.0)
    assert history.ready_at is None
    assert history.died(1.0 + 100 * budgets.RESTART_RESET).failures == 2


def test_a_group_that_never_became_ready_is_given_up_after_its_tries() -> None:
    history, verdicts = History(), []
    for _ in range(budgets.DOOMED_TRIES):
        history, verdict = die(history, code=EXITED, status=1)
        verdicts.append(verdict)
    assert [verdict.restart for verdict in verdicts] == [True] * (budgets.DOOMED_TRIES - 1) + [False]
    assert verdicts[-1].reason == "given up after 3 starts that never became ready; the last: killed by SIGKILL"


def test_a_group_that_served_once_is_never_given_up() -> None:
    history = served()
    for _ in range(100):
        history, verdict = die(history)
        assert verdict.restart


def test_readiness_clears_what_was_counted_of_a_doomed_group() -> None:
    history, _ = die(History())
    history, _ = die(history)
    assert history.doomed == budgets.DOOMED_TRIES - 1
    assert history.became_ready(5.0).doomed == 0


@pytest.mark.parametrize(
    ("code", "status", "delay"),
    [
        (KILLED, SIGTERM, budgets.TERM_STORM_PAUSE),
        (EXITED, 0, budgets.TERM_STORM_PAUSE),  # how both proxies end on SIGTERM
        (EXITED, 143, budgets.TERM_STORM_PAUSE),
        (KILLED, SIGKILL, 0.0),
        (EXITED, 1, 0.0),
        (EXITED, SIGTERM, 0.0),
        (DUMPED, SIGSEGV, 0.0),
    ],
)
def test_what_may_be_a_sigterm_to_everything_waits_before_it_starts_anything(
    code: int, status: int, delay: float
) -> None:
    _, verdict = die(served(), code=code, status=status)
    assert verdict.restart
    assert verdict.delay == delay


def test_the_pause_after_a_sigterm_shortens_no_delay() -> None:
    history = served()
    for _ in range(4):
        history, verdict = die(history, code=KILLED, status=SIGTERM)
    assert verdict.delay == budgets.RESTART_DELAYS[3]


@given(st.lists(exits, min_size=1, max_size=40))
def test_within_a_row_the_delay_never_gets_shorter(deaths: list[tuple[int, int]]) -> None:
    history, last = served(), 0.0
    for code, status in deaths:
        history, verdict = die(history, code=code, status=status)
        assert verdict.restart
        assert verdict.delay >= last
        last = verdict.delay


@given(
    st.lists(st.tuples(exits, st.booleans(), st.floats(0, budgets.RESTART_RESET - 1)), max_size=60),
)
def test_there_is_no_tight_loop(lives: list[tuple[tuple[int, int], bool, float]]) -> None:
    """Lives that are shorter than what ends a row cost ever more time, whatever the group did in them."""
    history, now, waited = History(), 0.0, 0.0
    for (code, status), became_ready, lived in lives:
        if became_ready:
            history = history.became_ready(now)
        now += lived
        history, verdict = die(history, now, code, status)
        if not verdict.restart:
            assert history.doomed >= budgets.DOOMED_TRIES
            return
        now, waited = now + verdict.delay, waited + verdict.delay
        history = history.started_again()
    delays = budgets.RESTART_DELAYS
    assert waited >= sum(delays[min(number, len(delays) - 1)] for number in range(len(lives)))


@given(st.lists(st.tuples(st.booleans(), st.floats(0, 1e6)), max_size=30))
def test_a_history_survives_its_keeper(steps: list[tuple[bool, float]]) -> None:
    """It is left in the warden's note as JSON, and the next keeper decides as its predecessor would have."""
    history = History()
    for ready, now in steps:
        history = history.became_ready(now) if ready else history.died(now)
    assert records.structure(records.unstructure(history), History) == history
