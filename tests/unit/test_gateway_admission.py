"""What a server has room for: places, and the positions of a shared pool."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from supervisor import budgets
from supervisor.gateway.admission import AHEAD, PHASES, Event, Gate, Need, Phase, Refusal, Room, Ticket, Why


def _in(gate: Gate, client: str = "a", places: int = 1, positions: int = 0, now: float = 0.0) -> Ticket:
    ticket = gate.ask(client, Need(places, positions), now)
    assert isinstance(ticket, Ticket), ticket
    return ticket


def _phases(*tickets: Ticket) -> list[str]:
    return [ticket.phase.value for ticket in tickets]


def test_the_table_has_a_cell_for_every_pair_and_reaches_every_phase() -> None:
    assert set(PHASES) == set(itertools.product(Phase, Event))
    assert set(PHASES.values()) == set(Phase)
    assert all(PHASES[Phase.GONE, event] is Phase.GONE for event in Event)


# --- the figures of a real machine: halogen-flash-server, pool 28 KiB per position ----------------------------------


def test_seed_003_a_pool_of_524288_is_two_conversations_of_262k() -> None:
    gate = Gate(Room(4, 524_288), limit=8)
    one, two, three = (_in(gate, f"c{number}", positions=262_144) for number in range(3))
    assert _phases(one, two, three) == ["admitted", "admitted", "waiting"], "four places, and the pool is what binds"
    gate.happen(one, Event.ENDED, 1.0)
    assert _phases(two, three) == ["admitted", "admitted"]


def test_seed_003_or_four_of_131k() -> None:
    gate = Gate(Room(4, 524_288), limit=8)
    tickets = [_in(gate, f"c{number}", positions=131_072) for number in range(5)]
    assert _phases(*tickets) == ["admitted"] * 4 + ["waiting"]
    assert gate.figures(0).reserved == 524_288


def test_seed_003_401408_is_262k_beside_139k_or_three_of_131k() -> None:
    gate = Gate(Room(3, 401_408), limit=8)
    tickets = [_in(gate, "a", positions=262_144), _in(gate, "b", positions=139_264), _in(gate, "c", positions=1)]
    assert _phases(*tickets) == ["admitted", "admitted", "waiting"]
    gate = Gate(Room(3, 401_408), limit=8)
    tickets = [_in(gate, f"c{number}", positions=131_072) for number in range(4)]
    assert _phases(*tickets) == ["admitted"] * 3 + ["waiting"]


def test_what_is_larger_than_the_whole_pool_is_refused_with_numbers() -> None:
    assert Gate(Room(4, 401_408), limit=8).ask("a", Need(1, 401_409), 0) == Refusal(Why.TOO_LARGE, 401_409, 401_408)


# --- places and the queue -------------------------------------------------------------------------------------------


def test_ollama_7758_one_place_and_a_queue_of_one_take_two_of_six() -> None:
    gate = Gate(Room(1), limit=1)
    answers = [gate.ask("a", Need(), float(number)) for number in range(6)]
    assert [isinstance(answer, Ticket) and answer.phase.value for answer in answers[:2]] == ["admitted", "waiting"]
    assert answers[2:] == [Refusal(Why.QUEUE_FULL, 2, 1, budgets.RETRY_AFTER)] * 4
    assert (gate.figures(6.0).running, gate.figures(6.0).waiting) == (1, 1)


def test_a_queue_that_one_client_keeps_full_takes_another_ones_first() -> None:
    gate = Gate(Room(1), limit=2)
    for _ in range(3):
        _in(gate, "batch")
    assert isinstance(gate.ask("batch", Need(), 0), Refusal)
    assert _in(gate, "person").phase is Phase.WAITING
    assert isinstance(gate.ask("person", Need(), 0), Refusal), "its second is like any other's"
    _in(gate, "other")
    assert isinstance(gate.ask("third", Need(), 0), Refusal), "twice the limit is the end for all"


def test_a_full_queue_says_when_to_come_again() -> None:
    gate = Gate(Room(1), limit=1)
    _in(gate)
    _in(gate, now=10.0)
    for now, told in ((11.0, budgets.RETRY_AFTER), (40.0, 30), (4000.0, budgets.QUEUE_RETRY_MOST)):
        refused = gate.ask("a", Need(), now)
        assert isinstance(refused, Refusal)
        assert refused.retry_after_s == told


def test_embeddings_are_sent_one_ahead_so_that_the_server_never_waits_for_the_next() -> None:
    gate = Gate(Room(1), limit=8)
    tickets = [gate.ask("a", Need(reads=True), 0) for _ in range(3)]
    assert sum(isinstance(one, Ticket) and one.phase is Phase.ADMITTED for one in tickets) == 1 + AHEAD


def test_a_request_for_more_sequences_than_there_are_takes_them_all() -> None:
    gate = Gate(Room(2), limit=8)
    one, two = _in(gate, "a", places=5), _in(gate, "b")
    assert _phases(one, two) == ["admitted", "waiting"]
    gate.happen(one, Event.ENDED, 0)
    assert two.phase is Phase.ADMITTED


# --- how a request leaves -------------------------------------------------------------------------------------------


def test_who_is_cut_frees_its_place_at_once_and_its_positions_when_the_server_has_noticed() -> None:
    gate = Gate(Room(2, 100), limit=8)
    one, two = _in(gate, "a", positions=60), _in(gate, "b", positions=60)
    gate.happen(one, Event.CUT, 10.0)
    assert _phases(one, two) == ["fading", "waiting"]
    assert gate.next_look(10.0) == budgets.UPSTREAM_CLOSED
    gate.admit(10.0 + budgets.UPSTREAM_CLOSED)
    assert _phases(one, two) == ["gone", "admitted"]
    assert gate.next_look(20.0) == float("inf")


def test_without_a_pool_nothing_fades() -> None:
    gate = Gate(Room(1), limit=8)
    one, two = _in(gate, "a"), _in(gate, "b")
    gate.happen(one, Event.CUT, 10.0)
    assert _phases(one, two) == ["gone", "admitted"]


def test_over_a_rebuild_who_is_in_stays_in_and_what_faded_is_gone() -> None:
    gate = Gate(Room(3, 100), limit=8)
    one, two, three = (_in(gate, client, positions=50) for client in "abc")
    gate.happen(one, Event.CUT, 0.0)
    gate.lost(0.1)
    assert _phases(one, two, three) == ["gone", "admitted", "admitted"]
    gate.happen(two, Event.LOST, 0.1)
    assert two.phase is Phase.ADMITTED


def test_a_smaller_engine_after_a_rebuild_shuts_nobody_out_for_ever() -> None:
    gate = Gate(Room(2, 100), limit=8)
    one, two = _in(gate, "a", positions=90), _in(gate, "b", positions=90)
    gate.resize(Room(1, 50), 8, 0.0)
    assert _phases(one, two) == ["admitted", "waiting"]
    gate.happen(one, Event.ENDED, 0.0)
    assert two.phase is Phase.ADMITTED, "alone, and the server says what it thinks of it"


def test_the_figures_say_how_long_the_oldest_has_waited() -> None:
    gate = Gate(Room(1, 100), limit=8)
    _in(gate, "a", positions=10, now=0.0)
    _in(gate, "b", positions=10, now=5.0)
    waiting = _in(gate, "a", positions=10, now=7.0)
    figures = gate.figures(9.0)
    assert (figures.running, figures.waiting, figures.oldest_s, figures.reserved, figures.clients) == (1, 2, 4.0, 10, 2)
    assert gate.place(waiting) == 2


class Admission(RuleBasedStateMachine):
    """Requests of any size come, end, leave and are cut; servers die and come back."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.gate = Gate(Room(3, 100), limit=5)
        self.tickets: list[Ticket] = []

    @rule(client=st.sampled_from("abcd"), places=st.integers(0, 5), positions=st.integers(0, 110))
    def comes(self, client: str, places: int, positions: int) -> None:
        answer = self.gate.ask(client, Need(places, positions), self.now)
        if isinstance(answer, Ticket):
            self.tickets.append(answer)
        else:
            assert (answer.why is Why.TOO_LARGE) == (positions > 100)

    @precondition(lambda self: self.tickets)
    @rule(data=st.data(), event=st.sampled_from(Event))
    def happens(self, data: Any, event: Event) -> None:
        ticket = data.draw(st.sampled_from(self.tickets))
        before = ticket.phase
        self.gate.happen(ticket, event, self.now)
        if event in {Event.ENDED, Event.CUT} and before is Phase.WAITING:
            assert ticket.phase is Phase.GONE

    @rule()
    def dies(self) -> None:
        self.gate.lost(self.now)

    @rule(seconds=st.sampled_from([0.1, 1.0, 5.0]))
    def passes(self, seconds: float) -> None:
        self.now += seconds
        self.gate.admit(self.now)

    @invariant()
    def the_pool_never_overflows(self) -> None:
        held = [ticket for ticket in self.tickets if ticket.phase in {Phase.ADMITTED, Phase.FADING}]
        assert sum(ticket.need.positions for ticket in held) <= 100
        assert sum(ticket.need.places for ticket in held if ticket.phase is Phase.ADMITTED) <= 3
        assert self.gate.figures(self.now).reserved == sum(ticket.need.positions for ticket in held)

    @invariant()
    def the_queue_is_bounded_and_nobody_waits_for_nothing(self) -> None:
        waiting = [ticket for ticket in self.tickets if ticket.phase is Phase.WAITING]
        assert len(waiting) == self.gate.figures(self.now).waiting <= 10
        assert not waiting or self.gate.figures(self.now).running or self.gate.next_look(self.now) < float("inf")
        places = sorted(self.gate.place(ticket) for ticket in waiting)
        assert places == list(range(1, len(waiting) + 1))


TestAdmission = Admission.TestCase
TestAdmission.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


@pytest.mark.parametrize("event", list(Event))
def test_an_event_of_one_that_is_gone_changes_nothing(event: Event) -> None:
    gate = Gate(Room(1), limit=8)
    gone, other = _in(gate, "a"), _in(gate, "b")
    gate.happen(gone, Event.ENDED, 0.0)
    gate.happen(gone, event, 0.0)
    assert _phases(gone, other) == ["gone", "admitted"]
