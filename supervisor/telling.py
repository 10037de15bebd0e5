"""What stands in events.jsonl, in plain words: a pure function of one event, over one table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from supervisor.wording import printable, progress, why

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

Event = dict[str, Any]


def _state(event: Event) -> str:
    return f"{event['group']}: {event['state']}{why(event['state'], event['reason'])}"


def _ended(event: Event) -> str:
    cause = f"{event['cause']}: {event['detail']}" if event["detail"] else event["cause"]
    after = f" in {event['delay']:g} s" if event["delay"] else ""
    return f"{event['group']}: ended, {cause}; " + (
        f"started again{after}" if event["restart"] else "not started again"
    )


def _stopped(event: Event) -> str:
    groups = f" {', '.join(event['groups'])}" if event.get("groups") else ""
    left = "" if event.get("clean", True) else "; something could not be killed"
    killed = f"; SIGKILL for {', '.join(event['killed'])}" if event.get("killed") else ""
    return f"stopped{groups} in {event['took']} ({event['why']}){killed}{left}"


def _ladder(event: Event) -> str:
    return f"{event['program']} (pid {event['pid']}): {event['rung']}: {event['reason']}"


def _unit(event: Event) -> str:
    if event["unit"]:
        return f"the warden runs in {event['unit']}, out of {event['out_of']}"
    return f"the warden stays inside {event['inside']}: {event['why']}"


def _which(event: Event) -> str:
    """The groups that it concerns, where it does not concern all."""
    return f"{', '.join(event['groups'])}: " if event.get("groups") else ""


def _names(event: Event) -> str:
    return ", ".join(event["groups"]) or "no group"


WORDS: Final[Mapping[str, Callable[[Event], str]]] = {
    "state": _state,
    "ended": _ended,
    "fetch": lambda event: f"{event['group']}: {event['step']}: {progress(event['bytes'], event['of'])}",
    "stopped": _stopped,
    "ladder": _ladder,
    "warden's unit": _unit,
    "left warm": lambda event: f"{event['why']}; kept warm for {', '.join(event['roots'])}: {_names(event)}",
    "configured": lambda event: f"configured by {event['who']}: {_names(event)}",
    "keep warm": lambda event: f"{event['root']} {'wants' if event['keep'] else 'no longer wants'} it kept warm",
    "held": lambda event: f"{_which(event)}held: {event['why']}",
    "released": lambda event: f"{_which(event)}released by {event['who']}",
    "retry": lambda event: f"tried again by {event['who']}: {_names(event)}",
    "keeper leaves": lambda event: f"the keeper makes room for the next one, asked by {event['who']}",
}
"""A sentence for each kind of event that we write. One of another version is shown as it stands."""


def sentence(event: Event) -> str:
    """The event in words, without its time."""
    try:
        return printable(WORDS[event["what"]](event))
    except (LookupError, TypeError, ValueError):
        facts = ", ".join(f"{key} {value}" for key, value in event.items() if key not in ("at", "what"))
        return printable(f"{event.get('what', 'event')}: {facts}")
