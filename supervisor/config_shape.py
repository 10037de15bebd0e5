"""What a configuration says, as frozen data. No I/O; the meaning of every key is in docs/reference/configuration.md.

These are as written, checked (`config_check`) and with paths made absolute. What they resolve to (a catalog name to
a file, a kind to a worker) is the composition root's to find out: `contract.EngineSpec`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from attrs import field, frozen

from supervisor import budgets
from supervisor.contract import QUEUE_LIMIT

BUILT_IN: Final = "built-in"
"""Value of `llama_swap` for the proxy that comes with us."""

DEFAULT_KIND: Final = "llama-swap"

GATEWAY_LISTEN: Final = "127.0.0.1:11411"
"""Where the gateway is if nobody says otherwise. Below the range that outgoing connections get (32768 up on Linux) and
that groups choose from (20000 up); assigned to nobody by IANA; not the port of another engine that people run (Ollama
11434, llama-server 8080, LM Studio 1234, vLLM 8000)."""


@frozen
class LaunchConfig:
    """One server of a group."""

    role: str
    model: str
    """The name of a catalog model, or an absolute path."""
    context: int = 4096
    """Tokens per sequence; 0 ("auto" in the file): as many as fit when it is started."""
    sequences: int = 1
    """Requests at once; 0 ("auto"): as many as fit."""
    idle_ttl_s: int = 0
    """Seconds without a request after which the weights are unloaded; 0 = never."""
    arguments: tuple[str, ...] = ()
    pool: int = 0
    """Tokens of one KV pool that the sequences share; 0 = each sequence has its own `context`."""
    least_context: int = 0
    """Tokens per sequence that an engine of others must have to do for us; 0 = whatever it has."""
    cache_ram_mib: int = 0
    """MiB of system memory that the server may keep earlier prompts in; 0 = none."""
    aliases: tuple[str, ...] = ()
    """More names by which clients of the gateway may ask for the model."""

    @property
    def path(self) -> Path | None:
        """The model's file, where the configuration names a file; None where it names a catalog model."""
        return Path(self.model) if self.model.startswith("/") else None


@frozen
class GroupConfig:
    """One group: a proxy and its servers. `folder` is the directory of the file: what paths in it are relative to."""

    name: str
    launches: tuple[LaunchConfig, ...]
    kind: str = DEFAULT_KIND
    options: Mapping[str, Any] = field(factory=dict)
    """What this kind alone knows, as the file says it: checked by the kind (`Kind.resolve`), and by nobody before."""
    environment: Mapping[str, str] = field(factory=dict)
    grace_s: float = budgets.GROUP_GRACE
    start_limit_s: float = budgets.START_LIMIT
    wedge_limit_s: float = budgets.WEDGE_LIMIT
    queue_limit: int = QUEUE_LIMIT
    """Requests that may wait in the gateway for each of its servers."""
    start_period_s: float | None = None
    """None = the kind's own default."""
    stall_limit_s: float = budgets.STALL_LIMIT
    plan: bool = True
    """Whether it is planned before it is started, and refused where it does not fit."""
    payload: tuple[str, ...] = ()
    """Names of files in the manifest that are fetched before a start, where they are missing or other ones."""
    folder: Path = field(default=Path("/"), eq=False)


@frozen
class EngineConfig:
    """What concerns the engine as a whole."""

    slot: Path | None = None
    keep_warm: bool = False
    llama_server: Path | None = None
    llama_swap: str | None = None
    """An absolute path, or BUILT_IN."""


@frozen
class GatewayConfig:
    """The one URL for clients that do not use our library."""

    enabled: bool = True
    listen: str = GATEWAY_LISTEN
    """HOST:PORT; port 0 = whichever is free. Another port than the default's is only taken where this is not written."""
    ids: str = "role"
    """Whether /v1/models calls a model by its role or by its model's name."""
    deadline_s: float = budgets.REQUEST_DEADLINE
    """How long a request is held, and may take to the first byte of its answer."""
    comment_after_s: float = budgets.COMMENT_AFTER
    resume: bool = False
    """Whether a stream that is cut goes on from what was delivered."""
    api_key_file: Path | None = None
    """API keys that clients must send, one a line; None = no key is asked for."""
    hosts: tuple[str, ...] = ()
    """Names by which clients call the gateway, besides those of loopback."""
    origins: tuple[str, ...] = ()
    """Web pages that may ask, as browsers write them: SCHEME://HOST[:PORT]."""
    body_limit_mb: int = 64
    """Of one request, in MiB."""
    is_named: bool = field(default=False)
    """Whether `listen` stands in the file."""


@frozen
class Config:
    """One configuration file. `path` is where it came from, absolute."""

    path: Path | None
    engine: EngineConfig
    groups: Mapping[str, GroupConfig]
    gateway: GatewayConfig = GatewayConfig()
