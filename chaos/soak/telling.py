"""A run as data: for report.json and rounds.jsonl, from which the page and the comparison are made."""

from __future__ import annotations

from math import inf
from statistics import median
from typing import TYPE_CHECKING, Any

from chaos.soak.caller import TOKENS
from chaos.soak.verdicts import Verdict

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chaos.soak.seen import Ended, Kill
    from chaos.soak.soak import Soak, Told
    from chaos.soak.verdicts import Judgement
    from supervisor.contract import GroupSpec


def count(ended: Sequence[Ended]) -> dict[str, int]:
    """Requests by outcome."""
    found: dict[str, int] = {}
    for one in ended:
        found[one.outcome] = found.get(one.outcome, 0) + 1
    return found


def latencies(ended: Sequence[Ended]) -> dict[str, tuple[float, float]]:
    """Median and most in seconds, by way and kind, of what was answered."""
    found: dict[str, list[float]] = {}
    for one in ended:
        if one.outcome == "complete":
            found.setdefault(f"{one.way} {one.kind}", []).append(one.seconds)
    return {name: (median(times), max(times)) for name, times in sorted(found.items())}


def as_data(soak: Soak, **about: Any) -> dict[str, Any]:
    """The whole run, for JSON."""
    return {
        **about,
        "verdict": soak.verdict.value,
        "rounds": [row(told) for told in soak.rounds],
        "requests": soak.requests,
        "tokens": TOKENS,
        "kills": [_kill(soak, number, kill) for number, kill in enumerate(soak.kills)],
        "end": [_judged(one) for one in soak.ends],
        "judged": _times(soak.rounds),
        "uncontrolled": soak.load.uncontrolled,
    }


def engine(groups: Sequence[GroupSpec]) -> list[dict[str, Any]]:
    """What was soaked, launch by launch."""
    return [
        {
            "group": group.name,
            "role": launch.role,
            "model": launch.model,
            "sequences": launch.sequences,
            "context": launch.context,
        }
        for group in groups
        for launch in group.launches
    ]


def _times(rounds: Sequence[Told]) -> dict[str, int]:
    """In how many rounds each invariant was judged."""
    found: dict[str, int] = {}
    for told in rounds:
        for one in told.judgements:
            found[one.invariant] = found.get(one.invariant, 0) + 1
    return found


def row(told: Told) -> dict[str, Any]:
    """One round, for JSON: of the judgements those that are not green; usage as [bytes, descriptors, threads]. Short, since
    600 of them are to be kept."""
    return {
        "number": told.number,
        "at_s": round(told.at_s, 2),
        "verdict": told.verdict.value,
        "fault": told.fault,
        "skipped": told.skipped,
        "pids": list(told.pids),
        "recovery_s": None if told.recovery_s is None else round(told.recovery_s, 3),
        "paused_s": round(told.paused_s, 3),
        "outcomes": told.outcomes,
        "latency_s": {name: [round(time_, 3) for time_ in times] for name, times in told.latency_s.items()},
        "took_s": {name: round(time_, 2) for name, time_ in told.took_s.items()},
        "processes": told.processes,
        "judgements": [_judged(one) for one in told.judgements if one.verdict is not Verdict.HOLDS],
        "usage": {who: list(one) for who, one in told.usage.items()} if told.usage else None,
    }


def _kill(soak: Soak, number: int, kill: Kill) -> dict[str, Any]:
    """A line of the kill log, with the requests whose end it explains."""
    return {
        "at_s": round(kill.at - soak.began, 2),
        "round": kill.round,
        "fault": kill.fault,
        "pids": list(kill.pids),
        "touched": sorted(kill.touched),
        "healed_s": round(kill.until - kill.at, 3) if kill.until < inf else None,
        "explains": soak.explained.get(number, []),
    }


def _judged(one: Judgement) -> dict[str, Any]:
    return {"invariant": one.invariant, "verdict": one.verdict.value, "seen": one.seen}
