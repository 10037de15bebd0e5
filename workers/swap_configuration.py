"""What a proxy is told: llama-swap's configuration for one generation, and the command line of each llama-server."""

from __future__ import annotations

import math
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from supervisor.contract import GroupSpec, LaunchSpec
    from supervisor.kinds import Birth

LAUNCHER = Path(__file__).resolve().parent / "launcher.py"

SHORTEST_HEALTH_TIMEOUT = 15
"""llama-swap raises anything shorter to this."""

CONCURRENCY = 1000
"""llama-swap's default of 10 counts waiting requests too and answers the eleventh with 429; llama-server queues
without limit, so the limit is not needed here."""

OPTIONAL_FLAGS = {
    "--sse-ping-interval": ("--sse-ping-interval", "1"),
    "--cache-ram": ("--cache-ram", "0"),
    "--no-webui": ("--no-webui",),
}
"""Passed on where the binary's own --help knows them. Without the first, a SIGTERM during a stream takes 30 s; the
second is 8 GiB of host memory by default, which nobody has accounted for."""

KV_FLAGS = ("--kv-unified", "--no-kv-unified")
"""Whether the sequences share one KV pool. Said either way, where the build knows it: left open, builds have chosen now
this and now that, by whether `--parallel` is given."""

PLANNED_FLAGS = (
    "--verbosity",
    "--flash-attn", "--cache-type-k", "--cache-type-v", "--ubatch-size", "--batch-size", "--swa-full", "--no-kv-offload",
    "--ctx-checkpoints", "--n-gpu-layers", "--fit", "--cpu-moe", "--n-cpu-moe", "--tensor-split",
)  # fmt: skip
"""What a plan may say beside these (workers/planner/flags.py)."""

ROLE_FLAGS = {"embed": ("--embeddings",), "rerank": ("--reranking",)}


def configuration(spec: GroupSpec, birth: Birth, keys: Path) -> dict[str, Any]:
    """llama-swap's configuration for one generation. Every model is in exactly one group that evicts nobody: a stray
    one would be `exclusive` by default and unload all others."""
    unload = max(1, math.floor(spec.grace_s) - (spec.grace_s == math.floor(spec.grace_s)))
    return {
        "healthCheckTimeout": max(SHORTEST_HEALTH_TIMEOUT, math.ceil(spec.start_limit_s)),
        "unloadTimeout": unload,  # whole seconds, below our own grace
        "logToStdout": "both",  # a server's last words reach the group's log only this way
        "logLevel": "warn",
        "captureBuffer": 0,  # else request bodies are kept in memory
        "performance": {"disabled": True},  # else each proxy runs an nvidia-smi of its own
        "apiKeys": [birth.client_key, birth.generation_key],
        "models": {
            launch.role: {
                "cmd": shlex.join(server_command(spec, launch, birth, keys)),
                "proxy": f"http://127.0.0.1:{birth.ports[launch.role]}",
                "checkEndpoint": "/health",
                "ttl": launch.idle_ttl_s,
                "concurrencyLimit": CONCURRENCY,
                "aliases": _aliases(spec, launch),
            }
            for launch in spec.launches
        },
        "groups": {
            spec.name: {
                "swap": False,
                "exclusive": False,
                "persistent": True,
                "members": [launch.role for launch in spec.launches],
            }
        },
    }


def server_command(spec: GroupSpec, launch: LaunchSpec, birth: Birth, keys: Path) -> list[str]:
    """llama-server behind the launcher, so that it dies with its proxy. `--ctx-size` is divided by `--parallel`, unless
    it is a pool."""
    known = spec.options["flags"].split()
    optional = [
        word
        for flag, words in OPTIONAL_FLAGS.items()
        if flag in known and flag not in launch.arguments
        for word in words
    ]
    launcher = [sys.executable, "-I", "-S", str(LAUNCHER), "--warden", str(birth.warden_pid), "--"]
    program = shlex.split(spec.options["llama_server"])
    server = [*program, "--host", "127.0.0.1", "--port", str(birth.ports[launch.role])]
    model = ["--model", launch.path, "--alias", launch.model, "--api-key-file", str(keys)]
    size = ["--ctx-size", str(launch.pool or launch.context * launch.sequences), "--parallel", str(launch.sequences)]
    if not set(KV_FLAGS) & set(launch.arguments):  # a plan says it itself
        size += [flag for flag in KV_FLAGS if flag in known and (flag == KV_FLAGS[0]) == bool(launch.pool)]
    return [*launcher, *server, *model, *size, *optional, *ROLE_FLAGS.get(launch.role, ()), *launch.arguments]


def _aliases(spec: GroupSpec, launch: LaunchSpec) -> list[str]:
    """A request may name the model as well as the role, where the name says which of the group's servers is meant."""
    taken = [other.model for other in spec.launches] + [other.role for other in spec.launches]
    return [launch.model] if taken.count(launch.model) == 1 else []
