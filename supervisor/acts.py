"""What a caller of the control socket may have the keeper do, beyond looking and stopping. Each is done at once: what
takes time goes on in the groups, and shows in the snapshots.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol

from attrs import evolve

from supervisor import draining, holding, journal, records
from supervisor.contract import EngineSpec
from supervisor.control_server import who
from supervisor.errors import EngineStartError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from supervisor.procs import Procs
    from supervisor.slot import Slot
    from supervisor.tree import Tree


class Keeper(Protocol):
    """What of a keeper is acted on."""

    slot: Slot
    procs: Procs
    tree: Tree | None
    spec: EngineSpec | None
    stopping: str
    warm: set[str]

    def leave(self) -> None: ...


def _tree(keeper: Keeper) -> Tree:
    """Of an engine that is to go on. Raises EngineStartError for one that is stopping, or does not know itself yet."""
    if keeper.tree is None:
        raise EngineStartError("the keeper has just started and does not know its engine yet", "try again")
    if keeper.stopping:
        raise EngineStartError(f"the engine is stopping: {keeper.stopping}", "try again when it is gone")
    return keeper.tree


def configure(keeper: Keeper, question: dict[str, Any]) -> None:
    """`contract`: be that engine from now on. The warden has it before any group acts on it, so that the next keeper would
    go on with it. What keeps the engine up stays as it is. `drain_s`: how long groups that are stopped for it wait for requests."""
    tree = _tree(keeper)
    drain_s = draining.seconds_of(question)
    wanted = records.structure(question.get("contract"), EngineSpec)
    assert keeper.spec is not None  # noqa: S101 - there is one where there is a tree
    spec = evolve(wanted, lifetime=keeper.spec.lifetime)
    why = f"its configuration was changed by {who(question)}"
    tree.configure(spec, why, drain_s)
    keeper.procs.note_slot("contract", records.unstructure(spec))
    keeper.spec = spec
    _keep_warm(keeper, spec.root, wanted.keep_warm)
    journal.note(keeper.slot, "configured", who=who(question), groups=[group.name for group in spec.groups])


def warm(keeper: Keeper, question: dict[str, Any]) -> None:
    """`root`, `keep`: whether the engine is to outlive its members for that configuration's sake."""
    _tree(keeper)
    _keep_warm(keeper, str(question.get("root", "")), question.get("keep") is True)


def _keep_warm(keeper: Keeper, root: str, keep: bool) -> None:
    if keep is not (root in keeper.warm):
        (keeper.warm.add if keep else keeper.warm.discard)(root)
        keeper.procs.note_slot("warm", sorted(keeper.warm))
        journal.note(keeper.slot, "keep warm", root=root, keep=keep)


def hold(keeper: Keeper, question: dict[str, Any]) -> None:
    """Stop the groups, and start none until `release`; with `groups` those alone. The file that says so is the caller's to
    write first. Raises UsageError where there is none any more: a release may have come first, or its time be over, and
    what no file says nothing would end."""
    tree = _tree(keeper)
    why = str(question.get("why") or f"held by {who(question)}")[:500]
    names = list(question.get("groups", ()))
    for name in names or [""]:
        if holding.find(keeper.slot, name) is None:
            what = f"the hold on {f'group {name}' if name else 'the slot'} is over already"
            raise UsageError(what, "`queenright status` shows what is held")
    if names:
        tree.hold_groups(dict.fromkeys(names, why))
    else:
        tree.hold(why)
    journal.note(keeper.slot, "held", why=why, groups=names)


def release(keeper: Keeper, question: dict[str, Any]) -> None:
    """The hold is over; with `groups` that on those alone."""
    tree = _tree(keeper)
    names = list(question.get("groups", ()))
    if names:
        tree.release_groups(names)
    else:
        tree.release()
    journal.note(keeper.slot, "released", who=who(question), groups=names)


def retry(keeper: Keeper, question: dict[str, Any]) -> None:
    """`groups`: try these again that were given up; all of them where none is named. Raises UsageError for others."""
    tree = _tree(keeper)
    names = list(question["groups"]) or list(tree.groups)
    unknown = [name for name in names if name not in tree.groups]
    if unknown:
        raise UsageError(f"there is no group {', '.join(unknown)}", f"there are: {', '.join(tree.groups)}")
    again = tree.retry(names)
    if not again:
        raise UsageError(
            f"no group was given up among: {', '.join(names)}", "`queenright status` says what each is doing"
        )
    journal.note(keeper.slot, "retry", who=who(question), groups=again)


def restart_keeper(keeper: Keeper, question: dict[str, Any]) -> None:
    """Leave, and have the next keeper take everything up."""
    _tree(keeper)
    journal.note(keeper.slot, "keeper leaves", who=who(question))
    keeper.leave()


ACTS: Final[dict[str, Callable[[Keeper, dict[str, Any]], None]]] = {
    "configure": configure,
    "warm": warm,
    "hold": hold,
    "release": release,
    "retry": retry,
    "restart-keeper": restart_keeper,
}
