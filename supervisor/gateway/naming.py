"""Which model a request means. Pure: of the contract alone, so it is the same in every state of the engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from attrs import frozen

from supervisor.contract import GatewayIds, LaunchSpec

if TYPE_CHECKING:
    from collections.abc import Iterator

    from supervisor.contract import EngineSpec

EMBED, RERANK, CHAT = "embed", "rerank", "chat"

_ROLE_OF: Final = {
    "embedding": EMBED,
    "embeddings": EMBED,
    "rerank": RERANK,
    "reranking": RERANK,
}
"""Last part of a route -> the role it is for. Every other route is for `chat`."""


@frozen
class Served:
    """One model that the engine serves, with all its names; `id` is what /v1/models calls it."""

    id: str
    group: str
    launch: LaunchSpec
    aliases: tuple[str, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Every name it answers to, the id first."""
        return tuple(dict.fromkeys((self.id, self.launch.role, *self.aliases, self.launch.model)))


def served(spec: EngineSpec) -> list[Served]:
    """All there are, in the order of the contract."""
    return list(_each(spec))


def _each(spec: EngineSpec) -> Iterator[Served]:
    taken: set[str] = set()
    for group in spec.groups:
        for launch in group.launches:
            id_ = launch.model if spec.gateway.ids is GatewayIds.MODEL else launch.role
            if id_ in taken:  # two roles of one model: an id is of one
                id_ = launch.role
            taken.add(id_)
            yield Served(id_, group.name, launch, spec.gateway.aliases.get(launch.role, ()))


def find(spec: EngineSpec, path: str, name: object) -> Served | None:
    """The model of a request to `path` that names `name`; None where no model has that name.

    Roles go before aliases, and those before the names of models, of which two roles may have the same. A request that
    names none means the role of its route. Embeddings and reranking take any name: they are asked for by clients that
    put there whatever their settings say, and an engine has one model for each.
    """
    models = served(spec)
    role = _ROLE_OF.get(path.rstrip("/").rpartition("/")[2], CHAT)
    if isinstance(name, str) and name:
        for names in ({one.launch.role: one for one in models}, _by(models, "aliases"), _by(models, "model")):
            if name in names:
                return names[name]
    if not name or role != CHAT or not isinstance(name, str):
        by_role = {one.launch.role: one for one in models}
        if role in by_role:
            return by_role[role]
        rest = [one for one in models if one.launch.role not in (EMBED, RERANK)]
        if role == CHAT and len(rest) == 1:
            return rest[0]
    return None


def _by(models: list[Served], kind: str) -> dict[str, Served]:
    found: dict[str, Served] = {}
    for one in models:
        for name in one.aliases if kind == "aliases" else (one.launch.model,):
            found.setdefault(name, one)
    return found
