"""docs/guides/agents.md: what it promises to clients that give up by themselves, on a real keeper over a fake llama-server."""

from __future__ import annotations

import json
import re
import subprocess
from typing import TYPE_CHECKING

import httpx
import pytest

from supervisor.config_shape import GatewayConfig
from tests.engine.fronts import PATIENCE
from tests.engine.kit import Kit, Launch
from tests.engine.place import Place
from tests.engine.test_gateway import Gate, asking, gate
from tests.pages import of_test
from tests.support import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.process, pytest.mark.long]

PAGE = "docs/guides/agents.md"
THIS = "tests/engine/test_agents_page.py::test_what_the_page_says_is_what_a_client_meets"
THINKS = 4.0
"""Seconds that the server says nothing for: it reads a long prompt."""
GIVES_UP = 2.0
"""Seconds without a byte after which the client gives up, where real ones take five minutes."""
COMMENTS = 0.5


@pytest.fixture(scope="module")
def slow(kit: Kit) -> Iterator[Gate]:
    """A server that is silent for longer than its clients wait."""
    place = Place(kit)
    try:
        launches = {"chat": (Launch("chat", knobs={"think": THINKS}),)}
        yield gate(place, launches, comment_after_s=COMMENTS)
    finally:
        place.close()


def answer(url: str, *, stream: bool) -> str:
    """What a client gets that gives up after GIVES_UP without a byte: before the headers, and between two pieces."""
    body = {"model": "chat", "messages": asking("a long prompt"), "max_tokens": 4, "stream": stream}
    with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=GIVES_UP) as response:
        return response.read().decode()


def test_a_client_whose_own_limit_cannot_be_set_gets_its_answer__opencode_2974_cline_9328(slow: Gate) -> None:
    """Both gave up after five minutes in which a llama-server read a prompt, whatever their settings said."""
    text = answer(slow.url, stream=True)
    assert text.count(": waiting for the first token of group chat") >= THINKS / COMMENTS / 2
    assert text.rstrip().endswith("data: [DONE]")
    pieces = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
    assert "".join(piece["choices"][0]["delta"].get("content") or "" for piece in pieces)
    with pytest.raises(httpx.ReadTimeout):  # the test can fail: without a stream there is nothing to say meanwhile
        answer(slow.url, stream=False)


def test_what_the_page_says_is_what_a_client_meets(slow: Gate) -> None:
    (block,) = of_test(PAGE, THIS)
    for command in block.commands:
        words = command.replace("http://127.0.0.1:11411", slow.url)
        done = subprocess.run(["sh", "-c", words], capture_output=True, text=True, timeout=PATIENCE, check=True)
        said = json.loads(done.stdout)
        assert said["data"][0]["id"] == "chat" if "/models" in command else said["choices"][0]["message"]["content"]


def test_the_page_has_the_configured_defaults_and_valid_json() -> None:
    text = (ROOT / PAGE).read_text(encoding="utf-8")
    defaults = GatewayConfig()
    assert f"`comment_after_s` ({defaults.comment_after_s:g} s)" in text
    assert f"`deadline_s` ({defaults.deadline_s:g} s)" in text
    (options,) = re.findall(r"```json\n(.*?)```", text, flags=re.S)
    provider = json.loads(options)["provider"]["queenright"]
    assert provider["options"]["baseURL"] == f"http://{defaults.listen}/v1"
