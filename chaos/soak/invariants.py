"""What must hold after every round, and at the end: pure functions of what was seen. A test deletes each in turn, and a
planted fault must then go unnoticed: an invariant that nothing can break is not in this table.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from chaos.soak.verdicts import Judgement, Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from chaos.soak.seen import Ended, Round, Usage

GROWTH: Final = 0.10
"""Part by which a figure may have grown over the rounds that count, by its slope: noise of a small engine is 3 %."""
ROOM: Final = {"memory": 4 * 1024 * 1024, "descriptors": 8, "threads": 4}
"""And so much besides: caches that fill once, a pool that opens its last connection."""
ROUNDS_LEAST: Final = 24
"""With fewer a slope says nothing, and is not judged: a keeper fills its caches over the first ten rounds of its life."""


def engine_as_planned(seen: Round) -> tuple[Verdict, str]:
    """Each group has its proxy and as many servers as planned, under one warden with one keeper. With none planned its leader
    is no proxy, and what that starts is its own business."""
    sighting = seen.sighting
    if sighting is None:
        return Verdict.UNKNOWN, "the slot could not be looked at"
    wrong = [f"no {name}" for name in ("warden", "keeper") if getattr(sighting, name) is None]
    for group, servers in seen.planned.items():
        there = len(sighting.servers.get(group, ()))
        if group not in sighting.leaders or servers not in (0, there):
            leader = "a proxy" if group in sighting.leaders else "no proxy"
            wrong.append(f"{group} has {leader} and {there} of {servers} servers")
    wrong += [f"{group} is nobody's" for group in sighting.servers.keys() - seen.planned.keys()]
    return (Verdict.BROKEN, "; ".join(wrong)) if wrong else (Verdict.HOLDS, "")


def nothing_outside_the_records(seen: Round) -> tuple[Verdict, str]:
    """No process carries the marker of a generation that is over."""
    if seen.marked is None:
        return Verdict.UNKNOWN, "the processes of this machine could not be looked at"
    left = [f"pid {who.pid} of {mark}" for who, mark in seen.marked if mark not in seen.current]
    return (Verdict.BROKEN, f"left over: {', '.join(left)}") if left else (Verdict.HOLDS, "")


def no_zombie(seen: Round) -> tuple[Verdict, str]:
    """Whatever died was reaped."""
    if seen.zombies is None:
        return Verdict.UNKNOWN, "the warden's children could not be looked at"
    return (Verdict.BROKEN, f"dead and kept: {list(seen.zombies)}") if seen.zombies else (Verdict.HOLDS, "")


def locks_are_members(seen: Round) -> tuple[Verdict, str]:
    """Who holds a membership lock is one of our front ends, and each of them holds one."""
    if seen.member_locks is None:
        return Verdict.UNKNOWN, "the members' locks could not be tried"
    held, alive = sorted(seen.member_locks), sorted(seen.front_ends)
    return (Verdict.HOLDS, "") if held == alive else (Verdict.BROKEN, f"locks of {held}, front ends {alive}")


def one_engine(seen: Round) -> tuple[Verdict, str]:
    """There is no second engine for the contract."""
    beside = list(seen.engines_beside)
    return (Verdict.BROKEN, f"engines beside it: {', '.join(beside)}") if beside else (Verdict.HOLDS, "")


def requests_end_well(seen: Round) -> tuple[Verdict, str]:
    """Each request is answered, or refused with a word when to come again. It is broken off only after its first byte, and
    only where this round's fault hit what carried it; before it only where the gateway itself was hit. Nobody listens at the gateway only where the warden, who holds its
    socket, was killed."""
    wrong = [
        f"{one.way} {one.role}: {one.outcome} after {one.seconds:.1f} s ({one.why})"
        for one in seen.ended
        if one.outcome not in ("complete", "refused") and not _explained(one, seen)
    ]
    return (Verdict.BROKEN, "; ".join(wrong[:3])) if wrong else (Verdict.HOLDS, "")


def _explained(one: Ended, seen: Round) -> bool:
    if one.outcome == "unreachable":
        return one.way == "gateway" and "warden" in seen.killed
    touched = {seen.carriers.get(one.role), "keeper" if one.way == "gateway" else None} & set(seen.killed)
    # Its own connection went with the gateway: then there may have been no byte yet.
    begun = one.first_byte or (one.way == "gateway" and "keeper" in seen.killed)
    return one.outcome == "interrupted" and begun and bool(touched)


EACH_ROUND: Final[dict[str, Callable[[Round], tuple[Verdict, str]]]] = {
    "engine as planned": engine_as_planned,
    "nothing outside the records": nothing_outside_the_records,
    "no zombie": no_zombie,
    "locks are members": locks_are_members,
    "one engine": one_engine,
    "requests end well": requests_end_well,
}


def judge(seen: Round) -> list[Judgement]:
    """All of them. One that fails itself could not judge."""
    found = []
    for name, invariant in EACH_ROUND.items():
        try:
            verdict, words = invariant(seen)
        except Exception as error:  # noqa: BLE001 - a checker that crashed has found out nothing
            verdict, words = Verdict.UNKNOWN, f"{type(error).__name__}: {error}"
        found.append(Judgement(name, verdict, words, seen.number))
    return found


def flat(history: Sequence[Mapping[str, Usage] | None]) -> list[Judgement]:
    """At the end: memory, descriptors and threads do not grow. By the slope over all but the first quarter, in which caches
    fill; from rounds that could be measured. Of a run that is too short nothing."""
    if len(history) < ROUNDS_LEAST:
        return []
    rounds = [one for one in history if one]
    if len(rounds) < ROUNDS_LEAST / 2:
        return [Judgement(f"{what} is flat", Verdict.UNKNOWN, "too few rounds could be measured") for what in ROOM]
    rounds = rounds[len(rounds) // 4 :]
    found = []
    for what, room in ROOM.items():
        grown = []
        for who in rounds[-1]:
            values = [float(getattr(one[who], what)) for one in rounds if who in one]
            growth = slope(values) * (len(values) - 1)
            if growth > GROWTH * values[0] + room:
                grown.append(f"{who} by {growth:,.0f} over {len(values)} rounds, from {values[0]:,.0f}")
        verdict = Verdict.BROKEN if grown else Verdict.HOLDS
        found.append(Judgement(f"{what} is flat", verdict, "; ".join(grown)))
    return found


def slope(values: Sequence[float]) -> float:
    """Least squares, per step."""
    n = len(values)
    if n < 2:
        return 0.0
    mean_x, mean_y = (n - 1) / 2, sum(values) / n
    over = sum((x - mean_x) * (y - mean_y) for x, y in enumerate(values))
    return over / sum((x - mean_x) ** 2 for x in range(n))
