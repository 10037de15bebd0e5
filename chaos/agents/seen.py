"""What is seen of a crew of agents while it works, as plain data, and who looks: kernel locks, /proc and NVML, from outside."""

from __future__ import annotations

import signal
import threading
import time
from typing import TYPE_CHECKING, Final, NamedTuple

from chaos import gpu, observer
from supervisor import identity, locks, membership
from supervisor.errors import QueenrightError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from chaos.gpu import Held
    from chaos.observer import Sighting
    from supervisor.identity import Identity
    from supervisor.slot import Slot

EVERY: Final = 0.2  # budget: between two looks; one costs some 5 ms, and what lives shorter than this may go unseen
GPU_EVERY: Final = 2.0  # budget: a look at NVML is a process
END_LIMIT: Final = 10.0  # budget: from SIGKILL to gone; later only in uninterruptible sleep
MARK: Final = "QUEENRIGHT_AGENTS"
"""Environment variable that every process of a run carries, and what those start: by it leftovers are found."""


class Request(NamedTuple):
    """One request of an agent, by the machine's monotonic clock."""

    role: str
    began: float
    ended: float
    outcome: str
    why: str = ""


class Report(NamedTuple):
    """One agent, as it was seen and as its files say."""

    name: str
    pid: int
    how: str
    """The rung by which it came to the engine."""
    urls: Mapping[str, str]
    """Where its requests went, by role."""
    requests: Sequence[Request]
    status: int
    """Exit status."""
    why: str
    """What it says kept it from its work."""
    wrong: Sequence[str]
    """What is wrong with its results on disk."""

    @property
    def span(self) -> tuple[float, float]:
        """From its first request to the end of its last one."""
        return min(one.began for one in self.requests), max(one.ended for one in self.requests)


class Sample(NamedTuple):
    """One look. None is what could not be looked at."""

    at: float
    sighting: Sighting | None
    members: Sequence[int] | None
    """Pids that hold membership locks."""
    beside: Sequence[str]
    """Private slots in which an engine lives."""
    memory: int | None
    """Resident bytes of proxies and servers. Not PSS: of a second engine with the same model file that would show next to
    nothing, and who else maps the file would show."""
    device: int | None
    """Bytes in use of all GPUs."""


class Crew(NamedTuple):
    """Agents that worked at the same time, and all that was seen of them."""

    reports: Sequence[Report]
    samples: Sequence[Sample]
    ports: Mapping[str, Sequence[int]]
    """Where the proxy of each group listened, by the kernel's word."""
    seconds: float
    left: Sequence[str]
    """What was still there after they had left."""
    device_after: Held

    @property
    def working(self) -> list[Sample]:
        """The looks at moments at which every agent was at work: between the first and the last request of each."""
        if not self.reports or not all(one.requests for one in self.reports):
            return []
        spans = [one.span for one in self.reports]
        first, last = max(began for began, _ in spans), min(ended for _, ended in spans)
        return [one for one in self.samples if first <= one.at <= last]


class Run(NamedTuple):
    """Everything that is judged."""

    planned: Mapping[str, int]
    """Servers by group."""
    carriers: Mapping[str, str]
    """The group that serves a role."""
    before: Sequence[str]
    """What was in the slot at the start."""
    device_before: Held
    baseline: Crew
    four: Crew


class Watch:
    """Looks at a slot from a thread until it is stopped."""

    def __init__(self, slot: Slot) -> None:
        self._slot = slot
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._device: int | None = None
        self._absent = False
        self._asked = float("-inf")
        self.samples: list[Sample] = []

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.is_set():
            at = time.monotonic()
            try:
                self.samples.append(self._look())
            except Exception:  # noqa: BLE001 - a look that failed saw nothing, and that is told; the next one may see
                self.samples.append(Sample(at, None, None, (), None, None))
            self._stop.wait(EVERY)

    def _look(self) -> Sample:
        at = time.monotonic()
        if not self._absent and at - self._asked > GPU_EVERY:
            held = gpu.look()
            self._absent, self._device, self._asked = held.is_absent, held.total, at
        sighting = observer.look(self._slot)
        memory = resident(sighting.engine)
        return Sample(at, sighting, members(self._slot), beside(self._slot), memory, self._device)


def resident(processes: Collection[Identity]) -> int | None:
    """Their resident set sizes together (proc_pid_smaps(5)); None where one could not be read, or there is none."""
    total = 0
    for process in processes:
        try:
            with open(f"/proc/{process.pid}/smaps_rollup", encoding="ascii") as file:
                total += next(int(line.split()[1]) * 1024 for line in file if line.startswith("Rss:"))
        except (OSError, StopIteration):
            return None
    return total or None


def members(slot: Slot) -> list[int] | None:
    """Pids that hold a membership lock, by trying each."""
    try:
        return sorted(member.pid for member in membership.members(slot) if member.pid is not None)
    except (QueenrightError, OSError):
        return None


def beside(slot: Slot) -> list[str]:
    """Private slots whose warden lives."""
    return [str(one.path) for one in slot.private_slots() if locks.is_held(one.warden_lock) is not False]


def of_the_run(mark: str) -> list[Identity]:
    """Living processes of agents of this run, and what those have started."""
    own = [one for one, value in identity.with_marker(MARK) if value == mark]
    return [one for one in own if identity.liveness(one) is not identity.Liveness.DEAD]


def end_all(mark: str) -> None:
    """SIGKILL to each of them, until none is left; for END_LIMIT at the most."""
    deadline = time.monotonic() + END_LIMIT
    while (there := of_the_run(mark)) and time.monotonic() < deadline:
        for one in there:
            identity.signal_exact(one, signal.SIGKILL)
        time.sleep(observer.POLL)


def left(slot: Slot, mark: str) -> list[str]:
    """What is there of an engine in the slot, and of any process of the run."""
    found = [f"pid {one.pid} of the engine" for one in observer.look(slot).everything]
    found += [f"lock {name}" for name in observer.held_locks(slot)]
    found += [f"engine beside it in {path}" for path in beside(slot)]
    return found + [f"pid {one.pid} of the agents" for one in of_the_run(mark)]
