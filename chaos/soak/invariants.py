"""What must hold after every round, and at the end: pure functions of what was seen. A test deletes each in turn, and a
planted fault must then go unnoticed: an invariant that nothing can break is not in this table.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from chaos.soak.verdicts import Judgement, Verdict
from supervisor import budgets

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from chaos.soak.seen import Ended, Round, Usage

GROWTH: Final = 0.10
"""Part by which a figure may have grown over the rounds that count, by its slope: noise of a small engine is 3 %."""
ROOM: Final = {"memory": 4 * 1024 * 1024, "descriptors": 8, "threads": 4}
"""And so much besides: caches that fill once, a pool that opens its last connection."""
DEADLINE_SLACK: Final = 5.0
"""budget: seconds that a busy machine may add to a deadline: the one who keeps it has to be given a turn of a core."""
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


def one_promise_a_group(seen: Round) -> tuple[Verdict, str]:
    """In the machine's book of memory each group has its promise once, or none where nothing is planned; and nobody else of
    this slot has one."""
    if seen.promises is None:
        return Verdict.UNKNOWN, "the book of promises could not be read"
    wrong = [
        f"{group} has {times} promises"
        for group, times in Counter(seen.promises).items()
        if times > 1 or group not in seen.planned
    ]
    return (Verdict.BROKEN, "; ".join(wrong)) if wrong else (Verdict.HOLDS, "")


def requests_end_well(seen: Round) -> tuple[Verdict, str]:
    """Each request is answered, or refused with a word when to come again. It is broken off only where the kill log names what
    carried it, at a time when it was under way: a member's after its first byte, a gateway's caller's also before it where
    the gateway itself was hit. Nobody listens at the gateway only where the warden, who holds its socket, was killed."""
    wrong = [
        f"{one.id or one.way} {one.role}: {one.outcome} after {one.seconds:.1f} s ({one.why})"
        for one in seen.ended
        if one.outcome not in ("complete", "refused") and not _explained(one, seen)
    ]
    return _of(wrong)


def _explained(one: Ended, seen: Round) -> bool:
    hits = [kill for kill in seen.kills if kill.carried(one, seen.carriers)]
    if one.outcome == "unreachable":
        return one.way == "gateway" and any("warden" in kill.touched for kill in hits)
    if one.outcome != "interrupted":
        return False
    at_the_gateway = one.way == "gateway" and any({"keeper", "warden"} & kill.touched for kill in hits)
    return bool(hits) and (one.first_byte or at_the_gateway)


def within_the_deadline(seen: Round) -> tuple[Verdict, str]:
    """The first byte of an answer, or the refusal, comes in the time that the request had."""
    wrong = []
    for one in seen.ended:
        took = one.seconds if one.first_s is None else one.first_s
        if one.deadline_s and took > one.deadline_s + DEADLINE_SLACK:
            wrong.append(f"{one.id}: {one.outcome} after {took:.1f} s, it had {one.deadline_s:g} s")
    return _of(wrong)


def no_request_lost(seen: Round) -> tuple[Verdict, str]:
    """Each request that was asked ends: none is open for longer than it may take, none's caller is gone."""
    return _of([f"{identifier} is {over:.0f} s over its time" for identifier, over in seen.open if over > 0])


def answers_have_receipts(seen: Round) -> tuple[Verdict, str] | None:
    """An answer was made by a server: one of its executions was written to the end."""
    if not seen.keeps_receipts:
        return None
    if seen.served is None:
        return Verdict.UNKNOWN, "the receipts could not be read"
    return _of(
        [
            f"{one.id} was answered, and no server answered it"
            for one in seen.ended
            if one.outcome == "complete" and all(run.tokens is None for run in seen.served.get(one.id, ()))
        ]
    )


def served_once(seen: Round) -> tuple[Verdict, str] | None:
    """A request is executed once; once more only where the kill log names what carried it, and never after the first byte of
    its answer. Nothing is executed that nobody asked, or that was over."""
    if not seen.keeps_receipts:
        return None
    if seen.served is None:
        return Verdict.UNKNOWN, "the receipts could not be read"
    wrong = list(seen.strays)
    for one in seen.ended:
        runs = seen.served.get(one.id, ())
        most = budgets.REPLAY_ATTEMPTS if any(kill.carried(one, seen.carriers) for kill in seen.kills) else 1
        if len(runs) > most:
            wrong.append(f"{one.id} was executed {len(runs)} times")
        elif one.first_s is not None and any(run.at > one.began + one.first_s for run in runs):
            wrong.append(f"{one.id} was executed again after its first byte")
    return _of(wrong)


def texts_as_the_control(seen: Round) -> tuple[Verdict, str] | None:
    """An answer is what the same request had in calm, and one that was broken off is its beginning."""
    if not seen.controls:
        return None
    wrong = []
    for one in seen.ended:
        control = seen.controls.get((one.kind, one.prompt), one.text)
        if one.text != control and (one.outcome == "complete" or not control.startswith(one.text)):
            wrong.append(f"{one.id} {one.kind}: {one.text[:80]!r} in place of {control[:80]!r}")
    return _of(wrong)


def ledger_reconciles(seen: Round) -> tuple[Verdict, str] | None:
    """The gateway counts what its callers count, outcome by outcome, in each keeper's life."""
    if seen.ledger is None:
        return Verdict.UNKNOWN, "the gateway's counts could not be read"
    if not seen.ledger:  # no gateway, or the first reading of a keeper's life: nothing was held against anything
        return None
    return _of(
        [
            f"{row.outcome}: {row.counted} counted, its callers had {row.least} to {row.most}"
            for row in seen.ledger
            if not row.least <= row.counted <= row.most
        ]
    )


def _of(wrong: Sequence[str]) -> tuple[Verdict, str]:
    more = f"; and {len(wrong) - 3} more" if len(wrong) > 3 else ""
    return (Verdict.BROKEN, "; ".join(wrong[:3]) + more) if wrong else (Verdict.HOLDS, "")


Invariant = Callable[["Round"], "tuple[Verdict, str] | None"]
"""None where it does not apply: an engine without receipts is not judged by them, and the report says so."""

OF_REQUESTS: Final[dict[str, Invariant]] = {
    "requests end well": requests_end_well,
    "within the deadline": within_the_deadline,
    "no request lost": no_request_lost,
    "answers have receipts": answers_have_receipts,
    "served once": served_once,
    "texts as the control": texts_as_the_control,
    "ledger reconciles": ledger_reconciles,
}
OF_THE_SLOT: Final[dict[str, Invariant]] = {
    "engine as planned": engine_as_planned,
    "nothing outside the records": nothing_outside_the_records,
    "no zombie": no_zombie,
    "locks are members": locks_are_members,
    "one engine": one_engine,
    "one promise a group": one_promise_a_group,
}
EACH_ROUND: Final[dict[str, Invariant]] = {**OF_THE_SLOT, **OF_REQUESTS}
AT_END: Final = (
    "recovers",
    "memory is flat",
    "descriptors is flat",
    "threads is flat",
    "nothing is left",
    "no promise is left",
)
"""What else is judged, once for the whole run."""


def judge(seen: Round, names: Collection[str] | None = None) -> list[Judgement]:
    """All of them, or those. One that fails itself could not judge; one that does not apply is left out."""
    found = []
    for name, invariant in EACH_ROUND.items():
        if names is not None and name not in names:
            continue
        try:
            judged = invariant(seen)
        except Exception as error:  # noqa: BLE001 - a checker that crashed has found out nothing
            judged = Verdict.UNKNOWN, f"{type(error).__name__}: {error}"
        if judged is None:
            continue
        verdict, words = judged
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
