"""The rungs by which a process gets an engine: `decide(observation) -> Decision`. Pure; runs under build.lock.

What a newcomer may do to an engine that is there: use it, have it serve more, and take the place of one that nobody
uses. Never end what others use, nor a `queenright run`, which is its owner's: then it goes beside it, to a slot of its
configuration's own.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from attrs import evolve, frozen

from supervisor.contract import EngineSpec, GroupSpec, LaunchSpec, Lifetime

Pair = tuple[str, str]
"""(role, model path)."""


class Rung(StrEnum):
    """What to do."""

    BIND = "bind"
    BUILD = "build"
    EXTEND = "extend"
    """Have the engine serve what is missing as well; groups that stay as they are are not touched."""
    REPLACE = "replace"
    """Have the engine serve this instead, in place."""
    OVERFLOW = "overflow"
    """Leave it alone, and climb the ladder of the private slot."""
    TAKE_OVER = "take over"
    """End a warden that hangs, or what a dead one left; then build."""
    WAIT = "wait"
    """Let go of build.lock, and look again."""
    HELD = "held"
    """As WAIT, for somebody who holds the slot empty."""
    REFUSE = "refuse"


@frozen
class Observation:
    """What was seen of a slot, and who looks.

    `warden_alive` is None when that could not be told; `served` is None when the keeper did not answer or has no
    contract yet. `leftovers` are generations whose lock is held, and processes with their marker, though no warden
    lives; `unkillable` says that they are what a take-over has left. `others` are the live members but for the one who
    looks, None when they cannot be counted. `hung` is the proof that the warden hangs, in words, and `hold` who holds
    the slot empty. `overflows` is off in a private slot, beside which there is no other.
    """

    wanted: EngineSpec
    warden_alive: bool | None
    stopping: bool = False
    served: EngineSpec | None = None
    leftovers: tuple[str, ...] = ()
    unkillable: bool = False
    others: int | None = 0
    hung: str = ""
    hold: str = ""
    overflows: bool = True


class Decision(NamedTuple):
    """The rung, and why: the reason reaches log and error as it stands."""

    rung: Rung
    reason: str


def decide(seen: Observation) -> Decision:
    """Total over all observations."""
    if seen.warden_alive is None:
        return Decision(Rung.REFUSE, "whether a warden lives in the slot cannot be told: its lock cannot be read")
    if not seen.warden_alive:
        return _decide_empty(seen)
    if seen.served is None and seen.hung:
        # A hold keeps the slot empty, and it would not be: this ends with the hold.
        return Decision(Rung.HELD, seen.hold) if seen.hold else Decision(Rung.TAKE_OVER, seen.hung)
    if seen.stopping:
        return Decision(Rung.WAIT, "the engine in the slot is stopping")
    if seen.served is None:
        return Decision(Rung.WAIT, "the engine's keeper does not answer yet")
    return _decide_served(seen, seen.served)


def _decide_empty(seen: Observation) -> Decision:
    """No warden lives."""
    names = ", ".join(seen.leftovers)
    if seen.hold:
        return Decision(Rung.HELD, seen.hold)
    if seen.leftovers and seen.unkillable:
        return Decision(Rung.WAIT, f"processes of an engine without a warden cannot be killed: {names}")
    if seen.leftovers:
        return Decision(Rung.TAKE_OVER, f"an engine's warden is dead, and processes of it are still alive: {names}")
    return Decision(Rung.BUILD, "no engine in the slot")


def _decide_served(seen: Observation, served: EngineSpec) -> Decision:
    """An engine that says what it serves. Whether its groups are up is the keeper's business: it raises them, and a
    group that failed for good is no reason for a second engine."""
    lacks, misfits = _lacks(seen.wanted, served), _misfits(seen.wanted, served)
    if not lacks and not misfits:
        return Decision(Rung.BIND, "an engine that serves all that is wanted is there")
    if seen.hold:  # nothing more is started, here or beside it
        return Decision(Rung.HELD, seen.hold)
    foreign = sorted(f"{role} ({path})" for role, path in served.pairs - seen.wanted.pairs)
    if not misfits and not foreign:
        return Decision(Rung.EXTEND, f"the engine in the slot does not serve {lacks}")
    unfit = misfits or f"does not serve {lacks}, and serves others {', '.join(foreign)}"
    reason = f"the engine in the slot {unfit}"
    if served.lifetime is not Lifetime.MEMBERS:
        reason += ", and is kept by `queenright run`"
    elif seen.others is None:
        reason += ", and whether others use it cannot be told"
    elif seen.others:
        reason += f", and {'another process uses' if seen.others == 1 else f'{seen.others} other processes use'} it"
    else:
        return Decision(Rung.REPLACE, f"{reason}, and nobody uses it")
    return Decision(Rung.OVERFLOW if seen.overflows else Rung.REFUSE, reason)


def covers(wanted: EngineSpec, served: EngineSpec) -> bool:
    """Whether an engine serves all that is wanted, with the same pins. What it serves besides, how it is cut into
    groups, and with what settings, is its own business, but for the least context that a member can live with."""
    return not _lacks(wanted, served) and not _misfits(wanted, served)


def gives_way(served: EngineSpec, wanted: EngineSpec) -> bool:
    """Whether `queenright run` may take the place of an engine: it lives by its members alone, and all that it serves,
    its gateway's clients included, is served by the next one as well, so that nobody loses more than a moment."""
    if served.lifetime is not Lifetime.MEMBERS or not covers(served, wanted):
        return False
    theirs, ours = served.gateway, wanted.gateway
    address = (theirs.host, theirs.port, theirs.ids, theirs.key_file)
    return not theirs.enabled or (
        ours.enabled
        and address == (ours.host, ours.port, ours.ids, ours.key_file)
        and all(set(names) <= set(ours.aliases.get(role, ())) for role, names in theirs.aliases.items())
    )


def _lacks(wanted: EngineSpec, served: EngineSpec) -> str:
    """What is wanted and not served, in words: pairs, and contexts that were planned too small."""
    found = [f"{role} ({path})" for role, path in sorted(wanted.pairs - served.pairs)]
    launches = by_pair(served)
    for pair, (_, launch) in sorted(by_pair(wanted).items()):
        if pair in launches and assured(launches[pair][1]) < least_context(launch):
            has = assured(launches[pair][1])
            found.append(f"{pair[0]} with {least_context(launch)} tokens of context, but with {has}")
    return ", ".join(found)


def _misfits(wanted: EngineSpec, served: EngineSpec) -> str:
    """Other builds of what is served and wanted, in words."""
    ours, theirs = by_pair(wanted), by_pair(served)
    other = {(theirs[pair][0].pin, ours[pair][0].pin) for pair in ours.keys() & theirs.keys()}
    named = (f"{is_there} and not {is_wanted}" for is_there, is_wanted in sorted(other) if is_there != is_wanted)
    return f"is of another build: {found}" if (found := ", ".join(named)) else ""


def least_context(launch: LaunchSpec) -> int:
    """Tokens per sequence below which a launch is of no use to who wants it. Never more than it asks for itself: an
    engine made as it says must do."""
    return min(launch.least_context, launch.context) if launch.context else launch.least_context


def assured(launch: LaunchSpec) -> int:
    """Tokens per sequence that a launch has for sure: where they are decided when it is started, no fewer than it was
    asked for."""
    return launch.context or launch.least_context


def by_pair(spec: EngineSpec) -> dict[Pair, tuple[GroupSpec, LaunchSpec]]:
    """Where each (role, model path) is served."""
    return {(launch.role, launch.path): (group, launch) for group in spec.groups for launch in group.launches}


def extended(served: EngineSpec, wanted: EngineSpec) -> EngineSpec:
    """The contract that serves what both ask for: what is served stays as it is, so that no group is touched that need
    not be, and nobody who uses it gets less than he had."""
    groups = {group.name: group for group in served.groups}
    theirs, ours = by_pair(served), by_pair(wanted)
    for pair, (group, launch) in theirs.items():
        if pair in ours and assured(launch) < least_context(ours[pair][1]):
            grown = evolve(launch, context=ours[pair][1].context, least_context=ours[pair][1].least_context)
            there = groups[group.name].launches
            groups[group.name] = evolve(group, launches=tuple(grown if one == launch else one for one in there))
    for group in wanted.groups:
        missing = tuple(launch for launch in group.launches if (launch.role, launch.path) not in theirs)
        there_is = groups.get(group.name)
        if not missing:
            continue
        if there_is is None:
            groups[group.name] = evolve(group, launches=missing)
        elif (there_is.kind, there_is.pin) == (group.kind, group.pin):
            groups[group.name] = evolve(there_is, launches=(*there_is.launches, *missing))
        else:  # a group has one kind and one build
            taken = {*groups, *(one.name for one in wanted.groups)}
            name = next(name for number in range(2, 999) if (name := f"{group.name}-{number}") not in taken)
            groups[name] = evolve(group, name=name, launches=missing)
    # The wish to be kept warm is that of a configuration: the keeper remembers those of others. The gateway's address is
    # in the hands of clients: who comes later adds names to it and moves it nowhere.
    gateway = evolve(served.gateway, aliases={**wanted.gateway.aliases, **served.gateway.aliases})
    return evolve(wanted, groups=tuple(groups.values()), lifetime=served.lifetime, gateway=gateway)
