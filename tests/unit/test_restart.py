"""The restart policy: whether, when and why. Nothing is started here; time is a number."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from supervisor import budgets, notes, records, restart
from supervisor.contract import Exit
from supervisor.restart import EXITED, KILLED, SIGTERM, History, Verdict

SIGKILL, SIGSEGV = 9, 11
DUMPED = 3

exits = st.one_of(
    st.tuples(st.just(EXITED), st.integers(0, 255)),
    st.tuples(st.sampled_from([KILLED, DUMPED]), st.integers(1, 64)),
)


def die(history: History, now: float = 0.0, code: int = KILLED, status: int = SIGKILL) -> tuple[History, Verdict]:
    history = history.died(now)
    return history, restart.decide(history, ended=Exit(code, status), why="killed by SIGKILL", now=now)


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
        history = history.started_again(0.0).became_ready(0.0)
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


def test_a_group_that_served_once_is_not_doomed_however_its_next_starts_end() -> None:
    history = served()
    for _ in range(10):
        history, verdict = die(history, code=EXITED, status=1)
        assert verdict.restart


def live_and_die(history: History, lived: float, limit: int = 1000) -> tuple[int, float, Verdict]:
    """A group whose every life is as long, until it is given up: restarts, seconds, and the last verdict."""
    now = 0.0
    for restarts in range(limit):
        history = history.became_ready(now)
        now += lived
        history, verdict = die(history, now)
        if not verdict.restart:
            return restarts, now, verdict
        now += verdict.delay
        history = history.started_again(now)
    return limit, now, verdict


@pytest.mark.parametrize(("lived", "minutes"), [(0.0, 13), (budgets.RESTART_RESET + 1, 32)])
def test_pm2_1676_an_aged_crash_looper_is_caught_as_a_young_one_is(lived: float, minutes: float) -> None:
    """pm2 forgets to count once a process has lived for a while: 2,364 starts in 10 s (measured)."""
    restarts, seconds, verdict = live_and_die(served(), lived)
    assert restarts == budgets.RESTART_INTENSITY
    assert seconds < minutes * 60
    assert verdict.reason == "given up after 30 restarts within 60 minutes; the last end: killed by SIGKILL"


def test_systemd_2416_one_that_dies_now_and_then_is_never_given_up() -> None:
    between = budgets.RESTART_PERIOD / budgets.RESTART_INTENSITY
    restarts, _, verdict = live_and_die(served(), between + 1)
    assert restarts == 1000
    assert verdict.delay == 0


def test_a_port_that_others_took_is_not_counted_against_the_engine() -> None:
    history, verdicts = History(), []
    for _ in range(budgets.PORT_TRIES):
        history = history.died(0.0, port_conflict=True)
        verdicts.append(restart.decide(history, ended=Exit(EXITED, 1), why="port conflict: 9", now=0.0))
    assert history.doomed == 0
    assert [verdict.restart for verdict in verdicts] == [True, True, False]
    assert verdicts[-1].reason == "given up after 3 starts whose ports other programs took; the last: port conflict: 9"


def test_a_port_conflict_does_not_give_up_what_served() -> None:
    history = served()
    for _ in range(10):
        history = history.died(0.0, port_conflict=True)
        assert restart.decide(history, ended=Exit(EXITED, 1), why="", now=0.0).restart


def test_a_delay_is_spread_by_chance_once_for_a_row() -> None:
    history, delays = served(), []
    for chance in (1.0, 0.0, 0.5):
        history = history.died(0.0, chance)
        delays.append(restart.decide(history, ended=Exit(KILLED, 9), why="", now=0.0).delay)
    assert delays == [0.0, 0.5 * 1.25, 1.0 * 1.25]
    again = history.became_ready(0.0).died(budgets.RESTART_RESET, 0.25)
    assert (again.failures, again.chance) == (1, 0.25)


def test_who_wants_it_up_again_forgives_everything() -> None:
    history, _ = die(served())
    history = history.started_again(1.0)
    assert history.forgiven() == History(restarts=1)


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
            assert history.doomed >= budgets.DOOMED_TRIES or len(history.starts) == budgets.RESTART_INTENSITY
            return
        now, waited = now + verdict.delay, waited + verdict.delay
        history = history.started_again(now)
    delays = budgets.RESTART_DELAYS
    assert waited >= sum(delays[min(number, len(delays) - 1)] for number in range(len(lives)))


@given(st.lists(st.tuples(st.booleans(), st.floats(0, 1e6)), max_size=30))
def test_a_history_survives_its_keeper(steps: list[tuple[bool, float]]) -> None:
    """It is left in the warden's note as JSON, and the next keeper decides as its predecessor would have."""
    history = History()
    for ready, now in steps:
        history = history.became_ready(now) if ready else history.died(now)
    assert records.structure(records.unstructure(history), History) == history


@pytest.mark.parametrize(
    "noted", [{}, {"failures": 2, "doomed": 1, "ever_ready": False, "ready_at": None, "restarts": 5}]
)
def test_the_note_of_an_older_keeper_is_read(noted: dict[str, object]) -> None:
    read = notes.noted_history(noted, History())
    assert (read.failures, read.restarts) == (noted.get("failures", 0), noted.get("restarts", 0))
    assert read.starts == ()


@pytest.mark.parametrize("noted", [{"failures": 2, "of_a_newer": [1]}, {"failures": "2"}, "nonsense", 7, []])
def test_the_note_of_another_keeper_never_fells_one(noted: object) -> None:
    assert notes.noted_history(noted, History(doomed=1)) in (History(failures=2), History(), History(doomed=1))


class Looper(RuleBasedStateMachine):
    """One group under the policy, with the time and the chance that the test gives it. What is checked holds for every
    way in which a group can live and die."""

    def __init__(self) -> None:
        super().__init__()
        self.history, self.now = History(), 0.0
        self.starts: list[float] = []
        self.up, self.given_up = True, False
        self.last_delay: float | None = None

    @initialize(now=st.floats(0, 1e6))
    def boot(self, now: float) -> None:
        self.now = now

    @precondition(lambda self: self.up)
    @rule()
    def becomes_ready(self) -> None:
        self.history = self.history.became_ready(self.now)

    @rule(seconds=st.one_of(st.floats(0, 2), st.floats(0, 200)))
    def lives(self, seconds: float) -> None:
        self.now += seconds

    @precondition(lambda self: self.up)
    @rule(end=exits, chance=st.floats(0, 1), conflict=st.booleans(), times=st.integers(1, 12))
    def dies(self, end: tuple[int, int], chance: float, conflict: bool, times: int) -> None:
        for _ in range(times):
            served, ready_at = self.history.ever_ready, self.history.ready_at
            healthy = ready_at is not None and self.now - ready_at >= budgets.RESTART_RESET
            self.history = self.history.died(self.now, chance, port_conflict=conflict)
            verdict = restart.decide(self.history, ended=Exit(*end), why="x", now=self.now)
            if healthy:
                assert self.history.failures == 1, "after so long in health the row begins anew"
            if not verdict.restart:
                assert served is False or len(self.history.recent(self.now)) >= budgets.RESTART_INTENSITY - 1
                self.up, self.given_up = False, True
                return
            if self.history.failures > 1 and self.last_delay is not None:
                assert verdict.delay >= self.last_delay, "within a row no delay is shorter than the one before"
            assert verdict.delay <= budgets.RESTART_DELAYS[-1] * (1 + budgets.RESTART_JITTER)
            self.last_delay = verdict.delay
            self.now += verdict.delay
            self.history = self.history.started_again(self.now)
            self.starts.append(self.now)
            if not served:
                assert self.history.doomed < budgets.DOOMED_TRIES

    @precondition(lambda self: self.given_up)
    @rule()
    def is_wanted_again(self) -> None:
        self.history, self.starts, self.last_delay = self.history.forgiven(), [], None
        self.up, self.given_up = True, False

    @rule()
    def its_keeper_is_replaced(self) -> None:
        noted = records.unstructure(self.history)
        self.history = notes.noted_history(noted, History())

    @invariant()
    def no_window_holds_more_restarts_than_the_policy_allows(self) -> None:
        for start in self.starts:
            window = [one for one in self.starts if start - budgets.RESTART_PERIOD < one <= start]
            assert len(window) <= budgets.RESTART_INTENSITY

    @invariant()
    def what_is_noted_stays_small(self) -> None:
        assert len(self.history.starts) <= budgets.RESTART_INTENSITY


TestLooper = Looper.TestCase
TestLooper.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
