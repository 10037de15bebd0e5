"""What a request asks for, and how long its answer may be."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.gateway.admission import Need, Room
from supervisor.gateway.clamping import Reservation, TooLong, least_of, limited, reserve, too_long, wants_count
from supervisor.gateway.demand import MEDIA, PREAMBLE, Demand, Work, demand_of, output_of, prompt_most, work_of

SPLIT = Room(4)
POOL = Room(4, 16_384)
WINDOW = 8192


@pytest.mark.parametrize(
    ("method", "path", "work"),
    [
        ("POST", "/v1/chat/completions", Work.ANSWER),
        ("POST", "/upstream/chat/v1/completions", Work.ANSWER),
        ("POST", "/completion", Work.ANSWER),
        ("POST", "/v1/messages", Work.ANSWER),
        ("POST", "/v1/messages/count_tokens", Work.NONE),
        ("POST", "/v1/embeddings/", Work.READ),
        ("POST", "/rerank", Work.READ),
        ("POST", "/tokenize", Work.NONE),
        ("GET", "/v1/models", Work.NONE),
    ],
)
def test_what_a_route_makes_a_server_do(method: str, path: str, work: Work) -> None:
    assert work_of(method, path) is work


@pytest.mark.parametrize(
    ("body", "output"),
    [
        ({}, None),
        ({"max_tokens": None}, None),
        ({"max_tokens": 100}, 100),
        ({"max_tokens": 100.0, "max_completion_tokens": 300}, 300),
        ({"n_predict": -1}, None),
        ({"max_tokens": 100, "n_predict": -1}, None),
        ({"max_tokens": True}, None),
        ({"max_tokens": "100"}, None),
    ],
)
def test_what_is_reserved_for_an_answer(body: dict[str, Any], output: int | None) -> None:
    assert output_of(body) == output


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_the_bound_is_total_and_never_below_the_bytes_of_any_text(content: Any) -> None:
    texts: list[str] = []

    def walk(value: Any) -> None:
        if isinstance(value, str):
            texts.append(value)
        for one in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
            walk(one)

    walk(content)
    most = prompt_most({"messages": [{"role": "user", "content": content}]})
    assert most >= PREAMBLE + sum(len(text.encode()) for text in texts)


def test_a_picture_counts_by_the_piece_and_the_text_beside_it_by_its_bytes() -> None:
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 1_000_000}}
    parts = [{"type": "text", "text": "x" * 500}, picture]
    most = prompt_most({"messages": [{"role": "user", "content": parts}]})
    assert MEDIA + 500 < most < MEDIA + PREAMBLE + 1000
    hidden = {"type": "text", "text": "data:" + "A" * 100_000}
    assert prompt_most({"messages": [{"role": "user", "content": [hidden]}]}) > 100_000


def test_copies_and_lists_of_prompts_are_so_many_sequences() -> None:
    assert demand_of(Work.ANSWER, {"n": 3, "messages": []}).sequences == 3
    assert demand_of(Work.ANSWER, {"prompt": ["a", "b"], "n": 2}).sequences == 4
    assert demand_of(Work.ANSWER, {"prompt": [1, 2, 3]}).sequences == 1, "tokens of one prompt"
    assert demand_of(Work.READ, {"input": ["a", "b"]}).sequences == 1


# --- clamping -------------------------------------------------------------------------------------------------------


def _demand(prompt: int, output: int | None, sequences: int = 1) -> Demand:
    return Demand(Work.ANSWER, sequences, prompt, output)


def test_a_reservation_that_exceeds_the_window_is_lowered_to_what_is_left_of_it() -> None:
    demand = _demand(9000, 32_000)
    assert wants_count(demand, WINDOW, SPLIT)
    assert reserve(demand, WINDOW, SPLIT, 3000) == Reservation(Need(1, 0), 5192)
    assert reserve(demand, WINDOW, SPLIT, WINDOW - 1) == Reservation(Need(1, 0), 1)


def test_a_prompt_that_does_not_fit_is_refused_with_numbers() -> None:
    refused = reserve(_demand(30_000, 10), WINDOW, SPLIT, WINDOW)
    assert refused == TooLong(8192, 8192)
    assert isinstance(refused, TooLong)
    error = too_long(TooLong(9000, 8192), 400)["error"]
    assert (error["n_prompt_tokens"], error["n_ctx"], error["n_least_tokens"]) == (9000, 8192, 400)
    assert error["code"] == "context_length_exceeded"
    assert "without the earlier turns it would have 400" in error["message"]
    assert "dropping earlier turns does not help" in too_long(TooLong(9999, 8192), 9000)["error"]["message"]
    assert (
        "exceeds the available context size of 8192; shorten it"
        in too_long(TooLong(9999, 8192), None)["error"]["message"]
    )


@pytest.mark.parametrize(
    ("demand", "room", "asked"),
    [
        (_demand(2000, 2000), POOL, False),  # fits into its share, by its bytes
        (_demand(3000, 2000), POOL, True),
        (_demand(2000, None), POOL, True),
        (_demand(2000, None), SPLIT, False),  # its window ends it
        (_demand(90_000, None), SPLIT, False),  # the server refuses it itself
        (_demand(5000, 3192), SPLIT, False),
        (_demand(5000, 3193), SPLIT, True),
        (Demand(Work.READ, 1, 90_000, 0), POOL, False),
    ],
)
def test_the_server_is_asked_for_a_count_only_where_it_changes_something(
    demand: Demand, room: Room, asked: bool
) -> None:
    assert wants_count(demand, WINDOW, room) is asked
    assert not wants_count(demand, 0, room), "no window is known"


def test_what_fits_its_share_by_bytes_leaves_room_for_as_many_as_there_are_places() -> None:
    found = reserve(_demand(2000, 2096), WINDOW, POOL, None)
    assert found == Reservation(Need(1, 4096))


def test_an_answer_of_open_length_is_bounded_by_its_window_in_a_shared_pool() -> None:
    assert reserve(_demand(9000, None), WINDOW, POOL, 1000) == Reservation(Need(1, WINDOW), 7192)
    assert reserve(_demand(9000, None), WINDOW, SPLIT, None) == Reservation(Need(1, 0), None)


def test_several_answers_of_one_request_have_the_pool_among_them() -> None:
    assert reserve(_demand(9000, None, 2), WINDOW, Room(4, 8192), 1000) == Reservation(Need(2, 8192), 3096)
    assert reserve(_demand(9000, 5000, 2), WINDOW, Room(4, 8192), 1000) == Reservation(Need(2, 8192), 3096)


def test_without_a_count_nothing_is_refused_and_at_most_a_window_is_reserved() -> None:
    assert reserve(_demand(90_000, 100), WINDOW, POOL, None) == Reservation(Need(1, WINDOW), None)
    assert reserve(_demand(90_000, 100_000), WINDOW, SPLIT, None) == Reservation(Need(1, 0), WINDOW)


@given(
    st.integers(0, 50_000),
    st.none() | st.integers(0, 50_000),
    st.integers(1, 6),
    st.sampled_from([POOL, SPLIT, Room(1, 8192)]),
    st.none() | st.integers(0, 9000),
)
def test_what_is_counted_and_admitted_never_outgrows_its_reservation(
    most: int, output: int | None, sequences: int, room: Room, counted: int | None
) -> None:
    found = reserve(_demand(most, output, sequences), WINDOW, room, counted)
    if isinstance(found, TooLong):
        assert counted is not None
        assert counted >= WINDOW
        return
    if counted is not None and room.positions:
        longest = found.limit if found.limit is not None else output
        assert longest is not None
        assert counted + longest <= WINDOW
        assert found.need.positions == min(sequences, room.places) * (counted + longest)
    if found.limit is not None and output is not None:
        assert 1 <= found.limit < output


def test_the_limit_goes_where_the_client_wrote_its_own() -> None:
    assert limited({"max_tokens": 9, "n_predict": -1}, "/completion", 5) == {"max_tokens": 5, "n_predict": 5}
    assert limited({"max_completion_tokens": 3}, "/v1/chat/completions", 5) == {"max_completion_tokens": 3}
    assert limited({}, "/v1/responses", 5) == {"max_output_tokens": 5}
    body = {"max_tokens": None}
    assert limited(body, "/v1/chat/completions", 5) == {"max_tokens": 5}
    assert body == {"max_tokens": None}


def test_the_least_part_is_the_system_prompt_the_tools_and_the_last_turn() -> None:
    def said(role: str) -> dict[str, str]:
        return {"role": role, "content": role}

    turns = [said(role) for role in ("system", "user", "assistant", "developer", "user", "assistant", "tool")]
    least = least_of({"tools": [1], "messages": turns})
    assert least is not None
    assert [message["role"] for message in least["messages"]] == ["system", "developer", "user", "assistant", "tool"]
    assert least["tools"] == [1]
    assert least_of({"messages": turns[:2]}) is None, "there are no earlier turns"
    assert least_of({"messages": [said("assistant")]}) is None
    assert least_of({"messages": json.loads('"text"')}) is None
