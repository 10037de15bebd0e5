"""The programs of guides, as they stand on their pages; and a stand-in for the ASGI server that one of them names."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tests.support import ROOT

if TYPE_CHECKING:
    from pathlib import Path

STAND_IN = {
    "__init__.py": "",
    "config.py": "class Config:\n    bind: list[str]\n",
    "trio.py": (
        "from tests.fakes import asgi_server\n"
        "async def serve(app, config, *, shutdown_trigger):\n"
        "    port = int(config.bind[0].rpartition(':')[2])\n"
        "    await asgi_server.serve(app, port=port, stopped=shutdown_trigger)\n"
    ),
}
"""Hypercorn's names, as far as the guide uses them: it is no dependency of ours."""


def write_programs(page: str, folder: Path) -> list[Path]:
    """Each Python block of the page as a file named by the first word of its docstring, and each shell block as one
    named by the first word of its second line, a comment."""
    text = (ROOT / "docs" / "guides" / page).read_text(encoding="utf-8")
    written = []
    for block in re.findall(r"^```(?:python|sh)\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL):
        found = re.match(r'(?:"""|#!/bin/sh\n# )(\w+\.(?:py|sh))\b', block)
        assert found is not None, block[:80]
        written.append(folder / found[1])
        written[-1].write_text(block, encoding="utf-8")
    return written


def write_stand_in(folder: Path) -> None:
    """Hypercorn's stand-in beside the programs."""
    stand_in = folder / "hypercorn"
    stand_in.mkdir()
    for name, content in STAND_IN.items():
        (stand_in / name).write_text(content, encoding="utf-8")
