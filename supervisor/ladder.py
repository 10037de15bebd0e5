"""The rungs by which a process gets an engine: `decide(observation) -> Decision`. Pure; runs under build.lock.

Here are bind and build. What the later rungs are for (extend, replace, overflow, take over) is refused with its
reason, or waited for where waiting helps.
"""

from __future__ import annotations

from enum import StrEnum

from attrs import frozen

from supervisor.contract import EngineSpec


class Rung(StrEnum):
    """What to do."""

    BIND = "bind"
    BUILD = "build"
    WAIT = "wait"
    """Let go of build.lock, and look again."""
    REFUSE = "refuse"


@frozen
class Observation:
    """What was seen of a slot. `warden_alive` is None when that could not be told; `served` is None when the keeper
    did not answer or has no contract yet; `leftovers` are generations whose lock is held though no warden lives."""

    wanted: EngineSpec
    warden_alive: bool | None
    stopping: bool = False
    served: EngineSpec | None = None
    leftovers: tuple[str, ...] = ()


@frozen
class Decision:
    """The rung, and why: the reason reaches status, log and error as it stands."""

    rung: Rung
    reason: str


def decide(seen: Observation) -> Decision:
    """Total over all observations."""
    if seen.warden_alive is None:
        return Decision(Rung.REFUSE, "whether a warden lives in the slot cannot be told: its lock cannot be read")
    if not seen.warden_alive:
        if seen.leftovers:
            names = ", ".join(seen.leftovers)
            return Decision(Rung.WAIT, f"processes of an engine without a warden are still alive: {names}")
        return Decision(Rung.BUILD, "no engine in the slot")
    if seen.stopping:
        return Decision(Rung.WAIT, "the engine in the slot is stopping")
    if seen.served is None:
        return Decision(Rung.WAIT, "the engine's keeper does not answer yet")
    missing = sorted(f"{role} ({path})" for role, path in seen.wanted.pairs - seen.served.pairs)
    if missing:
        return Decision(Rung.REFUSE, f"the engine in the slot does not serve {', '.join(missing)}")
    served = pins_by_pair(seen.served)
    other = sorted({served[pair] for pair, pin in pins_by_pair(seen.wanted).items() if served[pair] != pin})
    if other:
        return Decision(Rung.REFUSE, f"the engine in the slot is of another build: {', '.join(other)}")
    return Decision(Rung.BIND, "an engine that serves all that is wanted is there")


def pins_by_pair(spec: EngineSpec) -> dict[tuple[str, str], str]:
    """The pin of the group that serves each (role, model path)."""
    return {(launch.role, launch.path): group.pin for group in spec.groups for launch in group.launches}
