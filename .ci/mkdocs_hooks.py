"""Links that leave docs/ (to tests, to sources) are for those who read the files: a site has the name alone. Each of them
is looked up, and one that leads nowhere ends the build."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parents[1] / "docs"
LINK = re.compile(r"\[([^\]]*)\]\(((?:\.\./)+[^)#\s]*)(#[^)\s]*)?\)")
log = logging.getLogger("mkdocs.hooks")


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Called by mkdocs with each page's text."""
    folder = (DOCS / page.file.src_uri).parent

    def outside(match: re.Match[str]) -> str:
        target = (folder / match[2]).resolve()
        if target.is_relative_to(DOCS):
            return match[0]
        if not target.exists():
            log.warning("%s links to %s, which is not there", page.file.src_uri, match[2])
        return match[1]

    return LINK.sub(outside, markdown)
