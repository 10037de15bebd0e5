"""What the core asks of a kind of engine. A kind is found by entry point (`queenright.workers`), never imported.

The core knows no more of a kind than stands here: it must not be able to tell llama-swap from anything else.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from attrs import field, frozen

from supervisor.errors import ConfigError

if TYPE_CHECKING:
    from supervisor.config_shape import EngineConfig, GroupConfig
    from supervisor.contract import GroupSpec

ENTRY_POINTS = "queenright.workers"


class ServerState(StrEnum):
    """What a group's proxy says of one server."""

    DOWN = "down"
    LOADING = "loading"
    READY = "ready"
    UNLOADING = "unloading"
    UNLOADED = "unloaded"
    LOST = "lost"


@frozen
class Birth:
    """What one generation is given before it is born. All of it is in the warden's note, keys excepted (they are
    in the 0600 files named here), so a keeper that takes over knows it too."""

    generation: str
    ports: Mapping[str, int]
    """`proxy`, and one for each role."""
    config: Path
    client_key: str = field(repr=False)
    """Stable over generations: for clients."""
    generation_key: str = field(repr=False)
    """Of this generation alone: an answer to it proves that it is ours."""
    warden_pid: int

    @property
    def url(self) -> str:
        """Base URL of the proxy, without a path."""
        return f"http://127.0.0.1:{self.ports['proxy']}"


@frozen
class Command:
    """How to start a generation. `files` are written with mode 0600 before the start."""

    argv: tuple[str, ...]
    environment: Mapping[str, str]
    files: Mapping[Path, str] = field(factory=dict, repr=False)


Report = Callable[[str, ServerState], None]
"""(role, state): told by a kind's `watch`."""


class Kind(Protocol):
    """One kind of engine."""

    name: str

    def resolve(self, group: GroupConfig, engine: EngineConfig) -> GroupSpec:
        """Find and check everything the group needs: binaries, models, pin. In the front end, before anything is
        started. Raises QueenrightError."""

    def port_names(self, spec: GroupSpec) -> tuple[str, ...]:
        """Ports a generation needs; the first is the one clients use."""

    def command(self, spec: GroupSpec, birth: Birth) -> Command:
        """How to start it. No I/O."""

    async def load(self, spec: GroupSpec, birth: Birth, roles: Collection[str], report: Report) -> None:
        """Prove that what answers is this generation, then have the servers of `roles` loaded; return once they all
        answer. With no roles only the proof is made. Raises EngineStartError."""

    async def watch(self, spec: GroupSpec, birth: Birth, report: Report) -> None:
        """Report what becomes of the servers, until cancelled."""

    async def release(self, birth: Birth) -> None:
        """Have it let go of its servers before it is told to end. May raise anything; bounded by the caller."""


def find(name: str) -> Kind:
    """The kind of that name. Raises ConfigError naming those there are."""
    from importlib.metadata import entry_points

    known = {point.name: point for point in entry_points(group=ENTRY_POINTS)}
    if name not in known:
        import difflib

        names = ", ".join(sorted(known)) or "none: is queenright installed?"
        near = "".join(f"; did you mean {close!r}?" for close in difflib.get_close_matches(name, known, n=1))
        raise ConfigError(f"there is no engine kind {name!r}", f"known kinds: {names}{near}")
    kind: Kind = known[name].load()
    return kind
