"""The kind `llama-swap`: one proxy (llama-swap, or the built-in one where none is installed) and its llama-servers.

What is asked of the proxy and why is in research-backed comments beside each setting; facts about llama-swap are of
v250. The keeper calls `load`, `watch` and `release`; a front end calls `resolve`.
"""

from __future__ import annotations

import json
import math
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from supervisor.contract import GroupSpec, LaunchSpec
from supervisor.errors import ConfigError, EngineBinaryError, EngineStartError
from supervisor.kinds import Birth, Command, Report, ServerState

if TYPE_CHECKING:
    from collections.abc import Collection

    import httpx

    from supervisor.config_shape import EngineConfig, GroupConfig, LaunchConfig

HERE = Path(__file__).resolve().parent
LAUNCHER = HERE / "launcher.py"
BUILT_IN_PROXY = HERE / "proxy" / "__main__.py"

SHORTEST_HEALTH_TIMEOUT = 15
"""llama-swap raises anything shorter to this."""

OLDEST_LLAMA_SWAP = 225

CONCURRENCY = 1000
"""llama-swap's default of 10 counts waiting requests too and answers the eleventh with 429; llama-server queues
without limit, so the limit is not needed here."""

HELP_LIMIT = 10.0  # budget: `llama-server --help` takes 4 ms; a first start from a cold disk can take seconds
RECONNECT = 0.25  # budget: pause before the event stream of a living proxy is opened again
PROBE = 5.0  # budget: one request to the proxy that does not load anything

OPTIONAL_FLAGS = {
    "--sse-ping-interval": ("--sse-ping-interval", "1"),
    "--cache-ram": ("--cache-ram", "0"),
    "--no-webui": ("--no-webui",),
}
"""Passed on where the binary's own --help knows them. Without the first, a SIGTERM during a stream takes 30 s; the
second is 8 GiB of host memory by default, which nobody has accounted for."""

ROLE_FLAGS = {"embed": ("--embeddings",), "rerank": ("--reranking",)}


class LlamaSwap:
    """See supervisor.kinds.Kind."""

    name = "llama-swap"

    def resolve(self, group: GroupConfig, engine: EngineConfig) -> GroupSpec:
        """Find binaries, models and pin. Raises EngineBinaryError, ModelError or ConfigError."""
        from workers import engines, gguf_header, models, pins

        server = engines.find_llama_server(engine.llama_server)
        proxy = engines.find_llama_swap(engine.llama_swap)
        if proxy.kind is engines.Kind.LLAMA_SWAP:
            _refuse_old(proxy.path)
        launches = []
        for launch in group.launches:
            path = models.resolve(launch.model)
            gguf_header.read_header(path)
            launches.append(_launch(launch, path))
        options = {
            "llama_server": shlex.join(server.argv),
            "proxy": "built-in" if proxy.kind is engines.Kind.BUILT_IN_PROXY else str(proxy.path),
            "flags": " ".join(_known_flags(server.argv)),
        }
        spec = GroupSpec(
            name=group.name,
            kind=self.name,
            launches=tuple(launches),
            pin=pins.pin_of(server, proxy).render(),
            options=options,
            environment=dict(group.environment),
            grace_s=group.grace_s,
            start_limit_s=group.start_limit_s,
        )
        _refuse_unspeakable(spec)
        return spec

    def port_names(self, spec: GroupSpec) -> tuple[str, ...]:
        """One for the proxy, one for each server: llama-swap does not check that a port is free, so we choose."""
        return ("proxy", *(launch.role for launch in spec.launches))

    def command(self, spec: GroupSpec, birth: Birth) -> Command:
        """The proxy's command line, and its configuration as JSON, which is YAML."""
        keys = birth.config.with_suffix(".keys")
        binary = spec.options["proxy"]
        program = (sys.executable, "-P", str(BUILT_IN_PROXY)) if binary == "built-in" else (binary,)
        return Command(
            argv=(*program, "-config", str(birth.config), "-listen", f"127.0.0.1:{birth.ports['proxy']}"),
            environment=dict(spec.environment),
            files={
                birth.config: json.dumps(configuration(spec, birth, keys), indent=1),
                keys: f"{birth.client_key}\n{birth.generation_key}\n",
            },
        )

    async def load(self, spec: GroupSpec, birth: Birth, roles: Collection[str], report: Report) -> None:
        """Prove that the proxy is ours by the generation's key, then have it load the servers, all at once."""
        import httpx
        import trio

        failures: list[str] = []

        async def load_one(client: httpx.AsyncClient, role: str) -> None:
            report(role, ServerState.LOADING)
            try:
                response = await client.get(f"/upstream/{role}/health")
            except httpx.HTTPError as error:
                failures.append(f"the {role} server did not start: the proxy broke off ({type(error).__name__})")
                return
            if response.is_success:
                report(role, ServerState.READY)
            else:
                failures.append(f"the {role} server did not start: {_message(response)}")

        async with _client(birth, timeout=None) as client:
            await _prove_identity(client)
            async with trio.open_nursery() as nursery:
                for role in roles:
                    nursery.start_soon(load_one, client, role)
        if failures:
            raise EngineStartError("; ".join(failures))

    async def watch(self, spec: GroupSpec, birth: Birth, report: Report) -> None:
        """Follow the proxy's event stream. It ends without a word on a reload and with the proxy: ask again."""
        import httpx
        import trio

        watcher = Watcher({launch.role: launch.idle_ttl_s for launch in spec.launches}, report)
        while True:
            try:
                async with _client(birth, timeout=None) as client, client.stream("GET", "/api/events") as response:
                    async for line in response.aiter_lines():
                        if line.startswith("data:"):
                            watcher.take(json.loads(line[5:]), time.monotonic())
            except (httpx.HTTPError, ValueError, KeyError, TypeError, AttributeError):
                pass  # a proxy that died is the warden's to report; a garbled event is followed by a whole list
            await trio.sleep(RECONNECT)

    async def release(self, birth: Birth) -> None:
        """Unload: on a bare SIGTERM llama-swap drains for up to 30 s, after an unload it ends at once."""
        async with _client(birth, timeout=PROBE) as client:
            await client.post("/api/models/unload")


class Watcher:
    """Turns the proxy's state words into ours. Pure but for `report`.

    llama-swap has no word for a death: a server that died and one that was unloaded are both `stopped`. An unload
    passes through `stopping`, but the list is made at delivery, and 1 of 12 quick unloads showed none (measured); so a
    server that stops while its idle time is up counts as unloaded as well.
    """

    WORDS = {"starting": ServerState.LOADING, "ready": ServerState.READY, "stopping": ServerState.UNLOADING}  # noqa: RUF012

    def __init__(self, idle_ttl: dict[str, int], report: Report) -> None:
        self._idle_ttl, self._report = idle_ttl, report
        self._was: dict[str, ServerState] = {}
        self._used = 0.0

    def take(self, event: dict[str, Any], now: float) -> None:
        """One event of /api/events."""
        if event.get("type") == "inflight":
            self._used = now
        elif event.get("type") == "modelStatus":
            for model in json.loads(event["data"]):
                if model["id"] in self._idle_ttl:
                    self._take_state(model["id"], model["state"], now)

    def _take_state(self, role: str, word: str, now: float) -> None:
        was = self._was.get(role)
        state = self.WORDS.get(word) or self._stopped(role, was, now)
        self._was[role] = state
        if state is not was:
            self._report(role, state)

    def _stopped(self, role: str, was: ServerState | None, now: float) -> ServerState:
        ttl = self._idle_ttl[role]
        if was in (ServerState.UNLOADING, ServerState.UNLOADED):
            return ServerState.UNLOADED
        if ttl and now - self._used >= ttl:
            return ServerState.UNLOADED
        return ServerState.LOST


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
    """llama-server behind the launcher, so that it dies with its proxy. `--ctx-size` is divided by `--parallel`."""
    known = spec.options["flags"].split()
    optional = [word for flag, words in OPTIONAL_FLAGS.items() if flag in known for word in words]
    launcher = [sys.executable, "-I", "-S", str(LAUNCHER), "--warden", str(birth.warden_pid), "--"]
    program = shlex.split(spec.options["llama_server"])
    server = [*program, "--host", "127.0.0.1", "--port", str(birth.ports[launch.role])]
    model = ["--model", launch.path, "--alias", launch.model, "--api-key-file", str(keys)]
    size = ["--ctx-size", str(launch.context * launch.sequences), "--parallel", str(launch.sequences)]
    return [*launcher, *server, *model, *size, *optional, *ROLE_FLAGS.get(launch.role, ()), *launch.arguments]


def _launch(launch: LaunchConfig, path: Path) -> LaunchSpec:
    return LaunchSpec(
        role=launch.role,
        model=path.stem if launch.path else launch.model,
        path=str(path),
        context=launch.context,
        sequences=launch.sequences,
        arguments=launch.arguments,
        idle_ttl_s=launch.idle_ttl_s,
    )


def _aliases(spec: GroupSpec, launch: LaunchSpec) -> list[str]:
    """A request may name the model as well as the role, where the name says which of the group's servers is meant."""
    taken = [other.model for other in spec.launches] + [other.role for other in spec.launches]
    return [launch.model] if taken.count(launch.model) == 1 else []


def _refuse_unspeakable(spec: GroupSpec) -> None:
    """llama-swap expands `${...}` in a command and reads it line by line; neither can be quoted."""
    for launch in spec.launches:
        for word in (spec.options["llama_server"], launch.path, launch.model, *launch.arguments):
            if "${" in word or "\n" in word:
                what = f"group {spec.name}, role {launch.role}: {word!r} cannot be passed on by llama-swap"
                raise ConfigError(what, "remove the ${ or line break from the path or argument")


def _known_flags(program: tuple[str, ...]) -> list[str]:
    """Flags of ours that this build has: they drift between builds, and an unknown one is exit status 1."""
    words = _output([*program, "--help"]).replace(",", " ").split()
    return [flag for flag in OPTIONAL_FLAGS if flag in words]


def _refuse_old(binary: Path) -> None:
    """Older ones take the key out of a request before the server sees it, and our servers want it (read in the source
    of v224 and v225). A build that does not say its version is taken as new."""
    found = re.search(r"version: v(\d+)\b", _output([str(binary), "-version"]))
    if found and int(found[1]) < OLDEST_LLAMA_SWAP:
        what = f"{binary} is llama-swap v{found[1]}; v{OLDEST_LLAMA_SWAP} or newer is needed"
        raise EngineBinaryError(what, 'update it, or set `llama_swap = "built-in"` in [engine]')


def _output(argv: list[str]) -> str:
    """What a quick command of a binary prints. Raises EngineBinaryError when it cannot be run."""
    try:
        done = subprocess.run(argv, capture_output=True, timeout=HELP_LIMIT, stdin=subprocess.DEVNULL, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EngineBinaryError(f"{' '.join(argv)} does not run: {error}", "name another binary") from error
    return (done.stdout + done.stderr).decode("utf-8", "replace")


def _client(birth: Birth, timeout: float | None) -> httpx.AsyncClient:
    import ssl

    import httpx

    headers = {"Authorization": f"Bearer {birth.generation_key}"}
    # Plain HTTP on loopback: a context that trusts nobody, for loading the machine's certificates takes 20 to 60 ms of
    # the keeper's time, twice in every recovery (measured).
    trust = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    return httpx.AsyncClient(base_url=birth.url, headers=headers, timeout=timeout, trust_env=False, verify=trust)


async def _prove_identity(client: httpx.AsyncClient) -> None:
    """Only the generation that was given the key accepts it. Raises EngineStartError."""
    import httpx

    try:
        response = await client.get("/api/version", timeout=PROBE)
    except httpx.HTTPError as error:
        raise EngineStartError(f"its proxy does not answer: {type(error).__name__}") from error
    if response.status_code != 200:
        raise EngineStartError(f"what answers on {client.base_url} is not our proxy: status {response.status_code}")


def _message(response: httpx.Response) -> str:
    """What a proxy or server says is wrong: llama-swap's error is an object since v251 and a string before."""
    try:
        error = response.json()["error"]
    except (ValueError, KeyError, TypeError):
        return f"status {response.status_code}"
    return str(error.get("message", error) if isinstance(error, dict) else error)


KIND = LlamaSwap()
