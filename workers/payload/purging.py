"""Replace what lies there by what the source has now: a new file first, and only then away with the old one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisor.errors import PayloadError
from workers.payload import fetching

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from workers.payload.manifest import Item
    from workers.progress import Progress


def purge(items: tuple[Item, ...], *, progress: Progress) -> Iterator[tuple[Path, str]]:
    """Fetch each anew, whatever lies there, and say what came of it.

    Refuses all of them before the first is touched, when one of them could not be brought back. Raises PayloadError.
    """
    lost = [str(item.path) for item in items if item.source is None]
    if lost:
        raise PayloadError(
            f"nothing was purged: {', '.join(lost)} could not be brought back, and the engine would not start",
            "add `source` to the manifest, name only files that have one, or put it aside with `queenright payload retire`",
        )
    for item in items:
        fetching.part_of(item).drop()  # what an earlier fetch brought may be as stale as the file
        yield item.path, fetching.fetch(item, progress=progress, anew=True)
