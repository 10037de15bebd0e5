"""The words the whole project shares, as frozen data. Pure: no I/O, no clock, no library but attrs.

docs/concepts.md ("Words"): a *slot* holds at most one *engine*; an engine is one or more *groups*; a group is one
proxy and the servers (*launches*) behind it; the *contract* is the (role, model) pairs it serves, plus its *pin*.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from attrs import evolve, field, frozen

from supervisor import budgets

GENERATION_VARIABLE = "QUEENRIGHT_GENERATION"
"""Environment marker carried by every process of a generation (the warden sets it, nobody else)."""

QUEUE_LIMIT = 128
"""Default of a group's `queue_limit`. Four programs that each send 32 requests at once (as lilbee's indexing does at most)
all wait without one being refused; and so many bodies of some megabytes are what a keeper may hold in memory."""


class State(StrEnum):
    """What a group, or a whole slot, is doing. The words of `status`."""

    DOWN = "down"
    FETCHING = "fetching"
    STARTING = "starting"
    RUNNING = "running"
    DEGRADED = "degraded"
    REBUILDING = "rebuilding"
    STOPPING = "stopping"
    HELD = "held"
    FAILED = "failed"


class Lifetime(StrEnum):
    """What keeps an engine up: its members, or the `queenright run` in front of it."""

    MEMBERS = "members"
    RUN = "run"


class GatewayIds(StrEnum):
    """By which name `/v1/models` calls a model; every other name of it does as well."""

    ROLE = "role"
    MODEL = "model"


@frozen
class LaunchSpec:
    """One server of a group, resolved: every path absolute, nothing left to guess.

    `context` is in tokens per sequence. It, and `sequences`, are 0 where they are decided when the group is started, by
    what fits then (`kinds.Planning`). `arguments` are passed on verbatim, after ours.
    """

    role: str
    model: str
    path: str
    context: int
    sequences: int
    arguments: tuple[str, ...] = ()
    idle_ttl_s: int = 0
    """Seconds without a request after which the weights are unloaded; 0 = never."""
    pool: int = 0
    """Tokens of one KV pool that the sequences share, each with `context` of them at most; 0 = each has its own
    `context`."""
    least_context: int = field(default=0, eq=False)
    """Tokens per sequence that an engine must have been planned with to be of use; 0 = whatever. A demand of who asks,
    for the ladder: it changes nothing of what runs, so two launches that differ in it alone are equal."""


@frozen
class GroupSpec:
    """One group, resolved. `options` belongs to the kind alone; the core passes it through."""

    name: str
    kind: str
    launches: tuple[LaunchSpec, ...]
    pin: str
    options: Mapping[str, str] = field(factory=dict)
    environment: Mapping[str, str] = field(factory=dict)
    grace_s: float = budgets.GROUP_GRACE
    start_limit_s: float = budgets.START_LIMIT
    wedge_limit_s: float = budgets.WEDGE_LIMIT
    queue_limit: int = QUEUE_LIMIT
    """Requests that may wait in the gateway for each of its servers."""
    start_period_s: float = 0.0
    """From its birth or a keeper's taking up; within it no silence counts against it."""
    stall_limit_s: float = budgets.STALL_LIMIT
    """How long a server may compute without progress and without an answer to probes."""
    is_planned: bool = True
    """Whether its memory is planned before a start, by a kind that plans: what does not fit is refused."""
    is_outside: bool = False
    """What serves is not among the processes of its generations (it runs in a container, say): whose a listener is, the
    kind proves in `load`, and which process it is, `Kind.outside` says."""
    url: str = ""
    """Where clients go, where that is no port of ours: a server that somebody else runs."""
    key_file: str = ""
    """Of the key that such a server wants, absolute; "" for none."""
    payload: tuple[str, ...] = ()
    """Names of the files in `manifest` that must be there, and be what it says, before it is started."""
    manifest: str = ""
    """Absolute path of the file that says what they are and where they come from; read at each start."""

    @property
    def essence(self) -> GroupSpec:
        """What a generation is started as: without what only bounds waiting, or is over with the start."""
        return evolve(self, grace_s=0.0, start_limit_s=0.0, queue_limit=0, payload=(), manifest="")

    @property
    def is_open(self) -> bool:
        """Whether something of it is decided by the memory there is ("auto")."""
        return any(not launch.context or not launch.sequences for launch in self.launches)

    def runs_as(self, other: GroupSpec) -> bool:
        """Whether a generation of the one could as well be one of the other."""
        return self.essence == other.essence


@frozen
class GatewaySpec:
    """The gateway of an engine, resolved. `port` 0 means whichever is free. Nothing that runs depends on it: a change of it
    restarts no group."""

    enabled: bool = False
    """Off where nobody spoke of one: contracts of before there were gateways, and those that no configuration made."""
    host: str = ""
    port: int = 0
    is_named: bool = True
    """The address stands in the configuration. Only where it does not may the gateway take another port that is free."""
    ids: GatewayIds = GatewayIds.ROLE
    aliases: Mapping[str, tuple[str, ...]] = field(factory=dict)
    """More names of each role's model."""
    key_file: str = ""
    """Absolute path of the API keys that clients must send, "" for none. The keys themselves are in no contract."""
    hosts: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    """In lower case, as `hosts`."""
    body_most_bytes: int = 64 << 20
    deadline_s: float = budgets.REQUEST_DEADLINE
    comment_after_s: float = budgets.COMMENT_AFTER
    resume: bool = False
    """Whether a stream that is cut goes on from what was delivered."""


@frozen
class EngineSpec:
    """What a front end asks for: the contract (groups) and what keeps the engine up."""

    groups: tuple[GroupSpec, ...]
    lifetime: Lifetime = Lifetime.MEMBERS
    keep_warm: bool = False
    root: str = ""
    """Directory of the configuration that asks for it; `keep_warm` is that directory's wish, and only it takes it back."""
    gateway: GatewaySpec = GatewaySpec()

    @property
    def pairs(self) -> frozenset[tuple[str, str]]:
        """The (role, model path) pairs served: the contract without its pin."""
        return frozenset((launch.role, launch.path) for group in self.groups for launch in group.launches)

    @property
    def pin(self) -> str:
        """The pin of the whole engine: its groups' pins, in order of the groups' names."""
        return " ".join(f"{group.name}={group.pin}" for group in sorted(self.groups, key=lambda g: g.name))


@frozen
class Exit:
    """How a leader ended, as waitid(2) tells it: `code` is CLD_EXITED, CLD_KILLED or CLD_DUMPED; `status` is the
    exit status or the signal. A death is a value given to the restart policy, never an exception."""

    code: int
    status: int

    def describe(self) -> str:
        """The exit in plain words: `exit status 3`, `killed by SIGKILL`."""
        if self.code == 1:  # CLD_EXITED
            return f"exit status {self.status}"
        return f"killed by {signal_name(self.status)}" + (" (core dumped)" if self.code == 3 else "")


def signal_name(number: int) -> str:
    """`SIGKILL`; `signal 99` for one that has no name."""
    import signal  # its enums take 3 ms, which those who only look should not pay

    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


@frozen
class Endpoint:
    """Where a role is served now: the base URL of the group's proxy (no path), and the key its clients send.

    `generation` tells two lives of one group apart; the URL may well be the same over both.
    """

    group: str
    role: str
    model: str
    url: str
    key: str = field(repr=False)
    generation: str
