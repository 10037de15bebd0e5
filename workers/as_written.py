"""What the kinds read alike in what a configuration file says of a group."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from supervisor.contract import LaunchSpec

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping
    from pathlib import Path

    from supervisor.config_shape import GroupConfig

_PAGE: Final = re.compile(r"/[!-~]*")


def unknown_keys(options: Mapping[str, Any], known: tuple[str, ...]) -> Iterator[str]:
    """A problem for each key that a kind does not know."""
    for name in sorted(options.keys() - set(known)):
        from difflib import get_close_matches

        near = get_close_matches(name, known, n=1)
        yield f"options.{name}: unknown key; expected {f'`{near[0]}`?' if near else 'one of ' + ', '.join(known)}"


def no_page(options: Mapping[str, Any]) -> Iterator[str]:
    """A problem where `health` is there and names no page."""
    health = options.get("health", "/")
    if not isinstance(health, str) or not _PAGE.fullmatch(health):
        yield f"options.health: expected a path that begins with / (no blanks), found {health!r}"


def launches_of(group: GroupConfig, coming: Collection[Path] = ()) -> tuple[LaunchSpec, ...]:
    """As the file says them. A model is a name here, and only shown; where it is a file, or one that is `coming`, by the
    file's name."""
    return tuple(
        LaunchSpec(
            role=launch.role,
            model=path.stem if (path := launch.path) and (path in coming or path.is_file()) else launch.model,
            path=launch.model,
            context=launch.context,
            sequences=launch.sequences,
            pool=launch.pool,
        )
        for launch in group.launches
    )
