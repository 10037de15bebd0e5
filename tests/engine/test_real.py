"""The main job with nothing faked: a real llama-server, the demo's models, the public client."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest

from tests.engine.kit import CHAT, EMBED, ONE_THREAD, Launch
from tests.engine.place import Place
from tests.engine.seen import Deaths, kill

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.engine.fronts import Front
    from tests.engine.kit import Kit

pytestmark = [pytest.mark.process, pytest.mark.engine]

QUESTION = [{"role": "user", "content": "What do bees make?"}]


@pytest.fixture
def real(real_kit: Kit) -> Iterator[Place]:
    """A place for a chat and an embedding model, each in a group of its own."""
    place = Place(real_kit)
    chat = Launch("chat", CHAT, arguments=ONE_THREAD, context=1024)
    embed = Launch("embed", EMBED, arguments=("--embeddings", *ONE_THREAD), context=512)
    place.configure({"chat": (chat,), "embed": (embed,)})
    try:
        yield place
    finally:
        place.close()


def vectors(front: Front, *texts: str) -> list[list[float]]:
    """Their embeddings."""
    done = front.do("post", role="embed", path="/embeddings", body={"input": list(texts)})
    assert done["status"] == 200, done
    rows = sorted(done["answer"]["data"], key=lambda row: row["index"])
    return [row["embedding"] for row in rows]


def cosine(a: list[float], b: list[float]) -> float:
    """Of the angle between two vectors."""
    return sum(x * y for x, y in zip(a, b, strict=True)) / math.hypot(*a) / math.hypot(*b)


def test_a_real_engine_is_built_answers_survives_a_kill_and_goes_with_its_last_member(real: Place) -> None:
    front = real.front()
    assert front.open() == "build"

    done = front.do("post", role="chat", path="/chat/completions", body={"messages": QUESTION, "max_tokens": 12})
    assert done["status"] == 200, done
    assert 0 < done["answer"]["usage"]["completion_tokens"] <= 12
    assert done["answer"]["choices"][0]["message"]["content"]

    streamed = front.do("stream", role="chat", prompt="Bees make", tokens=12)
    assert (streamed["finished"], streamed["interrupted"]) == (True, "")
    assert streamed["text"]

    eating, bread, far = vectors(
        front, "A man is eating food.", "A man is eating a piece of bread.", "The rocket left for the moon at dawn."
    )
    assert len(eating) == 384
    assert math.hypot(*eating) == pytest.approx(1, abs=0.01)
    assert cosine(eating, bread) > 0.7
    assert cosine(eating, far) < 0.3

    before = real.family()
    kill(before.servers["chat"])
    done = front.do("post", role="chat", path="/chat/completions", body={"messages": QUESTION, "max_tokens": 4})
    assert done["status"] == 200, done
    after = real.family()
    assert after.servers["chat"] != before.servers["chat"]
    assert after.servers["embed"] == before.servers["embed"]
    assert (after.warden, after.keeper) == (before.warden, before.keeper)

    with Deaths(after.everybody) as deaths:
        front.kill()
        deaths.wait()
    real.assert_gone()
