"""What must have held while agents shared an engine: pure functions of what was seen. A test breaks each in turn, and no
claim is in the table that nothing can break.

The claims that this kind of run was first made with elsewhere could not fail: a memory check with one side, an assertion of
one engine that took two for good, a look at who had bound before any request was sent. So each of these says when it
was looked at, has two sides where it is a measure, and counts in exact numbers.
"""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Final

from chaos.soak.verdicts import Judgement, Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from chaos.agents.seen import Crew, Request, Run

SAMPLES_LEAST: Final = 3
"""Looks at which all agents were at work: with fewer nothing was seen."""
BAND: Final = 0.10
"""Part by which the engine's memory may differ from what it was with one agent, up or down: a second copy is 100 %, an engine
that lost a server half of it, and a small engine's noise 3 %."""
DEVICE_BAND: Final = 0.05
DEVICE_ROOM: Final = 256 * 2**20
"""So much besides: contexts that a driver makes, and keeps for a moment."""


def started_from_nothing(run: Run) -> tuple[Verdict, str]:
    """Nothing was in the slot before."""
    return (Verdict.BROKEN, f"there was before: {', '.join(run.before)}") if run.before else (Verdict.HOLDS, "")


def one_built_the_others_bound(run: Run) -> tuple[Verdict, str]:
    """One warden from the first look to the last; one agent built and each other one bound, by its own word; at every moment
    at which all were at work, each of them held a membership lock of this engine, and nobody else; none had one of its own."""
    crew = run.four
    working = crew.working
    if len(working) < SAMPLES_LEAST or any(one.members is None for one in working):
        return Verdict.UNKNOWN, _too_few(crew)
    wrong = []
    wardens = {one.sighting.warden for one in crew.samples if one.sighting and one.sighting.warden}
    if len(wardens) != 1:
        wrong.append(f"{len(wardens)} wardens were seen")
    hows = sorted(one.how for one in crew.reports)
    if hows != sorted(["build"] + ["bind"] * (len(crew.reports) - 1)):
        wrong.append(f"they came by {', '.join(hows)}")
    ours = sorted(one.pid for one in crew.reports)
    held = {tuple(sorted(one.members or ())) for one in working}
    if held != {tuple(ours)}:
        wrong.append(f"locks of {sorted(held)}, agents {ours}")
    if others := {path for one in crew.samples for path in one.beside}:
        wrong.append(f"engines beside it: {', '.join(sorted(others))}")
    return _verdict(wrong)


def one_engine_served(run: Run) -> tuple[Verdict, str]:
    """At every moment at which all were at work the same processes were there, as many as planned; and every agent's requests
    went to where these listened."""
    crew = run.four
    working = crew.working
    if len(working) < SAMPLES_LEAST or any(one.sighting is None for one in working):
        return Verdict.UNKNOWN, _too_few(crew)
    wrong = []
    engines = {one.sighting.engine for one in working if one.sighting}
    if len(engines) != 1:
        wrong.append(f"{len(engines)} different sets of processes were seen")
    for one in working:
        assert one.sighting is not None  # noqa: S101 - looked at above
        there = {group: len(one.sighting.servers.get(group, ())) for group in run.planned}
        if there != dict(run.planned) or set(one.sighting.leaders) != set(run.planned):
            wrong.append(f"proxies {sorted(one.sighting.leaders)}, servers {there}, planned {dict(run.planned)}")
            break
    for report in crew.reports:
        for role, url in report.urls.items():
            port = int(url.rpartition(":")[2])
            if port not in crew.ports.get(run.carriers[role], ()):
                wrong.append(f"{report.name}'s {role} went to port {port}, where no proxy of this engine listened")
    return _verdict(wrong)


def all_at_once(run: Run) -> tuple[Verdict, str]:
    """At some moment each agent had a chat under way: embeddings are asked for all the while, and would make it so whatever the
    chats do. And each had chat and an embedding under way at once."""
    crew = run.four
    if not all(one.requests for one in crew.reports):
        return Verdict.BROKEN, "an agent asked nothing"
    wrong = []
    most = most_at_once([_merged([one for one in report.requests if one.role == "chat"]) for report in crew.reports])
    if most < len(crew.reports):
        wrong.append(f"at most {most} of {len(crew.reports)} agents had a chat under way")
    for report in crew.reports:
        chat = [one for one in report.requests if one.role == "chat"]
        embed = [one for one in report.requests if one.role == "embed"]
        if not any(_overlap(one, other) for one in chat for other in embed):
            wrong.append(f"{report.name} never had chat and an embedding under way at once")
    return _verdict(wrong)


def memory_is_flat(run: Run) -> tuple[Verdict, str]:
    """The engine held as much memory with all of them as with one: neither more nor less."""
    both = [[one.memory for one in crew.working] for crew in (run.baseline, run.four)]
    if any(len(side) < SAMPLES_LEAST or None in side for side in both):
        return Verdict.UNKNOWN, _too_few(run.four)
    alone, shared = (median([one or 0 for one in side]) for side in both)
    if alone <= 0:
        return Verdict.UNKNOWN, "the engine of one agent had no memory that could be read"
    return _within("memory", alone, shared, BAND * alone)


def device_memory_is_flat(run: Run) -> tuple[Verdict, str]:
    """The same of the GPUs."""
    both = [[one.device for one in crew.working] for crew in (run.baseline, run.four)]
    if any(len(side) < SAMPLES_LEAST or None in side for side in both):
        return Verdict.UNKNOWN, run.device_before.why or _too_few(run.four)
    alone, shared = (median([one or 0 for one in side]) for side in both)
    return _within("GPU memory", alone, shared, max(DEVICE_ROOM, DEVICE_BAND * alone))


def tasks_are_verified(run: Run) -> tuple[Verdict, str]:
    """Every agent's results are right, on disk."""
    return _verdict(
        [f"{one.name}: {what}" for crew in (run.baseline, run.four) for one in crew.reports for what in one.wrong]
    )


def requests_were_answered(run: Run) -> tuple[Verdict, str]:
    """Every request was answered in full, or given up by who asked; and every agent ended well."""
    wrong = []
    for crew in (run.baseline, run.four):
        for report in crew.reports:
            bad = [one for one in report.requests if one.outcome not in ("complete", "left")]
            wrong += [f"{report.name}, {one.role}: {one.outcome} ({one.why})" for one in bad]
            if report.status != 0:
                wrong.append(f"{report.name} ended with {report.status}: {report.why}")
            if not report.requests:
                wrong.append(f"{report.name} asked nothing")
    return _verdict(wrong)


def nothing_remained(run: Run) -> tuple[Verdict, str]:
    """After the one, and after all of them, no process, no lock and no engine was left."""
    return _verdict([*(f"after one: {what}" for what in run.baseline.left), *run.four.left])


def device_memory_was_given_back(run: Run) -> tuple[Verdict, str]:
    """In the end the GPUs hold what they held before."""
    before, after = run.device_before.total, run.four.device_after.total
    if before is None or after is None:
        return Verdict.UNKNOWN, run.device_before.why or run.four.device_after.why
    return _within("GPU memory before and after", before, after, DEVICE_ROOM)


CLAIMS: Final[dict[str, Callable[[Run], tuple[Verdict, str]]]] = {
    "started from nothing": started_from_nothing,
    "one built, the others bound": one_built_the_others_bound,
    "one engine served": one_engine_served,
    "all at once": all_at_once,
    "memory is flat": memory_is_flat,
    "tasks are verified": tasks_are_verified,
    "requests were answered": requests_were_answered,
    "nothing remained": nothing_remained,
    "GPU memory is flat": device_memory_is_flat,
    "GPU memory was given back": device_memory_was_given_back,
}
OF_A_GPU: Final = ("GPU memory is flat", "GPU memory was given back")
"""Not judged, and told as not covered, where there is no GPU. Where there is one that cannot be read they are unknown."""


def judge(run: Run) -> list[Judgement]:
    """All of them. One that fails itself has found out nothing."""
    found = []
    for name, claim in CLAIMS.items():
        if name in OF_A_GPU and run.device_before.is_absent:
            continue
        try:
            verdict, words = claim(run)
        except Exception as error:  # noqa: BLE001 - a checker that crashed is not green
            verdict, words = Verdict.UNKNOWN, f"{type(error).__name__}: {error}"
        found.append(Judgement(name, verdict, words))
    return found


def most_at_once(spans: Sequence[Sequence[tuple[float, float]]]) -> int:
    """The most of these that had something under way at one moment; each is a list of spans that do not overlap."""
    edges = sorted((at, step) for one in spans for span in one for at, step in ((span[0], 1), (span[1], -1)))
    now = most = 0
    for _, step in edges:  # an end sorts before a beginning at the same time
        now += step
        most = max(most, now)
    return most


def _merged(requests: Sequence[Request]) -> list[tuple[float, float]]:
    found: list[tuple[float, float]] = []
    for one in sorted(requests, key=lambda request: request.began):
        if found and one.began <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], one.ended)
        else:
            found.append((one.began, one.ended))
    return found


def _overlap(one: Request, other: Request) -> bool:
    return one.began < other.ended and other.began < one.ended


def _within(what: str, before: float, after: float, room: float) -> tuple[Verdict, str]:
    told = f"{what}: {before / 2**20:.0f} and {after / 2**20:.0f} MiB, {room / 2**20:.0f} MiB either way is the most"
    return (Verdict.BROKEN if abs(after - before) > room else Verdict.HOLDS), told


def _verdict(wrong: Sequence[str]) -> tuple[Verdict, str]:
    return (Verdict.BROKEN, "; ".join(wrong[:4])) if wrong else (Verdict.HOLDS, "")


def _too_few(crew: Crew) -> str:
    return f"all were at work at {len(crew.working)} of {len(crew.samples)} looks, or a look saw nothing"
