"""What the gateway puts together in front of a real llama-server is what the server itself would have said."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import httpx
import pytest

from tests.engine.fronts import PATIENCE
from tests.engine.kit import CHAT, EMBED, ONE_THREAD, Launch
from tests.engine.place import Place
from tests.support import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.engine.kit import Kit

pytestmark = [pytest.mark.process, pytest.mark.engine]

ASKED = [{"role": "user", "content": "Say hello in three words."}]
FIXED: dict[str, Any] = {"messages": ASKED, "temperature": 0, "seed": 1, "max_tokens": 12, "cache_prompt": False}
VARYING = ("id", "created", "timings", "usage")
"""Of one answer alone; of `usage` the details say how much of the prompt was cached."""

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "plain": ("/v1/chat/completions", FIXED),
    "stop": ("/v1/chat/completions", FIXED | {"stop": [" "]}),
    "logprobs": ("/v1/chat/completions", FIXED | {"logprobs": True, "top_logprobs": 2, "max_tokens": 4}),
    "choices": ("/v1/chat/completions", FIXED | {"n": 2, "max_tokens": 4}),
    "progress": ("/v1/chat/completions", FIXED | {"timings_per_token": True, "return_progress": True}),
    "schema": (
        "/v1/chat/completions",
        FIXED
        | {
            "max_tokens": 60,
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "a", "schema": {"type": "object", "properties": {"a": {"type": "boolean"}}}},
            },
        },
    ),
    "bad": ("/v1/chat/completions", {"messages": "x"}),
    "text": ("/v1/completions", {"prompt": "Once upon a time", "max_tokens": 6, "temperature": 0}),
    "text logprobs": ("/v1/completions", {"prompt": "Once", "max_tokens": 4, "temperature": 0, "logprobs": 2}),
    "prompts": ("/v1/completions", {"prompt": ["Once", "The"], "max_tokens": 4, "temperature": 0}),
}


@pytest.fixture(scope="module")
def real(real_kit: Kit) -> Iterator[tuple[Place, str]]:
    """A place with both models, and its gateway's URL."""
    place = Place(real_kit)
    chat = Launch("chat", CHAT, arguments=ONE_THREAD, context=1024)
    embed = Launch("embed", EMBED, arguments=("--embeddings", *ONE_THREAD), context=512)
    place.configure({"chat": (chat,), "embed": (embed,)}, gateway={"listen": f"127.0.0.1:{free_port()}"})
    try:
        place.member()
        place.until(lambda: place.snapshot()["gateway"]["state"] == "serving", within=PATIENCE, what="it serves")
        yield place, place.snapshot()["gateway"]["url"]
    finally:
        place.close()


@pytest.mark.parametrize("case", CASES)
def test_an_answer_that_was_put_together_is_the_servers_own(real: tuple[Place, str], case: str) -> None:
    place, url = real
    path, body = CASES[case]
    body = {"model": "chat", **body}
    key = place.slot.group_key("chat").read_text().strip()
    direct = httpx.post(
        place.group()["url"] + path, json=body, headers={"Authorization": f"Bearer {key}"}, timeout=PATIENCE
    )
    through = httpx.post(url + path, json=body, timeout=PATIENCE)
    assert through.status_code == direct.status_code
    wanted, found = direct.json(), through.json()
    for answer in (wanted, found):
        if "usage" in answer:
            answer["tokens"] = [answer["usage"][name] for name in ("prompt_tokens", "completion_tokens")]
            answer["figures"] = sorted(answer.get("timings", ()))
        for name in VARYING:
            answer.pop(name, None)
    assert found == wanted
