"""What the core asks of a kind of engine. A kind is found by entry point (`queenright.workers`), never imported.

The core knows no more of a kind than stands here: it must not be able to tell llama-swap from anything else. Over 300 lines,
most of which say what each method owes.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from enum import StrEnum
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

from attrs import field, frozen

from supervisor.contract import GroupSpec
from supervisor.errors import ConfigError

if TYPE_CHECKING:
    from supervisor.config_shape import EngineConfig, GroupConfig
    from supervisor.devices.held import Held
    from supervisor.devices.shape import Survey

ENTRY_POINTS = "queenright.workers"


class ServerState(StrEnum):
    """What a group's proxy says of one server."""

    DOWN = "down"
    LOADING = "loading"
    READY = "ready"
    UNLOADING = "unloading"
    UNLOADED = "unloaded"
    LOST = "lost"


@frozen
class Birth:
    """What one generation is given before it is born. All of it is in the warden's note, keys excepted (they are
    in the 0600 files named here), so a keeper that takes over knows it too."""

    generation: str
    ports: Mapping[str, int]
    """By the names the kind gave them (`Kind.port_names`), in that order: the first is the one clients use."""
    config: Path
    client_key: str = field(repr=False)
    """Stable over generations: for clients."""
    generation_key: str = field(repr=False)
    """Of this generation alone: an answer to it proves that it is ours."""
    warden_pid: int
    log: Path = Path("/dev/null")
    """Of the group. What its processes print, and what those of earlier generations did."""
    log_start: int = 0
    """Where its own part of that begins, in bytes, unless the log was cut since."""
    elsewhere: str = ""
    """See GroupSpec.url."""

    @property
    def port(self) -> int:
        """The one that clients use."""
        return next(iter(self.ports.values()))

    @property
    def url(self) -> str:
        """Base URL of what clients talk to, without a path."""
        return self.elsewhere or f"http://127.0.0.1:{self.port}"


@frozen
class Command:
    """How to start a generation. `files` are written with mode 0600 before the start; it runs in `workdir`.

    `undo`, for a generation that starts what is not below its leader (a container): a command that ends that, and exits
    with 0 when none of it is left. It is run once the generation's processes are gone, however they went, by the keeper
    or by whoever clears up after an engine; until it has succeeded, the generation is not gone. It may be run when
    nothing was started, and more than once.
    """

    argv: tuple[str, ...]
    environment: Mapping[str, str] = field(repr=False)
    files: Mapping[Path, str] = field(factory=dict, repr=False)
    workdir: str = "/"
    undo: tuple[str, ...] = ()


class Answer(StrEnum):
    """What came of a question to a process."""

    ANSWERED = "answers"
    """It said that all is well."""
    NOT_YET = "answers that it is not ready"
    """It said that it cannot serve now, as llama-server does with 503 while it loads: alive, and not ready."""
    BROKE_OFF = "breaks connections off"
    """It took the connection and closed it without an answer, or with one that is none."""
    REFUSED = "refuses connections"
    """Nobody listens on its port."""
    SILENT = "is silent"
    """Nothing came within the limit. The core's word: it sets the limit and cancels the question when it is over."""
    UNKNOWN = "could not be asked"
    """The question itself failed, on our side (no descriptor left, say), or this kind has no such question. It says
    nothing about the process that was to be asked, and never counts against it."""


PROXY = "proxy"
"""The subject of a probe that is no role: the group's leader, where clients go."""

Report = Callable[[str, ServerState], None]
"""(role, state): told by a kind's `watch`."""

Activity = Callable[[str, int, int], None]
"""(role, in flight, progress): told by a kind's `watch` at each change, and at least once for each role when it knows.
`in flight` counts the requests that the role is being asked and has not finished answering, waiting ones included;
`progress` is any number that changes when one of their answers moved on (bytes passed on, requests done). A kind that
does not know never calls it: unknown is neither idle nor stuck."""


class Kind(Protocol):
    """One kind of engine. What a hand raises beyond QueenrightError and OSError is a bug of the kind, and its group's trouble
    alone (`containment`)."""

    name: str

    def resolve(self, group: GroupConfig, engine: EngineConfig) -> GroupSpec:
        """Find and check everything the group needs: binaries, models, pin. In the front end, before anything is
        started. Raises QueenrightError."""

    def looked_at(self, spec: GroupSpec) -> Iterable[Path]:
        """Files and directories that roles, paths and pin of what `resolve` gave depend on, there or not; but for the
        configuration and the directories of $PATH and sys.path. While none of them changes, `ticket` does not ask again;
        each time where a kind does not have this."""

    def port_names(self, spec: GroupSpec) -> tuple[str, ...]:
        """Ports a generation needs; the first is the one clients use."""

    def command(self, spec: GroupSpec, birth: Birth) -> Command:
        """How to start it. No I/O."""

    async def load(self, spec: GroupSpec, birth: Birth, roles: Collection[str], report: Report) -> None:
        """Prove that what answers is this generation, then have the servers of `roles` loaded; return once they all
        answer. With no roles only the proof is made. Raises EngineStartError, ProxyLostError where the proxy broke off."""

    async def watch(self, spec: GroupSpec, birth: Birth, report: Report, activity: Activity) -> None:
        """Report what becomes of the servers and of the requests to them, until cancelled."""

    async def probe(self, spec: GroupSpec, birth: Birth, subject: str) -> Answer:
        """Ask one process whether it is well: PROXY, or the server of a role on its own port, never through the proxy.

        Asked every PROBE_INTERVAL, so it must be cheap, wake nothing, load nothing, count as no use and reset no idle
        time. Cancelled when its time is up, which is silence. Only servers that should be loaded are asked. What it
        raises counts as UNKNOWN.
        """

    async def look_closer(self, spec: GroupSpec, birth: Birth, role: str) -> str | None:
        """Something of the server's own that changes when its work moves on: tokens done, say. None when it has none.

        Asked on suspicion only and at most every CLOSER_INTERVAL, because with some servers asking disturbs the work.
        Cancelled when its time is up. What it raises counts as None.
        """

    async def canary(self, spec: GroupSpec, birth: Birth, role: str) -> Answer:
        """Have the server of a role do the smallest real work there is (one token), on its own port and not through the
        proxy. Asked on suspicion only, one at a time. Any answer that took the work is ANSWERED; UNKNOWN where a kind
        has no such question. Cancelled when its time is up, which is silence. What it raises counts as UNKNOWN."""

    async def outside(self, birth: Birth) -> int | None:
        """Of a group that `is_outside`: the pid here of the process that serves, by which it is seen whether it computes or
        was stopped; None where that cannot be told. Asked when a server became ready. What it raises counts as None."""

    async def release(self, birth: Birth) -> None:
        """Have it let go of its servers before it is told to end. May raise anything; bounded by the caller."""


class Preparation(NamedTuple):
    """How far one step of a preparation is: `what` in words (`chat.gguf from https://...`), `done` of `total` bytes."""

    what: str
    done: int
    total: int


@runtime_checkable
class Preparing(Protocol):
    """A kind that brings the files of `GroupSpec.payload` before a group is started."""

    def lacks(self, spec: GroupSpec) -> bool:
        """Whether one of them is missing or known to be another one. Quick: it hashes nothing. Raises QueenrightError."""

    async def prepare(self, spec: GroupSpec, report: Callable[[Preparation], None]) -> None:
        """Bring what is lacking, and `report` how far that is; where nothing is, return without a report. Asked before each
        start. Cancelled when the group is to stop: it ends at once, and what arrived is there for the next time.

        Raises ConfigError or WrongPayloadError for what will not come right by being tried again, and another
        QueenrightError for what may.
        """


class Forecast(NamedTuple):
    """What a kind says of the memory that one launch takes: `lines` for people, `data` for programs."""

    role: str
    fits: bool
    lines: tuple[str, ...]
    data: Mapping[str, object]


@runtime_checkable
class Foreseeing(Protocol):
    """A kind that can say beforehand what its launches take."""

    def foresee(
        self, groups: Sequence[GroupConfig], survey: Survey, engine: EngineConfig
    ) -> Sequence[Forecast]:  # fmt: skip
        """The launches of these groups in order, each in what the ones before it leave. Starts no engine; a program that
        ends by itself may be asked. Raises ConfigError or ModelError."""


class Advice(NamedTuple):
    """Something to know of a launch before it is started; something to mend where there is a `next_step`."""

    role: str
    text: str
    next_step: str = ""


@runtime_checkable
class Advising(Protocol):
    """A kind that looks at more of a launch than has to be right for it to start."""

    def advise(self, group: GroupConfig, engine: EngineConfig) -> Iterable[Advice]:
        """For a group that `resolve` has nothing against. Starts no engine. Raises QueenrightError."""


@frozen
class Planned:
    """How a kind runs a group in the memory there is. `spec` has nothing left open; `grants` are the bytes that it takes
    of each device (by UUID) and of the host (`devices.promises.HOST`); `memory` is, by role, what is shown of it, as
    plain data."""

    spec: GroupSpec
    grants: Mapping[str, int]
    memory: Mapping[str, Mapping[str, Any]] = field(factory=dict)


@runtime_checkable
class Planning(Protocol):
    """A kind that decides, before it starts a group, how it runs in the memory there is."""

    def plan(self, spec: GroupSpec, survey: Survey) -> Planned:
        """Decide. Blocks, in a thread: for a second, and longer where a program of its own is asked that has to answer within
        a limit; below PLANNING_WAIT, for which others wait. The same spec and survey give the same plan. Raises
        DoesNotFitError with the numbers, ConfigError or EngineBinaryError for what cannot be said to its program, or
        ModelError."""


@runtime_checkable
class ReadingBack(Protocol):
    """A kind that can say whether a plan came true."""

    async def read_back(
        self, spec: GroupSpec, memory: Mapping[str, Mapping[str, Any]], birth: Birth, held: Mapping[str, Held], log: str
    ) -> Mapping[str, Mapping[str, Any]]:
        """By role, for those of `held` (what its process holds now): `held`, `compared`, `asked` and `warnings` as
        docs/reference/status.md has them. `spec` is what was started, `memory` is `Planned.memory`, empty where nobody
        knows it; `log` is what the generation said while it started. May raise anything; bounded by the caller."""


@cache
def find(name: str) -> Kind:
    """The kind of that name. Raises ConfigError naming those there are, or saying why it cannot be loaded."""
    place = _quick_look().get(name)
    if place is not None:
        module, _, attribute = place.partition(":")
        quick: Kind = _loaded(name, lambda: getattr(import_module(module), attribute))
        return quick
    from importlib.metadata import entry_points

    known = {point.name: point for point in entry_points(group=ENTRY_POINTS)}
    if name not in known:
        import difflib

        names = ", ".join(sorted(known)) or "none: is queenright installed?"
        near = "".join(f"; did you mean {close!r}?" for close in difflib.get_close_matches(name, known, n=1))
        raise ConfigError(f"there is no engine kind {name!r}", f"known kinds: {names}{near}")
    kind: Kind = _loaded(name, known[name].load)
    return kind


def _loaded(name: str, load: Callable[[], Any]) -> Any:
    """It is somebody else's module, and anything may go wrong with it."""
    try:
        return load()
    except (Exception, SystemExit) as error:
        raise ConfigError(
            f"the engine kind {name!r} cannot be loaded: {type(error).__name__}: {error}", "reinstall what brings it"
        ) from error


def _quick_look() -> dict[str, str]:
    """Entry points of ours in the directories of sys.path, by name: `MODULE:ATTRIBUTE`. importlib.metadata says the same
    and more, but it takes 60 ms of a keeper's start, most of them for importing it (measured); this takes 2."""
    found: dict[str, str] = {}
    for folder in sys.path:
        try:
            names = [name for name in os.listdir(folder or ".") if name.endswith(".dist-info")]
        except OSError:
            continue
        for name in names:
            try:
                with open(os.path.join(folder, name, "entry_points.txt"), encoding="utf-8") as file:
                    text = file.read()
            except (OSError, ValueError):
                continue
            section = text.partition(f"[{ENTRY_POINTS}]\n")[2].partition("\n[")[0]
            for line in section.splitlines():
                key, equals, value = line.partition("=")
                if equals:
                    found.setdefault(key.strip(), value.partition("[")[0].strip())
    return found
