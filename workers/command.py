"""The kind `command`: any program that serves one port, by itself or in a container, with nothing in front of it.

It knows no key of its generation, so what proves that the right one answers is the kernel's word on who listens there,
which the core asks for (supervisor.ports). The key for its clients is given to it by a 0600 file or by a variable, never
on a command line, which every user of the machine can read.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from supervisor.contract import GroupSpec
from supervisor.errors import ConfigError, EngineBinaryError
from supervisor.kinds import PROXY, Activity, Answer, Birth, Command, Report, ServerState
from workers import container_mounts, container_run
from workers.as_written import launches_of, no_page, unknown_keys

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    from supervisor.config_shape import EngineConfig, GroupConfig
    from supervisor.kinds import Preparation

PORT, KEY_FILE, ROLE, CONTAINER = "{port}", "{key_file}", "{role}", "{container}"
"""What is replaced in the words of `argv` and `stop`. Other braces are the program's own, and stay."""
KNOWN: Final = ("argv", "health", "key_variable", "ready", "stop", "workdir")
CONTAINER_START_PERIOD: Final = 60.0
"""Default of `start_period_s` for a container, seconds. What serves in one is often a Python engine that compiles kernels at
its first request, for up to a minute, without a word (vLLM's and SGLang's logs say so)."""

_VARIABLE: Final = re.compile(r"(?!QUEENRIGHT_)[A-Za-z_][A-Za-z0-9_]*")


class CommandKind:
    """See supervisor.kinds.Kind."""

    name = "command"

    def resolve(self, group: GroupConfig, engine: EngineConfig) -> GroupSpec:
        """Check what the file says of it, and find the program. Raises ConfigError or EngineBinaryError."""
        from workers import pins

        problems = list(_problems(group))
        if problems:
            raise ConfigError("; ".join(problems), "docs/reference/configuration.md has an example")
        from workers.payload import named

        options, launch = group.options, group.launches[0]
        payload = named.of(group)
        contained = container_run.is_run(options["argv"])
        program = _program(options["argv"][0], group.folder)
        argv = [str(program), *options["argv"][1:], *launch.arguments]
        try:
            pin = pins.of_program(program)
        except OSError as error:
            raise EngineBinaryError(
                f"group {group.name}: {program} cannot be read: {error.strerror}", "check its path and permissions"
            ) from None
        return GroupSpec(
            name=group.name,
            kind=self.name,
            launches=launches_of(group, payload.files),
            pin=f"command={pin}",
            options={
                "argv": json.dumps(argv),
                "health": options.get("health", ""),
                "ready": options.get("ready", ""),
                "stop": json.dumps(_stop(options, group.folder)),
                "key_variable": options.get("key_variable", ""),
                "workdir": str(_path(options["workdir"], group.folder)) if "workdir" in options else "/",
            },
            environment=dict(group.environment),
            grace_s=group.grace_s,
            start_limit_s=group.start_limit_s,
            queue_limit=group.queue_limit,
            wedge_limit_s=group.wedge_limit_s,
            start_period_s=float(
                group.start_period_s
                if group.start_period_s is not None
                else CONTAINER_START_PERIOD
                if contained
                else 0.0
            ),
            stall_limit_s=group.stall_limit_s,
            is_outside=contained,
            payload=payload.names,
            manifest=payload.manifest,
        )

    def lacks(self, spec: GroupSpec) -> bool:
        """See supervisor.kinds.Preparing."""
        from workers.payload import named

        return named.lacks(spec)

    async def prepare(self, spec: GroupSpec, report: Callable[[Preparation], None]) -> None:
        """See supervisor.kinds.Preparing."""
        if spec.payload:
            from workers.payload import first_start

            await first_start.prepare(spec, report)
        if spec.is_outside:  # after the files, some of which it may be told to see
            import trio

            from workers import container_mounts

            await trio.to_thread.run_sync(container_mounts.make, spec, abandon_on_cancel=True)

    def looked_at(self, spec: GroupSpec) -> Iterator[Path]:
        """The program, and what is served where that is a file: then its path is absolute, whatever the configuration
        says, and else it is a name, which is the same from everywhere."""
        yield Path(json.loads(spec.options["argv"])[0])
        yield from (Path(launch.path) for launch in spec.launches if os.path.isabs(launch.path))
        yield from (Path(spec.manifest),) if spec.manifest else ()
        yield Path(__file__).parent

    def port_names(self, spec: GroupSpec) -> tuple[str, ...]:
        """One: clients talk to the program itself."""
        return (spec.launches[0].role,)

    def command(self, spec: GroupSpec, birth: Birth) -> Command:
        """The words of the configuration, with what stands in braces filled in."""
        role, keys = spec.launches[0].role, birth.config.with_suffix(".keys")
        values = {PORT: str(birth.ports[role]), KEY_FILE: str(keys), ROLE: role}
        argv: list[str] = json.loads(spec.options["argv"])
        if spec.is_outside:
            values[CONTAINER] = container_run.name_of(argv, container_run.slot_of(birth), spec.name)
        stop = [_filled(word, values) for word in json.loads(spec.options.get("stop", "[]"))]
        has_keys = any(KEY_FILE in word for word in argv[1:])
        filled = (argv[0], *(_filled(word, values) for word in argv[1:]))
        variable = spec.options["key_variable"]
        environment = dict(spec.environment) | ({variable: birth.client_key} if variable else {})
        # With what surrounds it: a container engine may well be found by DOCKER_HOST alone.
        asked = {"argv": filled[:1], "stop": stop, "environment": dict(spec.environment)}
        return Command(
            argv=container_run.leader(filled, birth, spec.name, environment) if spec.is_outside else filled,
            environment=environment,
            files=({birth.config: json.dumps(asked)} if stop or spec.is_outside else {})
            | ({keys: f"{birth.client_key}\n"} if has_keys else {}),
            workdir=spec.options["workdir"],
            undo=container_run.undo(filled, birth) if spec.is_outside else (),
        )

    async def load(self, spec: GroupSpec, birth: Birth, roles: Collection[str], report: Report) -> None:
        """Wait until it says that it is well, where it has a page or a line for that. That it listens, the core has seen;
        but of a container only the container engine knows whether what answers is in it."""
        import trio

        from workers import command_hands

        wanted = [launch.role for launch in spec.launches if launch.role in roles]
        waits = spec.is_outside or spec.options["health"] or spec.options.get("ready")
        for role in wanted if waits else ():
            report(role, ServerState.LOADING)
        if wanted and spec.options.get("ready"):
            await command_hands.until_said(birth, re.compile(spec.options["ready"]))
        while wanted:
            if spec.options["health"]:
                await command_hands.until_well(birth, spec.options["health"])
            if not spec.is_outside or await command_hands.container(birth) is not None:
                break
            await trio.sleep(command_hands.LOOK_MOST)
        for launch in spec.launches:
            report(launch.role, ServerState.READY)

    async def watch(self, spec: GroupSpec, birth: Birth, report: Report, activity: Activity) -> None:
        """Nothing can become of it that is not the end of its process, which the warden reports; of its requests nothing
        is known."""
        import trio

        await trio.sleep_forever()

    async def probe(self, spec: GroupSpec, birth: Birth, subject: str) -> Answer:
        """Its page, whoever is asked for: leader and server are one process. That a port takes a connection would be no
        answer: the kernel takes it for a process that is stopped, too."""
        from workers import loopback

        page = spec.options["health"]
        if spec.is_outside and subject == PROXY:  # that is the client of the container engine: it has no page
            return Answer.UNKNOWN
        return await loopback.health(birth.port, page, birth.client_key) if page else Answer.UNKNOWN

    async def look_closer(self, spec: GroupSpec, birth: Birth, role: str) -> str | None:
        """Nothing is known of its work."""
        return None

    async def canary(self, spec: GroupSpec, birth: Birth, role: str) -> Answer:
        """Nor what the smallest work of it would be."""
        return Answer.UNKNOWN

    async def outside(self, birth: Birth) -> int | None:
        """The container's first process."""
        from workers import command_hands

        return await command_hands.container(birth) or None

    async def release(self, birth: Birth) -> None:
        """Run its stop command, where it has one; SIGTERM comes next."""
        import trio

        from workers import command_hands

        try:
            asked = json.loads(await trio.to_thread.run_sync(birth.config.read_text))
        except FileNotFoundError:  # it has none
            return
        if asked["stop"]:
            around = asked.get("environment", {})
            await trio.to_thread.run_sync(command_hands.run, asked["stop"], around, abandon_on_cancel=True)


KIND = CommandKind()


# --- what the file says -----------------------------------------------------------------------------------------------


def _problems(group: GroupConfig) -> Iterator[str]:
    """All that is wrong with a group of this kind, each with its key."""
    options = group.options
    yield from unknown_keys(options, KNOWN)
    yield from _argv_problems(options)
    yield from _ready_problems(options, group.start_limit_s)
    yield from no_page(options)
    workdir = options.get("workdir", "/")
    if not isinstance(workdir, str) or not workdir.strip() or "\0" in workdir:
        yield f"options.workdir: expected the path of a directory, found {workdir!r}"
    elif not _path(workdir, group.folder).is_dir():
        yield f"options.workdir: there is no directory {_path(workdir, group.folder)}"
    variable = options.get("key_variable", "A")
    if not isinstance(variable, str) or not _VARIABLE.fullmatch(variable):
        yield f"options.key_variable: expected a variable's name that does not begin with QUEENRIGHT_, found {variable!r}"
    for index, launch in enumerate(group.launches):
        if not launch.context or not launch.sequences:
            yield f"launches[{index}]: expected numbers for `context` and `sequences`: of a command nobody knows what fits"
        if launch.idle_ttl_s:
            yield f"launches[{index}].idle_ttl_s: expected 0: a command has nothing that could unload it"
        if launch.arguments and index:
            yield f"launches[{index}].arguments: expected none: there is one process, and the first launch has its arguments"


def _stop(options: Mapping[str, Any], folder: Path) -> list[str]:
    """Raises EngineBinaryError."""
    words = options.get("stop", [])
    return [str(_program(words[0], folder)), *words[1:]] if words else []


def _ready_problems(options: Mapping[str, Any], start_limit_s: float) -> Iterator[str]:
    ready, stop, argv = options.get("ready", ""), options.get("stop", ["x"]), options.get("argv")
    try:
        re.compile(ready)
    except (re.error, TypeError, RecursionError) as error:
        yield f"options.ready: expected a regular expression, found {ready!r} ({error})"
    if not isinstance(stop, list) or not stop or not all(isinstance(word, str) and "\0" not in word for word in stop):
        yield f"options.stop: expected a command line as an array of strings, found {stop!r}"
    if isinstance(argv, list) and all(isinstance(word, str) for word in argv) and container_run.is_run(argv):
        yield from container_run.problems(argv, start_limit_s)
        yield from container_mounts.problems(argv)
        if not options.get("health") and not ready:
            yield "options.health: expected one, or `ready`: a container's port takes connections before anything in it does"


def _argv_problems(options: Mapping[str, Any]) -> Iterator[str]:
    argv = options.get("argv")
    if not isinstance(argv, list) or not argv or not all(isinstance(word, str) and "\0" not in word for word in argv):
        yield 'options.argv: expected the command line as an array of strings, ["PROGRAM", "--port", "{port}"]'
    elif not any(PORT in word for word in argv[1:]):
        yield f"options.argv: expected {PORT} in one of its words: we choose the port"


def _path(text: str, folder: Path) -> Path:
    return folder / Path(text).expanduser()


def _program(word: str, folder: Path) -> Path:
    """The program, absolute: a bare name is looked for on PATH, anything else is a path. Raises EngineBinaryError."""
    found: str | None = None
    if "/" in word:
        path = _path(word, folder)
        found = str(path) if path.is_file() and os.access(path, os.X_OK) else None
    else:
        import shutil

        found = shutil.which(word)
    if found is None:
        where = f"{_path(word, folder)} is not an executable file" if "/" in word else f"there is no {word} on PATH"
        raise EngineBinaryError(where, "correct `argv`, or install the program")
    return Path(found).absolute()


def _filled(word: str, values: Mapping[str, str]) -> str:
    for name, value in values.items():
        word = word.replace(name, value)
    return word
