"""The gateway's queue, its pool and its clamp, over fake llama-servers."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from tests.engine.fronts import PATIENCE
from tests.engine.kit import Kit, Launch
from tests.engine.place import Place
from tests.support import free_port, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.process

WINDOW = 1000


@pytest.fixture(scope="module")
def place(kit: Kit) -> Iterator[Place]:
    """`chat` has a pool of one window for four sequences, and ends everything when it overflows; `one` has one place, and a
    queue of one."""
    place = Place(kit)
    try:
        pooled = Launch("chat", knobs={"pool": WINDOW, "rate": 1500}, context=WINDOW, sequences=4, pool=WINDOW)
        plain = Launch("one", kit.embed, knobs={"think": 1.0}, context=WINDOW)
        place.configure({"chat": (pooled,), "one": (plain,)}, gateway={"listen": f"127.0.0.1:{free_port()}"})
        place.config.write_text(place.config.read_text().replace("[groups.one]", "[groups.one]\nqueue_limit = 1"))
        place.member()
        place.until(lambda: place.snapshot()["gateway"]["state"] == "serving", within=PATIENCE, what="it serves")
        yield place
    finally:
        place.close()


def ask(place: Place, model: str, words: int, **more: Any) -> httpx.Response:
    body = {"model": model, "messages": [{"role": "user", "content": "w " * words}], **more}
    return httpx.post(f"{place.snapshot()['gateway']['url']}/v1/chat/completions", json=body, timeout=PATIENCE)


def fake(place: Place, role: str) -> dict[str, Any]:
    url = place.snapshot()["gateway"]["url"]
    found: dict[str, Any] = httpx.get(f"{url}/props", params={"model": role}).json()["fake"]
    return found


def queue(place: Place, group: str) -> dict[str, Any]:
    found: dict[str, Any] = place.group(group)["queue"]
    return found


def test_lemonade_3276_four_full_windows_in_a_pool_of_one_are_admitted_one_after_the_other(place: Place) -> None:
    """ggml-org/llama.cpp#23652: one overflow would end all of them."""
    with ThreadPoolExecutor(4) as threads:
        answers = list(threads.map(lambda words: ask(place, "chat", words), (700, 701, 702, 703)))
    assert [answer.status_code for answer in answers] == [200] * 4
    seen = fake(place, "chat")
    assert (seen["overflows"], seen["most_active"]) == (0, 1)
    assert seen["most_held"] <= WINDOW
    with ThreadPoolExecutor(4) as threads:
        answers = list(threads.map(lambda words: ask(place, "chat", words, max_tokens=100), (100, 101, 102, 103)))
    assert [answer.status_code for answer in answers] == [200] * 4
    seen = fake(place, "chat")
    assert seen["overflows"] == 0
    assert 1 < seen["most_active"] <= 4, "what says how much it needs runs side by side"
    assert queue(place, "chat")["chat"] == {
        "running": 0, "waiting": 0, "limit": 128, "places": 4, "oldest_s": 0.0, "pool": WINDOW, "reserved": 0, "clients": 0,
    }  # fmt: skip


def test_an_answers_reservation_beyond_the_window_is_lowered_and_a_prompt_beyond_it_refused(place: Place) -> None:
    answer = ask(place, "chat", 900, max_tokens=32_000)
    assert (answer.status_code, answer.headers["x-queenright-max-tokens"]) == (200, "100")
    assert answer.json()["usage"]["completion_tokens"] == 100
    assert "x-queenright-max-tokens" not in ask(place, "chat", 10, max_tokens=10).headers
    for words, turns, least in ((1000, [], None), (900, ["x " * 200], 900)):
        messages = [{"role": "user", "content": turn} for turn in [*turns, "w " * words]]
        refused = ask(place, "chat", 0, messages=messages, max_tokens=10)
        error = refused.json()["error"]
        assert (refused.status_code, error["code"]) == (400, "context_length_exceeded")
        assert (error["n_prompt_tokens"], error["n_ctx"]) == (words + 200 * len(turns), WINDOW)
        assert error["n_least_tokens"] == least


def test_ollama_7758_one_place_and_a_queue_of_one_take_two_of_six(place: Place) -> None:
    with ThreadPoolExecutor(6) as threads:
        answers = [threads.submit(ask, place, "one", 1, max_tokens=2) for _ in range(6)]
        figures = wait_until(
            lambda: found if (found := queue(place, "one").get("one")) and found["waiting"] else None,
            within=PATIENCE,
            what="one waits",
        )
        assert figures is not None
        assert (figures["running"], figures["waiting"], figures["limit"]) == (1, 1, 1)
        found = [answer.result() for answer in answers]
    assert sorted(answer.status_code for answer in found) == [200, 200, 429, 429, 429, 429]
    refused = next(answer for answer in found if answer.status_code == 429)
    assert int(refused.headers["retry-after"]) >= 5
    error = refused.json()["error"]
    assert (error["type"], error["code"], error["limit"]) == ("rate_limit_error", "queue_full", 1)
    assert fake(place, "one")["most_active"] == 1


def test_who_leaves_makes_room_a_moment_later_and_the_others_do_not_wait_for_more(place: Place) -> None:
    url = f"{place.snapshot()['gateway']['url']}/v1/chat/completions"
    body = {"model": "chat", "messages": [{"role": "user", "content": "w"}], "max_tokens": 900, "stream": True}
    with ThreadPoolExecutor(1) as threads, httpx.stream("POST", url, json=body, timeout=PATIENCE) as response:
        next(response.iter_raw())
        waiting = threads.submit(ask, place, "chat", 500, max_tokens=5)
        wait_until(lambda: queue(place, "chat")["chat"]["waiting"] == 1, within=PATIENCE, what="it waits")
        response.close()
        assert waiting.result().status_code == 200
    assert fake(place, "chat")["overflows"] == 0
