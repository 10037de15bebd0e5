"""The programs of guides, as they stand on their pages; and a stand-in for the ASGI server that one of them names."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tests.pages import blocks

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
    """Each program of the page: a Python block as a file named by the first word of its docstring, and a shell block as one
    named by the first word of its second line, a comment."""
    written = []
    for block in blocks(f"docs/guides/{page}"):
        found = re.match(r'(?:"""|#!/bin/sh\n# )(\w+\.(?:py|sh))\b', block.text)
        if found is not None:
            written.append(folder / found[1])
            written[-1].write_text(block.text, encoding="utf-8")
    return written


def write_stand_in(folder: Path) -> None:
    """Hypercorn's stand-in beside the programs."""
    stand_in = folder / "hypercorn"
    stand_in.mkdir()
    for name, content in STAND_IN.items():
        (stand_in / name).write_text(content, encoding="utf-8")
