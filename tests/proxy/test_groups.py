"""Which models are in memory together: swap, exclusive, persistent, and models in no group."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.proxy.rig import all_at_once, in_thread
from tests.support import wait_until

if TYPE_CHECKING:
    from tests.proxy.rig import Rig

pytestmark = pytest.mark.process


def group(*members: str, swap: bool = True, exclusive: bool = True, persistent: bool = False) -> dict[str, Any]:
    """A group's section, with llama-swap's defaults."""
    return {"members": list(members), "swap": swap, "exclusive": exclusive, "persistent": persistent}


@pytest.mark.parametrize(
    ("groups", "asked", "left"),
    [
        pytest.param({}, "abc", "c", id="in no group they swap"),
        pytest.param({"g": group("a", "b", "c", swap=False)}, "abc", "abc", id="a group without swap holds all"),
        pytest.param({"g": group("a", "b", "c")}, "abcb", "b", id="a group with swap holds one"),
        pytest.param({"g": group("a", "b", swap=False), "h": group("c")}, "abc", "c", id="exclusive clears others"),
        pytest.param(
            {"g": group("a", "b", swap=False), "h": group("c", exclusive=False)}, "abc", "abc", id="not exclusive"
        ),
        pytest.param(
            {"g": group("a", swap=False, persistent=True), "h": group("b"), "i": group("c")},
            "abc",
            "ac",
            id="persistent stays",
        ),
        pytest.param(
            {"g": group("a", "b", persistent=True), "h": group("c")}, "abc", "bc", id="persistent swaps in itself"
        ),
        pytest.param({"g": group("a", "b", swap=False)}, "abc", "c", id="a stray is exclusive"),
        pytest.param(
            {"g": group("a"), "h": group("b", "c", swap=False, exclusive=False)},
            "abca",
            "a",
            id="a ready one in an exclusive group still clears others when asked",
        ),
    ],
)
def test_what_is_left_after_these_requests(rig: Rig, groups: dict[str, Any], asked: str, left: str) -> None:
    proxy = rig.start(*(rig.model(name) for name in "abc"), groups=groups)
    for name in asked:
        assert proxy.ask(name).status == 200
    assert proxy.states() == dict.fromkeys(left, "ready")


def test_a_swap_waits_for_the_requests_of_the_old_model(rig: Rig) -> None:
    a, b = rig.model("a", rate=10), rig.model("b")
    proxy = rig.start(a, b)
    assert proxy.ask("a", max_tokens=1).status == 200
    with in_thread(lambda: proxy.ask("a", stream=True, max_tokens=12)) as old:
        wait_until(lambda: a.props()["active"] == 1)
        assert proxy.ask("b").status == 200
        answer = old()
    assert answer.complete
    assert b"[DONE]" in answer.body
    assert proxy.states() == {"b": "ready"}


def test_two_models_that_exclude_each_other_serve_everybody_in_the_end(rig: Rig) -> None:
    a, b = rig.model("a"), rig.model("b")
    proxy = rig.start(a, b)
    answers = all_at_once(8, lambda i: proxy.ask("ab"[i % 2], id=str(i)))
    assert [answer.status for answer in answers] == [200] * 8
    assert len(a.receipts) == len(b.receipts) == 4
    assert len(proxy.states()) == 1


def test_a_model_just_loaded_answers_who_loaded_it_before_it_goes_for_another__am17an_44(rig: Rig) -> None:
    a, b = rig.model("a", load=1), rig.model("b")
    proxy = rig.start(a, b)
    with in_thread(lambda: proxy.ask("a", id="first")) as first:
        proxy.wait_state("a", "starting")
        with in_thread(lambda: proxy.ask("b", id="second")) as second:
            assert first().status == second().status == 200
    assert (a.receipts, b.receipts) == (["first"], ["second"])
    assert len(a.spawns) == len(b.spawns) == 1
    assert proxy.states() == {"b": "ready"}


def test_two_requests_at_once_for_models_that_are_not_loaded_are_both_answered__am17an_36(rig: Rig) -> None:
    a, b, c = rig.model("a"), rig.model("b", load=0.5), rig.model("c", load=0.5)
    proxy = rig.start(a, b, c)
    assert proxy.ask("a").status == 200
    answers = all_at_once(2, lambda i: proxy.ask("bc"[i], id=str(i)))
    assert [answer.status for answer in answers] == [200, 200]
    assert (b.receipts, c.receipts) == (["0"], ["1"])
    assert len(b.spawns) == len(c.spawns) == 1  # one after the other, and neither in vain


def test_two_loads_that_do_not_exclude_each_other_run_at_once(rig: Rig) -> None:
    a, b = rig.model("a", load=1), rig.model("b", load=1)
    proxy = rig.start(a, b, groups={"g": group("a", "b", swap=False)})
    with in_thread(lambda: proxy.ask("a")) as first, in_thread(lambda: proxy.ask("b")) as second:
        wait_until(lambda: proxy.states() == {"a": "starting", "b": "starting"})
        assert first().status == second().status == 200


def test_the_swap_gives_the_old_server_its_unload_timeout(rig: Rig) -> None:
    if not rig.kind.traits.swap_honours_unload_timeout:
        pytest.skip("documented difference: swap_honours_unload_timeout")
    a, b = rig.model("a", {"unloadTimeout": 1}, term="ignore"), rig.model("b")
    proxy = rig.start(a, b)
    assert proxy.ask("a").status == 200
    with in_thread(lambda: proxy.ask("b")) as swap:
        proxy.wait_state("a", None, within=3)
        assert swap().status == 200


def test_a_failed_load_leaves_the_way_free(rig: Rig) -> None:
    proxy = rig.start(rig.model("a", exit_early=1), rig.model("b"))
    answers = all_at_once(6, lambda i: proxy.ask("ab"[i % 2], id=str(i)))
    assert [answer.status for answer in answers] == [500, 200] * 3
    assert proxy.ask("b").status == 200  # the last of the six may have been an `a`, for which b had to go
    assert proxy.states() == {"b": "ready"}
