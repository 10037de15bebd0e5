"""The files of the manifest that a group names in `payload`: what a front end finds out of them. It fetches nothing.

The configuration names files, never a source: a contract is shown to whoever asks for the status, and the address of a source
may carry a key.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from supervisor.errors import WrongPayloadError

if TYPE_CHECKING:
    from supervisor.config_shape import GroupConfig
    from supervisor.contract import GroupSpec
    from workers.payload.manifest import Item, Manifest


class Payload(NamedTuple):
    """What a group reads of a manifest."""

    manifest: str
    names: tuple[str, ...]
    coming: frozenset[Path]
    """Files that are not there, or known to be other ones, and will be fetched."""
    files: frozenset[Path]


NONE: Final = Payload("", (), frozenset(), frozenset())


def of(group: GroupConfig) -> Payload:
    """What the configuration says of it. Raises ConfigError for what the manifest does not say, WrongPayloadError for what
    is missing and comes from nowhere."""
    if not group.payload:
        return NONE
    from workers.payload import manifest

    found = manifest.read(manifest.find(here=group.folder))
    items = found.chosen(list(group.payload))
    coming = lacking(items)
    for item in coming:
        refuse_lost(item)
    paths = [frozenset(item.path for item in some) for some in (coming, items)]
    return Payload(str(found.path), group.payload, *paths)


def lacks(spec: GroupSpec) -> bool:
    """See supervisor.kinds.Preparing."""
    return bool(spec.payload and lacking(items_of(spec)[1]))


def items_of(spec: GroupSpec) -> tuple[Manifest, tuple[Item, ...]]:
    """As the manifest says now. Raises ConfigError."""
    from workers.payload import manifest

    found = manifest.read(Path(spec.manifest))
    return found, found.chosen(list(spec.payload))


def lacking(items: tuple[Item, ...]) -> tuple[Item, ...]:
    """Those that no engine can start with, by a look that hashes nothing."""
    from workers.payload.verifying import Status

    fit = (Status.OK, Status.UNHASHED, Status.CHANGED)
    return tuple(item for item in items if status_of(item)[0] not in fit)


def status_of(item: Item) -> tuple[str, str]:
    """Its `verifying.Status` by a look that hashes nothing, and what there is to say of it."""
    from workers.payload import verifying
    from workers.progress import Silent

    found = verifying.look(item, full=False, progress=Silent())
    return found.status, found.detail


def refuse_lost(item: Item) -> None:
    """Raise WrongPayloadError for one that is not as it should be, and that no fetch can or should bring."""
    from workers.payload.verifying import GOOD, Status

    status, detail = status_of(item)
    if status == Status.RETIRED:
        raise WrongPayloadError(
            f"{item.path} was put aside: {detail}",
            f"`queenright payload restore {item.path}` brings it back; or take its name out of `payload`",
        )
    if item.source is None and status not in {*GOOD, Status.CHANGED}:
        raise WrongPayloadError(
            f"{item.path} ({status}: {detail}) cannot be fetched: the manifest names no source for it",
            "add `source` to the manifest, or bring the file",
        )
