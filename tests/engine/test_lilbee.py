"""docs/guides/lilbee.md: a released lilbee, as it is installed, at the gateway of a real engine. `QUEENRIGHT_LILBEE` names its
executable (`VENV/bin/lilbee`); it is no dependency of ours, and a gigabyte."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.engine.kit import CHAT, EMBED, ONE_THREAD, Launch
from tests.engine.place import Place
from tests.pages import of_test
from tests.support import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.engine.kit import Kit

LILBEE = os.environ.get("QUEENRIGHT_LILBEE", "")
pytestmark = [
    pytest.mark.process,
    pytest.mark.engine,
    pytest.mark.long,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not LILBEE, reason="QUEENRIGHT_LILBEE does not name a lilbee (docs/guides/lilbee.md)"),
]
LIMIT = 240.0
"""One command: ten seconds of imports on a quiet machine, and the answer of a small model."""
THIS = "tests/engine/test_lilbee.py::test_a_released_lilbee_adds_searches_and_asks"
NOTE = "# Zembla\n\nThe capital of Zembla is Onhava. Its northern coast is cold, and its beekeepers are many.\n"


def settings(url: str) -> dict[str, str]:
    """What the page has the reader export, for the gateway at `url`."""
    found = dict(re.findall(r"export (\w+)=(\S+)", of_test("docs/guides/lilbee.md", THIS)[0].text))
    return found | {"LILBEE_LM_STUDIO_BASE_URL": f"{url}/v1"}


@pytest.fixture
def real(real_kit: Kit) -> Iterator[tuple[Place, str]]:
    """The engine of the page."""
    place = Place(real_kit)
    url = f"127.0.0.1:{free_port()}"
    chat = Launch("chat", CHAT, arguments=ONE_THREAD, context=4096)
    embed = Launch("embed", EMBED, arguments=("--embeddings", *ONE_THREAD), context=512)
    place.configure({"chat": (chat,), "embed": (embed,)}, gateway={"listen": url})
    try:
        place.member()
        place.until(lambda: place.snapshot()["gateway"]["state"] == "serving", within=30, what="it serves")
        yield place, f"http://{url}"
    finally:
        place.close()


def test_a_released_lilbee_adds_searches_and_asks(real: tuple[Place, str]) -> None:
    place, url = real
    home = place.home / "lilbee"
    home.mkdir()
    (home / "zembla.md").write_text(NOTE, encoding="utf-8")
    environment = place.environment | settings(url)
    environment |= {name: str(home) for name in ("HOME", "XDG_DATA_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME")}
    environment["LILBEE_DATA"] = str(home / "data")

    def lilbee(command: str) -> str:
        words = shlex.split(command)
        assert words[0] == "lilbee"
        done = subprocess.run(
            [LILBEE, *words[1:]],
            cwd=home,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LIMIT,
            check=False,
        )
        assert done.returncode == 0, f"{words}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
        return done.stdout

    add, search, ask = of_test("docs/guides/lilbee.md", THIS)[-1].commands
    lilbee(add)
    assert "Onhava" in lilbee(search)
    said = json.loads(lilbee(ask).strip().splitlines()[-1])
    assert said["answer"].strip()
    assert "zembla.md" in json.dumps(said)
