"""What the gateway says of the engine, from memory: /v1/models and /health."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from supervisor.contract import State
from supervisor.gateway import naming
from supervisor.lifecycle import UP

if TYPE_CHECKING:
    from supervisor.contract import EngineSpec, LaunchSpec
    from supervisor.gateway.naming import Served
    from supervisor.tree import Tree


def listed(spec: EngineSpec | None, tree: Tree | None) -> dict[str, Any]:
    """OpenAI's list, whether or not the models can be used now: each says so. Aliases stand in it as models of their
    own, since clients offer what stands there."""
    rows = []
    for one in naming.served(spec) if spec else []:
        rows += [_row(one, name, tree) for name in dict.fromkeys((one.id, *one.aliases))]
    return {"object": "list", "data": rows}


def one(spec: EngineSpec | None, tree: Tree | None, name: str) -> dict[str, Any] | None:
    """OpenAI's object for one name; None where no model has it."""
    found = naming.find(spec, "", name) if spec else None
    return _row(found, name, tree) if found is not None and name in found.names else None


def _row(one: Served, name: str, tree: Tree | None) -> dict[str, Any]:
    """`created` is 0, as OpenAI's type wants a number and no moment would mean anything. `meta.n_ctx` is how many tokens
    one conversation may have, prompt and answer together; `max_model_len` says the same to those who read vLLM's."""
    group = tree.groups.get(one.group) if tree else None
    state = group.state if group else State.DOWN
    launch = as_run(one, tree)
    return {
        "id": name,
        "object": "model",
        "created": 0,
        "owned_by": "queenright",
        "max_model_len": launch.context or None,
        "status": {"value": "loaded" if state in UP else "unloaded"},
        "meta": {
            "n_ctx": launch.context or None,
            "sequences": launch.sequences or None,
            "role": one.launch.role,
            "model": one.launch.model,
            "group": one.group,
            "state": state.value,
            "alias_of": one.id if name != one.id else None,
        },
    }


def as_run(one: Served, tree: Tree | None) -> LaunchSpec:
    """Its launch as it runs: what the contract leaves open as it was decided, 0 until then, and no more context than its
    server is known to serve."""
    group = tree.groups.get(one.group) if tree else None
    return group.as_run(one.launch) if group is not None else one.launch


def health(spec: EngineSpec | None, tree: Tree | None, stopping: str) -> dict[str, Any]:
    """Of the gateway, with the groups' states beside it."""
    groups = {name: group.state.value for name, group in tree.groups.items()} if tree else {}
    names = [group.name for group in spec.groups] if spec else []
    return {
        "status": "stopping" if stopping else "ok",
        "groups": {name: groups.get(name, State.DOWN.value) for name in names},
    }
