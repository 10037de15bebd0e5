"""The kind `llama-swap`: one proxy (llama-swap, or the built-in one where none is installed) and its llama-servers.

A front end calls `resolve`, the keeper the rest. Facts about llama-swap, here and in swap_configuration, were seen on
v250.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from supervisor.contract import GroupSpec, LaunchSpec
from supervisor.errors import ConfigError, EngineBinaryError, EngineStartError, ProxyLostError
from supervisor.kinds import Activity, Answer, Birth, Command, Report, ServerState
from workers.swap_configuration import KV_FLAGS, OPTIONAL_FLAGS, PLANNED_FLAGS, ROLE_FLAGS, configuration
from workers.swap_watcher import Watcher

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    import httpx

    from supervisor.config_shape import EngineConfig, GroupConfig, LaunchConfig
    from supervisor.devices.held import Held
    from supervisor.devices.shape import Survey
    from supervisor.kinds import Advice, Forecast, Planned, Preparation
    from workers.engines import Binary

HERE = Path(__file__).resolve().parent
BUILT_IN_PROXY = HERE / "proxy" / "__main__.py"

OLDEST_LLAMA_SWAP = 225
"""The first that leaves the caller's key in the request; see _refuse_old."""

RECONNECT = 0.25  # budget: pause before the event stream of a living proxy is opened again
PROBE = 5.0  # budget: one request to the proxy that does not load anything


class LlamaSwap:
    """See supervisor.kinds.Kind."""

    name = "llama-swap"

    def resolve(self, group: GroupConfig, engine: EngineConfig) -> GroupSpec:
        """Find binaries, models and pin. Raises EngineBinaryError, ModelError or ConfigError."""
        from workers import engines, models, pins
        from workers.payload import named

        if group.options:
            raise ConfigError(
                "options: expected none for the kind llama-swap", "`arguments` of a launch go to its server"
            )
        server = engines.find_llama_server(engine.llama_server)
        proxy = engines.find_llama_swap(engine.llama_swap)
        if proxy.kind is engines.Kind.LLAMA_SWAP:
            _refuse_old(proxy)
        launches = []
        payload = named.of(group)
        for launch in group.launches:
            if (
                path := launch.path
            ) is None or path not in payload.coming:  # what is still to come cannot be looked into
                path = models.resolve(launch.model)
                _refuse_broken(path)
            launches.append(_launch(launch, path))
        pin = pins.pin_of(server, proxy)
        flags = _known_flags(server, pin.llama_server)
        _refuse_unknown_flags(group, server, pin.llama_server)
        if any(launch.cache_ram_mib for launch in group.launches) and "--cache-ram" not in flags.split():
            raise ConfigError("cache_ram_mib: this llama-server has no --cache-ram", "remove the key, or update it")
        options = {
            "llama_server": shlex.join(server.argv),
            "proxy": "built-in" if proxy.kind is engines.Kind.BUILT_IN_PROXY else str(proxy.path),
            "flags": flags,
        }
        spec = GroupSpec(
            name=group.name,
            kind=self.name,
            launches=tuple(launches),
            pin=pin.render(),
            options=options,
            environment=dict(group.environment),
            grace_s=group.grace_s,
            start_limit_s=group.start_limit_s,
            wedge_limit_s=group.wedge_limit_s,
            queue_limit=group.queue_limit,
            start_period_s=group.start_period_s or 0.0,
            stall_limit_s=group.stall_limit_s,
            is_planned=group.plan,
            payload=payload.names,
            manifest=payload.manifest,
        )
        _refuse_unspeakable(spec)
        _refuse_poolless(spec, server)
        return spec

    def looked_at(self, spec: GroupSpec) -> Iterator[Path]:
        """Programs with the libraries around them, models with their stamps."""
        from workers import models, pins

        proxy = spec.options["proxy"]
        for program in (*shlex.split(spec.options["llama_server"]), *(() if proxy == "built-in" else (proxy,))):
            if os.path.isabs(program):
                path = Path(program).resolve()
                yield from (Path(program), *pins.places(path.parent), *pins.libraries(path.parent))
        for launch in spec.launches:
            yield Path(launch.path)
            yield models.stamp_beside(Path(launch.path))
        yield from (Path(spec.manifest),) if spec.manifest else ()
        yield HERE

    def lacks(self, spec: GroupSpec) -> bool:
        """See supervisor.kinds.Preparing."""
        from workers.payload import named

        return named.lacks(spec)

    async def prepare(self, spec: GroupSpec, report: Callable[[Preparation], None]) -> None:
        """See supervisor.kinds.Preparing."""
        if not spec.payload:
            return
        from workers.payload import first_start

        await first_start.prepare(spec, report)

    def foresee(
        self, groups: Sequence[GroupConfig], survey: Survey, engine: EngineConfig
    ) -> Sequence[Forecast]:  # fmt: skip
        """See supervisor.kinds.Foreseeing."""
        from workers import engines, pins
        from workers.planner.foreseeing import foresee

        try:
            server = engines.find_llama_server(engine.llama_server)
            return foresee(groups, survey, server.argv, pins.identity(server))
        except EngineBinaryError:  # there is nothing to run, and what it takes can be told all the same
            return foresee(groups, survey, ())

    def advise(self, group: GroupConfig, engine: EngineConfig) -> Iterator[Advice]:
        """See supervisor.kinds.Advising."""
        from workers import advising, engines

        return advising.advise(group, engines.find_llama_server(engine.llama_server))

    def plan(self, spec: GroupSpec, survey: Survey) -> Planned:
        """See supervisor.kinds.Planning."""
        from workers.planner.launching import plan_group

        return plan_group(spec, survey)

    async def read_back(
        self, spec: GroupSpec, memory: Mapping[str, Mapping[str, Any]], birth: Birth, held: Mapping[str, Held], log: str
    ) -> Mapping[str, Mapping[str, Any]]:
        """See supervisor.kinds.ReadingBack."""
        from workers.planner.found import read_back

        return await read_back(spec, memory, birth, held, log)

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
        broken_off = False

        async def load_one(client: httpx.AsyncClient, role: str) -> None:
            nonlocal broken_off
            report(role, ServerState.LOADING)
            try:
                response = await client.get(f"/upstream/{role}/health")
            except httpx.HTTPError as error:
                broken_off = True
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
            raise (ProxyLostError if broken_off else EngineStartError)("; ".join(failures))

    async def watch(self, spec: GroupSpec, birth: Birth, report: Report, activity: Activity) -> None:
        """Follow the proxy's event stream. It ends without a word on a reload and with the proxy: ask again."""
        import httpx
        import trio

        watcher = Watcher({launch.role: launch.idle_ttl_s for launch in spec.launches}, report, activity)
        while True:
            try:
                async with _client(birth, timeout=None) as client, client.stream("GET", "/api/events") as response:
                    async for line in response.aiter_lines():
                        if line.startswith("data:"):
                            watcher.take(json.loads(line[5:]), time.monotonic())
            except (httpx.HTTPError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
                pass  # a proxy that died is the warden's to report; a garbled event is followed by a whole list
            await trio.sleep(RECONNECT)

    async def probe(self, spec: GroupSpec, birth: Birth, subject: str) -> Answer:
        """/health, of the proxy or of a server on its own port: through the proxy it would be loaded, and its idle time
        begin anew (measured). It posts no task to llama-server's queue and wakes no sleeping one."""
        from workers import loopback

        return await loopback.health(birth.ports[subject])

    async def look_closer(self, spec: GroupSpec, birth: Birth, role: str) -> str | None:
        """The counters of /slots, which the server's scheduler itself answers: that it answers at all is news."""
        from workers import loopback

        status, rest = await loopback.exchange(birth.ports[role], "GET", "/slots", key=birth.generation_key)
        return " ".join(_counters(rest)) if status == 200 else None

    async def canary(self, spec: GroupSpec, birth: Birth, role: str) -> Answer:
        """One token, or the vector of one word, by what the server was started for. Nothing is kept of its prompt."""
        from workers import loopback

        path, body = smallest_work(spec, role)
        return await loopback.work(birth.ports[role], path, json.dumps(body).encode(), birth.generation_key)

    async def outside(self, birth: Birth) -> int | None:
        """Everything of it is below its proxy."""
        return None

    async def release(self, birth: Birth) -> None:
        """Unload: on a bare SIGTERM llama-swap drains for up to 30 s, after an unload it ends at once."""
        async with _client(birth, timeout=PROBE) as client:
            await client.post("/api/models/unload")


def smallest_work(spec: GroupSpec, role: str) -> tuple[str, dict[str, object]]:
    """Path and body of a canary for the server of a role."""
    launch = next(launch for launch in spec.launches if launch.role == role)
    flags = {*ROLE_FLAGS.get(role, ()), *launch.arguments}
    if flags & {"--embeddings", "--embedding"}:
        return "/v1/embeddings", {"model": role, "input": "a"}
    if flags & {"--reranking", "--rerank"}:
        return "/v1/rerank", {"model": role, "query": "a", "documents": ["a"]}
    return "/v1/completions", {"model": role, "prompt": "a", "max_tokens": 1, "cache_prompt": False}


def _counters(text: bytes) -> list[str]:
    """What counts up in an answer of /slots: which task, prompt tokens read, tokens made (as b10068 has them)."""
    found = re.findall(rb'"(id_task|n_prompt_tokens_processed|n_decoded|n_remain|is_processing)"\s*:\s*([\w-]+)', text)
    return [f"{name.decode()}={value.decode()}" for name, value in found]


def _launch(launch: LaunchConfig, path: Path) -> LaunchSpec:
    cache = ("--cache-ram", str(launch.cache_ram_mib)) if launch.cache_ram_mib else ()  # else 0, of OPTIONAL_FLAGS
    return LaunchSpec(
        role=launch.role,
        model=path.stem if launch.path else launch.model,
        path=str(path),
        context=launch.context,
        sequences=launch.sequences,
        arguments=(*cache, *launch.arguments),
        idle_ttl_s=launch.idle_ttl_s,
        pool=launch.pool,
        least_context=launch.least_context,
    )


def _refuse_unspeakable(spec: GroupSpec) -> None:
    """llama-swap expands `${...}` in a command and reads it line by line; neither can be quoted."""
    for launch in spec.launches:
        for word in (spec.options["llama_server"], launch.path, launch.model, *launch.arguments):
            if "${" in word or "\n" in word:
                what = f"group {spec.name}, role {launch.role}: {word!r} cannot be passed on by llama-swap"
                raise ConfigError(what, "remove the ${ or line break from the path or argument")


def _refuse_poolless(spec: GroupSpec, server: Binary) -> None:
    """A pool is nothing to be left out silently: each sequence would get a part of it for its own."""
    for launch in spec.launches:
        if launch.pool and KV_FLAGS[0] not in spec.options["flags"].split():
            what = f"group {spec.name}, role {launch.role}: {shlex.join(server.argv)} does not know {KV_FLAGS[0]}"
            raise EngineBinaryError(what, "leave `pool` out, or use a llama-server that shares its KV cache")


def _known_flags(server: Binary, build: str) -> str:
    """Flags of ours that this build has: they drift between builds, and an unknown one is exit status 1. Of one that it
    has not, the first older spelling that it has."""
    from workers import pins

    def ask() -> str:
        from workers import own_words
        from workers.planner.flags import SPELLINGS, SWITCH, help_of

        text = own_words.help_of(server.argv)
        words = set(text.replace(",", " ").split())
        known = [flag for flag in asked_for if flag in words]
        for flag in asked_for:
            if flag not in words:
                known += [one for one in SPELLINGS.get(flag, ()) if one in words][:1]
        if "--flash-attn" in known and not help_of(text).flash_takes_value:
            known.append(SWITCH)
        return " ".join(known)

    asked_for = (*OPTIONAL_FLAGS, *KV_FLAGS, *PLANNED_FLAGS)
    return pins.asked_once(f"{shlex.join(server.argv)} ({build}): {' '.join(asked_for)}", server, ask)


def _refuse_unknown_flags(group: GroupConfig, server: Binary, build: str) -> None:
    """Raise ConfigError for an argument that the server does not take. Those that a plan says anew, in the form that the
    server knows, are its business. The answer is remembered by the arguments. Of a script `advise` says what is in doubt."""
    from workers import pins

    for launch in () if pins.is_script(server) else group.launches:
        if not any(word.startswith("-") for word in launch.arguments):
            continue

        def ask(launch: LaunchConfig = launch) -> str:
            from workers import flag_check, own_words
            from workers.planner.flags import settings_of

            arguments = settings_of(launch.arguments)[1] if group.plan else launch.arguments
            return flag_check.said(arguments, own_words.help_of(server.argv))

        words = f"{shlex.join(launch.arguments)} ({'planned' if group.plan else 'as it stands'})"
        answer = pins.asked_once(f"{shlex.join(server.argv)} ({build}) takes {words}", server, ask)
        if answer != "all":
            flag, _, near = answer.partition("\n")
            which = f"{server.path} ({shown(build)})"
            what = f"group {group.name}, role {launch.role}: the llama-server {which} does not know {flag}"
            raise ConfigError(what, near)


def shown(build: str) -> str:
    """A part of a pin for people: a wheel's name and version whole, of a hash its beginning."""
    return build[:24] if build.startswith("sha256:") else build


def _refuse_broken(model: Path) -> None:
    """Raise ModelError for a model that cannot be loaded, by its header. A whole one is remembered: a vocabulary takes
    30 ms to walk through."""
    from workers import pins

    def read() -> str:
        from workers import gguf_header

        gguf_header.read_header(model)
        return "whole"

    pins.remembered("GGUF header", model, read)


def _refuse_old(proxy: Binary) -> None:
    """Older ones take the key out of a request before the server sees it, and our servers want it (read in the source
    of v224 and v225). A build that does not say its version is taken as new."""
    from workers import pins

    def ask() -> str:
        from workers import own_words

        found = re.search(r"version: v(\d+)\b", own_words.output([*proxy.argv, "-version"]))
        return found[1] if found else ""

    version = pins.asked_once("-version", proxy, ask)
    if version and int(version) < OLDEST_LLAMA_SWAP:
        what = f"{proxy.path} is llama-swap v{version}; v{OLDEST_LLAMA_SWAP} or newer is needed"
        raise EngineBinaryError(what, 'update it, or set `llama_swap = "built-in"` in [engine]')


def _client(birth: Birth, timeout: float | None) -> httpx.AsyncClient:
    import ssl

    import httpx

    headers = {"Authorization": f"Bearer {birth.generation_key}"}
    # Plain HTTP on loopback: a context that trusts nobody, for loading the machine's certificates takes 20 to 60 ms of
    # the keeper's time, twice in every recovery (measured).
    trust = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    return httpx.AsyncClient(base_url=birth.url, headers=headers, timeout=timeout, trust_env=False, verify=trust)


async def _prove_identity(client: httpx.AsyncClient) -> None:
    """Only the generation that was given the key accepts it. Raises EngineStartError for an answer that says no; one
    that does not come is waited for, within the caller's limit: slow is not dead."""
    import httpx
    import trio

    while True:
        try:
            response = await client.get("/api/version", timeout=PROBE)
            break
        except httpx.HTTPError:
            await trio.sleep(RECONNECT)
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
