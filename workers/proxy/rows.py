"""What the looking routes say of each model, in llama-swap's shapes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workers.proxy.model import State

if TYPE_CHECKING:
    from collections.abc import Iterable

    from workers.proxy.model import Model

Row = dict[str, object]


def running_rows(models: Iterable[Model]) -> list[Row]:
    """/running: models that have a server."""
    return [
        {
            "model": model.spec.id,
            "state": model.state.value,
            "cmd": model.spec.cmd,
            "proxy": model.spec.proxy,
            "ttl": int(model.spec.ttl),
            "name": model.spec.name,
            "description": model.spec.description,
        }
        for model in models
        if model.state is not State.STOPPED
    ]


def model_rows(models: Iterable[Model], created: int) -> list[Row]:
    """/v1/models: models that are listed. `created` is the time of asking, Unix seconds, as with llama-swap."""
    rows = []
    for model in models:
        if model.spec.unlisted:
            continue
        row: Row = {"id": model.spec.id, "object": "model", "created": created, "owned_by": "llama-swap"}
        if model.spec.name:
            row["name"] = model.spec.name
        if model.spec.description:
            row["description"] = model.spec.description
        aliases: Row = {"aliases": model.spec.aliases} if model.spec.aliases else {}
        row["meta"] = {"llamaswap": {"type": "model", **aliases}}
        row["status"] = {"value": "unloaded" if model.state is State.STOPPED else "loaded"}
        rows.append(row)
    return rows


def status_rows(models: Iterable[Model]) -> list[Row]:
    """The payload of a `modelStatus` event: every model."""
    rows = []
    for model in models:
        row: Row = {
            "id": model.spec.id,
            "name": model.spec.name,
            "description": model.spec.description,
            "state": model.state.value,
            "unlisted": model.spec.unlisted,
            "peerID": "",
        }
        if model.spec.aliases:
            row["aliases"] = model.spec.aliases
        rows.append(row)
    return rows
