"""docs/guides/watching.md shows what a terminal showed: it is written from a real watch, by the command that it names."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

import pytest

from tests.engine.kit import Launch
from tests.support import ROOT, free_port, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.engine.place import Place

pytestmark = [pytest.mark.process, pytest.mark.long]
PAGE = ROOT / "docs" / "guides" / "watching.md"
WRITE = "QUEENRIGHT_WRITE_PAGES"
"""Set: the page is written anew."""

SAME: tuple[tuple[str, str], ...] = (
    (r"pid \d+", "pid N"),
    (r"port \d+", "port N"),
    (r"pids \d+", "pids N"),
    (r"/\S*/slot\b", "/home/me/.local/state/queenright/slot"),
    (r"version [\w.+-]+", "version N"),
    (r"\b\d+ (?:s|min)\b", "N s"),
    (r"(ready|loading[^,]*(?:, [\d.]+ of [\d.]+ MiB)?), pid N, port N, \d+ MiB", r"\1, pid N, port N, N MiB"),
    (r"control group \S+", "control group /x"),
    (r"http://127\.0\.0\.1:\d+", "http://127.0.0.1:11411"),
)
"""What differs from run to run."""


def alike(text: str) -> str:
    for pattern, to in SAME:
        text = re.sub(pattern, to, text)
    return "\n".join(line.rstrip() for line in text.strip().splitlines() if not line.startswith("warden "))


def test_the_page_shows_what_a_watch_shows(place: Place) -> None:
    def shot(ready: Callable[[str], bool]) -> str:
        def look() -> str:
            text = place.cli("status").stdout
            return text if ready(text) and "for every OpenAI client" in text else ""

        return wait_until(look, within=25, what="a shot")

    model = place.home / "big.gguf"
    model.write_bytes(place.kit.chat.read_bytes())
    with model.open("r+b") as file:
        file.truncate(64 << 20)
    chat = Launch("chat", model, knobs={"load": 600, "read_model": 0.43})
    gateway = {"listen": f"127.0.0.1:{free_port()}"}
    place.configure({"chat": (chat,), "embed": (Launch("embed", place.kit.embed),)}, gateway=gateway)
    front = place.front("lilbee")
    front.open(wait=False)
    shots = [("While the chat model loads", shot(lambda text: "loading 4" in text and "embed     running for" in text))]
    place.configure(gateway=gateway)
    assert place.cli("apply").returncode == 0
    shots.append(("Once it serves", shot(lambda text: "engine    running" in text)))
    place.configure(
        {"chat": (Launch("chat", knobs={"reject_flag": "--nope"}, arguments=("--nope",)),)}, gateway=gateway
    )
    place.cli("apply")
    shots.append(("A flag that llama-server does not know", shot(lambda text: "engine    failed" in text)))
    blocks = dict(shots)
    if os.environ.get(WRITE):
        text = PAGE.read_text(encoding="utf-8")
        for title, said in blocks.items():
            before, heading, rest = text.partition(f"## {title}\n")
            head, fence, after = rest.partition("```\n")
            text = f"{before}{heading}{head}{fence}{mild(said)}\n```{after.partition('```')[2]}"
        PAGE.write_text(text, encoding="utf-8")
    page = PAGE.read_text(encoding="utf-8")
    for title, said in blocks.items():
        found = re.search(rf"## {title}\n.*?```\n(.*?)```", page, flags=re.S)
        assert found is not None, title
        assert alike(found[1]) == alike(said), title


def mild(text: str) -> str:
    """What belongs to this machine alone is left out."""
    text = re.sub(r"/\S*/slot\b", "/home/me/.local/state/queenright/slot", text.strip())
    return "\n".join(line for line in text.splitlines() if not line.startswith("warden "))
