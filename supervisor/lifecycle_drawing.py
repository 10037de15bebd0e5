"""Draws the lifecycle table as a page for people: `python -m supervisor.lifecycle_drawing > docs/reference/lifecycle.md`.

A test compares the page with the table. What events and actions mean is taken from their docstrings, so it is written
down once.
"""

from __future__ import annotations

import ast
import inspect
from typing import TYPE_CHECKING, Final

from supervisor import lifecycle
from supervisor.contract import State
from supervisor.lifecycle import TABLE, Action, Event

if TYPE_CHECKING:
    from collections.abc import Iterable
    from enum import Enum

MEANING: Final[dict[State, str]] = {
    State.DOWN: "nothing runs, and nobody wants it to",
    State.FETCHING: "what it is started with is being fetched: files of its payload are missing, or other ones",
    State.STARTING: "on its way to its first readiness: being spawned, loading, or waiting for another try",
    State.RUNNING: "its proxy is ours and every server answered",
    State.DEGRADED: "the proxy serves, but a server died and is loaded again",
    State.REBUILDING: "it was running and died: being swept, waiting for its next start, or loading",
    State.STOPPING: "told to stop; what runs is being ended",
    State.HELD: "kept down until it is released",
    State.FAILED: "given up, or something of it cannot be killed; only somebody who wants it starts it again",
}

HEAD: Final = """\
# What a group does next

Drawn from the table in `supervisor/lifecycle.py` by `python -m supervisor.lifecycle_drawing`; do not edit it here.

Everything that happens to a group comes into one inbox, and for each happening the table gives the next state and what
is to be done. **—** is a pair that cannot happen: meeting one is a bug, and ends the keeper (the engine goes on serving,
and the next keeper takes it up).
"""


def render() -> str:
    """The page, as Markdown with a Mermaid state diagram."""
    states = "\n".join(f"* **{state.value}**: {MEANING[state]}" for state in State)
    parts = [
        HEAD,
        f"## States\n\n{states}\n",
        f"## Events\n\n{_explained(Event)}\n",
        f"## Actions\n\n{_explained(Action)}\n",
        f"## The table\n\nNext state, and what is done. **·** is: nothing changes.\n\n{_table()}\n",
        f"## The diagram\n\nWithout what changes nothing.\n\n```mermaid\n{_diagram()}\n```\n",
    ]
    return "\n".join(parts)


def _table() -> str:
    rows = [["", *(state.value for state in State)]]
    rows += [[f"**{event.value}**", *(_cell(state, event) for state in State)] for event in Event]
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    lines.insert(1, "|" + "---|" * len(rows[0]))
    return "\n".join(lines)


def _cell(state: State, event: Event) -> str:
    step = TABLE[state][event]
    if step is lifecycle.IMPOSSIBLE:
        return "—"
    target = "" if step.state is state else step.state.value
    actions = ", ".join(f"*{action.value}*" for action in step.actions)
    return ": ".join(filter(None, (target, actions))) or "·"


def _diagram() -> str:
    """One arrow for each pair of states, with every event that leads from one to the other."""
    arrows: dict[tuple[State, State], list[str]] = {}
    for state, row in TABLE.items():
        for event, step in row.items():
            if step is not None and (step.state is not state or step.actions):
                actions = f" / {', '.join(action.value for action in step.actions)}" if step.actions else ""
                arrows.setdefault((state, step.state), []).append(event.value + actions)
    lines = ["stateDiagram-v2", f"    [*] --> {State.DOWN.value}"]
    lines += [f"    {a.value} --> {b.value}: {'<br>'.join(labels)}" for (a, b), labels in arrows.items()]
    return "\n".join(lines)


def _explained(kind: type[Enum]) -> str:
    """Each member with its docstring. Python keeps none for an enum's members: they are read from the source."""
    (body,) = ast.parse(inspect.getsource(kind)).body
    assert isinstance(body, ast.ClassDef)  # noqa: S101 - it is the source of a class
    said = {}
    for assignment, following in _pairs(body.body):
        if isinstance(assignment, ast.Assign) and isinstance(assignment.targets[0], ast.Name):
            found = following.value if isinstance(following, ast.Expr) else None
            said[assignment.targets[0].id] = str(found.value) if isinstance(found, ast.Constant) else ""
    lines = []
    for member in kind:
        text = " ".join(said[member.name].split()).rstrip(".")
        lines.append(f"* **{member.value}**" + (f": {text[:1].lower()}{text[1:]}" if text else ""))
    return "\n".join(lines)


def _pairs(statements: list[ast.stmt]) -> Iterable[tuple[ast.stmt, ast.stmt]]:
    return zip(statements, [*statements[1:], ast.Pass()], strict=True)


if __name__ == "__main__":
    print(render(), end="")
