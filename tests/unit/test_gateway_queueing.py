"""Who comes next: in turns over the clients, and nobody starves."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.gateway.queueing import OVERTAKEN, Lines, client_of


def _lines(*items: tuple[str, int]) -> Lines[int]:
    lines: Lines[int] = Lines()
    for client, item in items:
        lines.add(client, item)
    return lines


def _all(lines: Lines[int]) -> list[int]:
    taken = []
    while (item := lines.take(lambda _: True)) is not None:
        taken.append(item)
    return taken


def test_clients_take_turns_and_each_is_served_first_come_first() -> None:
    assert _all(_lines(("a", 1), ("a", 2), ("a", 3), ("b", 4), ("c", 5), ("b", 6))) == [1, 4, 5, 2, 6, 3]


def test_a_client_of_a_thousand_requests_delays_anothers_next_one_by_one() -> None:
    lines = _lines(*(("batch", number) for number in range(1000)))
    assert lines.take(lambda _: True) == 0
    lines.add("person", 5000)
    assert lines.place("person", 5000) == 2
    assert [lines.take(lambda _: True) for _ in range(2)] == [1, 5000]


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 10**6)), unique_by=lambda pair: pair[1], max_size=20))
def test_a_place_is_what_comes_true_when_nobody_overtakes(items: list[tuple[str, int]]) -> None:
    lines = _lines(*items)
    places = {item: lines.place(client, item) for client, item in items}
    assert [places[item] for item in _all(lines)] == list(range(1, len(items) + 1))
    assert lines.place("a", -1) == 0


def test_who_fits_goes_past_one_that_does_not_but_not_for_ever() -> None:
    lines = _lines(("large", 100), *(("small", number) for number in range(10)))
    taken = []
    while (item := lines.take(lambda size: size < 100)) is not None:
        taken.append(item)
    assert taken == list(range(OVERTAKEN)), "after those, all wait for the large one"
    assert lines.take(lambda _: True) == 100
    assert lines.take(lambda _: True) == OVERTAKEN


def test_leaving_frees_the_way_for_the_others() -> None:
    lines = _lines(("large", 100), ("small", 1), ("small", 2))
    assert lines.remove("large", 100)
    assert not lines.remove("large", 100)
    assert lines.clients == {"small": 2}
    assert (lines.of("small"), lines.of("large"), len(lines), list(lines)) == (2, 0, 2, [1, 2])


_SCRIPT = st.lists(
    st.one_of(
        st.tuples(st.just("come"), st.sampled_from("abcde"), st.integers(1, 8)),
        st.tuples(st.just("leave"), st.integers(0, 40), st.just(0)),
        st.tuples(st.just("take"), st.integers(1, 8), st.just(0)),
    ),
    max_size=120,
)


@given(_SCRIPT)
def test_no_request_waits_for_more_others_than_the_bound_says(script: list[tuple[str, str | int, int]]) -> None:
    """Sizes 1 to 8 come, leave and are taken, with any amount of room free at each time, for as long as one likes: the
    count of admissions past a request is bounded all the same, unless it is its own turn and it does not fit."""
    lines: Lines[int] = Lines()
    sizes: dict[int, int] = {}
    owner: dict[int, str] = {}
    ahead: dict[int, int] = {}
    most: Counter[int] = Counter()
    seen: Counter[int] = Counter()
    for number, (what, first, size) in enumerate(script):
        if what == "come":
            client = str(first)
            ahead[number], sizes[number], owner[number] = lines.of(client), size, client
            lines.add(client, number)
        elif what == "leave" and (waiting := list(lines)):
            gone = waiting[int(first) % len(waiting)]
            lines.remove(owner[gone], gone)
        elif what == "take":
            free = int(first)
            if lines.take(lambda one, free=free: sizes[one] <= free) is not None:  # type: ignore[misc]
                for one in lines:
                    seen[one] += 1
        for one in lines:
            most[one] = max(most[one], len(lines.clients))
            bound = (ahead[one] + 1) * most[one] * (OVERTAKEN + 1)
            assert seen[one] <= bound, f"{one} let {seen[one]} others pass, more than {bound}"


@pytest.mark.parametrize(
    ("headers", "key", "peer", "client"),
    [
        ({"x-queenright-member": " lilbee "}, "k", "::1", "member lilbee"),
        ({"user-agent": "OpenAI/Python 2.1"}, "", "127.0.0.1", "127.0.0.1 OpenAI/Python 2.1"),
        ({"user-agent": "curl/8"}, "", "", "curl/8"),
        ({}, "", "10.0.0.7", "10.0.0.7"),
        ({}, "", "", "unknown"),
    ],
)
def test_who_is_one_client(headers: dict[str, str], key: str, peer: str, client: str) -> None:
    assert client_of(headers, key=key, peer=peer) == client


def test_a_key_is_shown_as_a_fingerprint_and_two_programs_with_one_key_are_two() -> None:
    one, other = (client_of({"user-agent": agent}, key="sk-secret", peer="::1") for agent in ("a", "b"))
    assert one != other
    assert "secret" not in one
    assert one.startswith("key ")
