"""`queenright bench peers`: the same dummy children under us, under a bare loop, and under the supervisors that are
here, in one run and in random order, so that what disturbs the machine disturbs all alike (docs/reference/bench.md).

What is measured is read from the children (dummy.c notes when it starts, listens, and is told to end) and from the
kernel, never from a supervisor's own word.
"""

from __future__ import annotations

import math
import random
import signal
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Final

from attrs import frozen

from chaos import peers_rig
from chaos.bench_rig import NotMeasuredError
from chaos.peers import FLOOR, OURS, PEERS, Peer
from chaos.peers_rig import Supervised

FEW, MANY = 4, 100
ROUNDS: Final = 6
"""Of a recovery: four deaths each; of a cold start of four; half as many of a cold start of a hundred."""
GRACE: Final = 2.5
STABLE: Final = 1.2
"""Seconds that a child lives before it is killed: most of them wait a second before they restart a younger one."""

TRIAL_LIMIT = 20.0  # budget: one child; a supervisor that takes longer does not work here
START_LIMIT = 60.0  # budget: all children of a cold start; monit takes 21 s for a hundred
RECOVERY_LIMIT = 12.0  # budget: from a SIGKILL to healthy; circus by default takes 5 s
HANG_LIMIT = 12.0  # budget: more than twice what is asked of us
STOP_LIMIT = GRACE + 20.0  # budget: children stopped one after the other take their grace each
IDLE_WINDOW = 20.0  # budget: so that a look once a second shows, and one every ten seconds as well
SETTLE = 2.5  # budget: after a start, until it is idle


@frozen
class Sample:
    """One thing that was measured: of which cell, of whom, what, how much (None: did not happen within the limit)."""

    cell: str
    what: str
    peer: str
    value: float | None
    unit: str


@frozen
class Bench:
    """What every cell has. `tell` hears (what, done, of how many)."""

    folder: Path
    rounds: int
    program: tuple[str, ...]
    chosen: tuple[Peer, ...]
    tell: Callable[[str, int, int], None]

    def start(self, peer: Peer, count: int, *knobs: str) -> Supervised:
        """A supervisor with so many children; leave it by `with`."""
        return Supervised(peer, self.folder, (*self.program, *knobs), count, GRACE)

    def in_turn(self, what: str, rounds: int) -> Iterable[Peer]:
        """Every peer, `rounds` times, each round in another order."""
        total, done = rounds * len(self.chosen), 0
        for number in range(rounds):
            for peer in random.Random(number).sample(self.chosen, len(self.chosen)):
                self.tell(what, done, total)
                yield peer
                done += 1
        self.tell(what, total, total)


def _recovery(bench: Bench) -> list[Sample]:
    """All are up at once; each child is killed once in its life, since a second death in a row is answered later."""
    found = []
    total, done = bench.rounds * FEW * len(bench.chosen), 0
    for number in range(bench.rounds):
        with ExitStack() as stack:
            running = [stack.enter_context(bench.start(peer, FEW)) for peer in bench.chosen]
            for one in running:
                one.wait_listening(START_LIMIT)
            time.sleep(STABLE)
            order = [(one, index) for one in running for index in range(FEW)]
            random.Random(number).shuffle(order)
            for one, index in order:
                bench.tell("recovery", done, total)
                took = one.kill_and_wait(one.children()[index], RECOVERY_LIMIT)
                found.append(Sample("recovery", "SIGKILL to healthy", one.peer.name, _ms(took), "ms"))
                done += 1
    bench.tell("recovery", total, total)
    return found


def _cold(bench: Bench) -> list[Sample]:
    found = []
    for count in (FEW, MANY):
        for peer in bench.in_turn(
            f"cold start of {count}", bench.rounds if count == FEW else max(1, bench.rounds // 2)
        ):
            with bench.start(peer, count) as one:
                took = one.wait_listening(START_LIMIT)
                found.append(Sample("cold", f"cold start of {count}", peer.name, _ms(took), "ms"))
    return found


def _stop(bench: Bench) -> list[Sample]:
    found = []
    for count in (FEW, MANY):
        for peer in bench.in_turn(f"stop of {count}", 1):
            with bench.start(peer, count, "--ignore-term") as one:
                one.wait_listening(START_LIMIT)
                time.sleep(STABLE)
                took, left = one.stop(STOP_LIMIT)
                what = f"stop of {count} that ignore SIGTERM"
                found.append(Sample("stop", what, peer.name, took, "s"))
                found.append(Sample("stop", f"{what}: left alive", peer.name, float(left), ""))
    return found


def _idle(bench: Bench) -> list[Sample]:
    found = []
    for peer in bench.in_turn("idle", 1):
        sizes = {}
        for count in (FEW, MANY):
            with bench.start(peer, count) as one:
                one.wait_listening(START_LIMIT)
                time.sleep(SETTLE)
                before = one.cpu_seconds()
                if count == MANY:
                    time.sleep(IDLE_WINDOW)
                    used = one.cpu_seconds() - before
                    found.append(Sample("idle", f"CPU of {IDLE_WINDOW:g} s with {MANY}", peer.name, _ms(used), "ms"))
                sizes[count] = one.memory_mebibytes()
        found.append(Sample("idle", f"memory with {MANY}", peer.name, sizes[MANY], "MiB"))
        growth = (sizes[MANY] - sizes[FEW]) / (MANY - FEW)
        found.append(Sample("idle", "memory for each child", peer.name, growth, "MiB"))
    return found


def _orphans(bench: Bench) -> list[Sample]:
    found = []
    for peer in bench.in_turn("orphans", 1):
        with bench.start(peer, FEW, "--grandchild") as one:
            one.wait_listening(START_LIMIT)
            time.sleep(STABLE)
            victim = one.children()[0]
            theirs = one.grandchildren_of(victim)
            one.kill_and_wait(victim, RECOVERY_LIMIT)
            alive = sum(peers_rig.alive(each) for each in theirs)
            found.append(Sample("orphans", "left of a killed child", peer.name, float(alive), ""))
            one.stop(STOP_LIMIT)
            found.append(Sample("orphans", "left after a stop", peer.name, float(len(one.living())), ""))
    return found


def _hang(bench: Bench) -> list[Sample]:
    found = []
    for peer in bench.in_turn("hang", 1):
        with bench.start(peer, FEW) as one:
            one.wait_listening(START_LIMIT)
            time.sleep(SETTLE)
            took = one.kill_and_wait(one.children()[0], HANG_LIMIT, signal.SIGSTOP)
            found.append(Sample("hang", "SIGSTOP to healthy", peer.name, took, "s"))
    return found


def _death(bench: Bench) -> list[Sample]:
    """The supervisor itself is killed, and started again by the same command."""
    found = []
    for peer in bench.in_turn("supervisor's death", 1):
        with bench.start(peer, FEW) as one:
            one.wait_listening(START_LIMIT)
            time.sleep(STABLE)
            one.kill_supervisor()
            peers_rig.settle(2.0, lambda: not one.living())
            found.append(Sample("death", "left 2 s after its SIGKILL", peer.name, float(len(one.living())), ""))
            one.start_again()
            peers_rig.settle(5.0, lambda: False)
            found.append(Sample("death", "starts in vain after it", peer.name, float(one.refused_starts()), ""))
    return found


CELLS: Final = {
    "recovery": _recovery,
    "cold": _cold,
    "stop": _stop,
    "orphans": _orphans,
    "death": _death,
    "hang": _hang,
    "idle": _idle,
}

GOALS: Final = {
    "SIGKILL to healthy": 8.0,
    f"cold start of {FEW}": 300.0,
    f"cold start of {MANY}": 500.0,
    f"stop of {FEW} that ignore SIGTERM": GRACE + 0.3,
    f"stop of {MANY} that ignore SIGTERM": GRACE + 0.3,
    "left of a killed child": 0.0,
    "left after a stop": 0.0,
    "left 2 s after its SIGKILL": 0.0,
    "starts in vain after it": 0.0,
    "SIGSTOP to healthy": 5.0,
    f"CPU of {IDLE_WINDOW:g} s with {MANY}": 40.0,
    "memory for each child": 0.3,
}
"""The most that ours should be, in the sample's unit; of several, their median."""


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1000


def measure(
    folder: Path, rounds: int, names: Iterable[str], tell: Callable[[str, int, int], None]
) -> tuple[list[Sample], dict[str, str], str]:
    """Measure the named cells: the samples, who was left out and why, and what the children were."""
    program, what = peers_rig.dummy(folder)
    skipped: dict[str, str] = {}
    chosen = []
    for number, peer in enumerate(PEERS):
        tell("who is here", number, len(PEERS))
        try:
            with Supervised(peer, folder, program, 1, GRACE) as one:  # what is installed need not work
                one.wait_listening(TRIAL_LIMIT)
            chosen.append(peer)
        except NotMeasuredError as error:
            if peer.name == OURS:
                raise
            skipped[peer.name] = f"{error.what}; {error.next_step}" if error.next_step else error.what
    tell("who is here", len(PEERS), len(PEERS))
    bench = Bench(folder, rounds, program, tuple(chosen), tell)
    samples = []
    for name in names:
        samples += CELLS[name](bench)
    return samples, skipped, what


@frozen
class Line:
    """All samples of one peer in one cell: how many, their median and 95th percentile (None: never within the limit,
    for the median when it was so for at least half), the median through the bare loop's, and whether ours is met."""

    cell: str
    what: str
    peer: str
    n: int
    middle: float | None
    late: float | None
    unit: str
    ratio: float | None
    goal: float | None

    @property
    def verdict(self) -> str:
        """`met` or `missed`; "" for what is not ours or has no goal."""
        if self.goal is None:
            return ""
        return "met" if self.middle is not None and self.middle <= self.goal else "missed"


def lines(samples: Iterable[Sample]) -> list[Line]:
    """The samples, summed up in the order in which they came."""
    together: dict[tuple[str, str, str, str], list[float | None]] = {}
    for one in samples:
        together.setdefault((one.cell, one.what, one.peer, one.unit), []).append(one.value)
    found = {key: (_quantile(values, 0.5), _quantile(values, 0.95)) for key, values in together.items()}
    order = [peer.name for peer in PEERS]
    whats = list(dict.fromkeys((cell, what, unit) for cell, what, _, unit in together))
    summed = []
    for cell, what, unit in whats:
        base = found.get((cell, what, FLOOR, unit), (None, None))[0]
        for name in order:
            if (key := (cell, what, name, unit)) in found:
                middle, late = found[key]
                ratio = middle / base if middle is not None and base and unit else None
                goal = GOALS.get(what) if name == OURS else None
                summed.append(Line(cell, what, name, len(together[key]), middle, late, unit, ratio, goal))
    return summed


def _quantile(values: list[float | None], share: float) -> float | None:
    """The median, or the nearest rank from above; what never came is later than all that did."""
    ordered = sorted(float("inf") if value is None else value for value in values)
    rank = min(len(ordered), math.ceil(share * len(ordered)))
    found = median(ordered) if share == 0.5 else ordered[rank - 1]
    return None if found == float("inf") else found
