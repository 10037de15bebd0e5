"""The kind `command`: any program that serves one port. One process, one launch, and nothing in front of it.

It knows no key of its generation, so what proves that the right one answers is the kernel's word on who listens there,
which the core asks for (supervisor.ports). The key for its clients is given to it by a 0600 file or by a variable, never
on a command line, which every user of the machine can read.
"""

from __future__ import annotations

import json
import os
import re
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from supervisor.contract import GroupSpec, LaunchSpec
from supervisor.errors import ConfigError, EngineBinaryError
from supervisor.kinds import Activity, Answer, Birth, Command, Report, ServerState

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from supervisor.config_shape import EngineConfig, GroupConfig

PORT, KEY_FILE, ROLE = "{port}", "{key_file}", "{role}"
"""What is replaced in the words of `argv`. Other braces are the program's own, and stay."""

FIRST_LOOK = 0.001  # budget: pause after the first refusal; a program that only opens a port is well after 1 ms
LOOK_MOST = 0.25  # budget: between two looks at one that loads a model for minutes
ANSWER_LIMIT = 5.0  # budget: one answer to a look; a health page that takes longer tells as much as none
HEAD_MOST: Final = 4096
"""Bytes of an answer that are read for its status line: it is in the first 20."""

_HEALTH: Final = re.compile(r"/[!-~]*")
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
        options, launch = group.options, group.launches[0]
        program = _program(options["argv"][0], group.folder)
        argv = [str(program), *options["argv"][1:], *launch.arguments]
        try:
            pin = pins.of_program(program)
        except OSError as error:
            raise EngineBinaryError(
                f"group {group.name}: {program} cannot be read: {error.strerror}", "check its path and permissions"
            ) from None
        model = launch.path
        return GroupSpec(
            name=group.name,
            kind=self.name,
            launches=(
                LaunchSpec(
                    role=launch.role,
                    model=model.stem if model is not None and model.is_file() else launch.model,
                    path=launch.model,
                    context=launch.context,
                    sequences=launch.sequences,
                    pool=launch.pool,
                ),
            ),
            pin=f"command={pin}",
            options={
                "argv": json.dumps(argv),
                "health": options.get("health", ""),
                "key_variable": options.get("key_variable", ""),
                "workdir": str(_path(options["workdir"], group.folder)) if "workdir" in options else "/",
            },
            environment=dict(group.environment),
            grace_s=group.grace_s,
            start_limit_s=group.start_limit_s,
            queue_limit=group.queue_limit,
        )

    def looked_at(self, spec: GroupSpec) -> Iterator[Path]:
        """The program, and what is served where that is a file."""
        yield Path(json.loads(spec.options["argv"])[0])
        yield Path(os.path.abspath(spec.launches[0].path))
        yield Path(__file__).parent

    def port_names(self, spec: GroupSpec) -> tuple[str, ...]:
        """One: clients talk to the program itself."""
        return (spec.launches[0].role,)

    def command(self, spec: GroupSpec, birth: Birth) -> Command:
        """The words of the configuration, with what stands in braces filled in."""
        role, keys = spec.launches[0].role, birth.config.with_suffix(".keys")
        values = {PORT: str(birth.ports[role]), KEY_FILE: str(keys), ROLE: role}
        argv: list[str] = json.loads(spec.options["argv"])
        variable = spec.options["key_variable"]
        return Command(
            argv=(argv[0], *(_filled(word, values) for word in argv[1:])),
            environment=dict(spec.environment) | ({variable: birth.client_key} if variable else {}),
            files={keys: f"{birth.client_key}\n"} if any(KEY_FILE in word for word in argv[1:]) else {},
            workdir=spec.options["workdir"],
        )

    async def load(self, spec: GroupSpec, birth: Birth, roles: Collection[str], report: Report) -> None:
        """Wait until it says that it is well, where it has a page for that: that it listens, the core has seen."""
        for launch in spec.launches:
            if launch.role in roles and spec.options["health"]:
                report(launch.role, ServerState.LOADING)
                await _until_well(birth, spec.options["health"])
            report(launch.role, ServerState.READY)

    async def watch(self, spec: GroupSpec, birth: Birth, report: Report, activity: Activity) -> None:
        """Nothing can become of it that is not the end of its process, which the warden reports; of its requests nothing
        is known."""
        import trio

        await trio.sleep_forever()

    async def probe(self, spec: GroupSpec, birth: Birth, subject: str) -> Answer:
        """Its page, whoever is asked for: leader and server are one process. That a port takes a connection would be no
        answer: the kernel takes it for a process that is stopped, too."""
        page = spec.options["health"]
        return await ask(_port(birth), page, birth.client_key) if page else Answer.UNKNOWN

    async def look_closer(self, spec: GroupSpec, birth: Birth, role: str) -> str | None:
        """Nothing is known of its work."""
        return None

    async def canary(self, spec: GroupSpec, birth: Birth, role: str) -> Answer:
        """Nor what the smallest work of it would be."""
        return Answer.UNKNOWN

    async def release(self, birth: Birth) -> None:
        """It has nothing to let go of: SIGTERM ends it."""


KIND = CommandKind()


# --- what the file says -----------------------------------------------------------------------------------------------


def _problems(group: GroupConfig) -> Iterator[str]:
    """All that is wrong with a group of this kind, each with its key."""
    options = group.options
    known = ("argv", "health", "workdir", "key_variable")
    for name in sorted(options.keys() - set(known)):
        from difflib import get_close_matches

        near = get_close_matches(name, known, n=1)
        yield f"options.{name}: unknown key; expected {f'`{near[0]}`?' if near else 'one of ' + ', '.join(known)}"
    yield from _argv_problems(options.get("argv"))
    health, workdir = options.get("health", "/"), options.get("workdir", "/")
    if not isinstance(health, str) or not _HEALTH.fullmatch(health):
        yield f"options.health: expected a path that begins with / (no blanks), found {health!r}"
    if not isinstance(workdir, str) or not workdir.strip() or "\0" in workdir:
        yield f"options.workdir: expected the path of a directory, found {workdir!r}"
    elif not _path(workdir, group.folder).is_dir():
        yield f"options.workdir: there is no directory {_path(workdir, group.folder)}"
    variable = options.get("key_variable", "A")
    if not isinstance(variable, str) or not _VARIABLE.fullmatch(variable):
        yield f"options.key_variable: expected a variable's name that does not begin with QUEENRIGHT_, found {variable!r}"
    if len(group.launches) != 1:
        yield f"launches: expected exactly one, which is what the command serves, found {len(group.launches)}"
    for index, launch in enumerate(group.launches):
        if not launch.context or not launch.sequences:
            yield f"launches[{index}]: expected numbers for `context` and `sequences`: of a command nobody knows what fits"
        if launch.idle_ttl_s:
            yield f"launches[{index}].idle_ttl_s: expected 0: a command has nothing that could unload it"


def _argv_problems(argv: Any) -> Iterator[str]:
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


# --- its health -------------------------------------------------------------------------------------------------------


async def _until_well(birth: Birth, page: str) -> None:
    """Ask until all is well. Bounded by the caller: slow is not dead."""
    import trio

    pause = FIRST_LOOK
    while True:
        with trio.move_on_after(ANSWER_LIMIT):
            if await ask(_port(birth), page, birth.client_key) is Answer.ANSWERED:
                return
        await trio.sleep(pause)
        pause = min(2 * pause, LOOK_MOST)


def _port(birth: Birth) -> int:
    return next(iter(birth.ports.values()))


async def ask(port: int, page: str, key: str) -> Answer:
    """What 127.0.0.1:port says to a GET: well with 2xx, not yet with any other status. Not bounded. Raises OSError for
    what fails on our side.

    A plain socket: a look takes 0.06 ms, with an HTTP library 0.3 ms (measured), and a recovery has three milliseconds.
    """
    import trio

    question = (
        f"GET {page} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nAuthorization: Bearer {key}\r\nConnection: close\r\n\r\n"
    )
    with trio.socket.socket() as connection:
        try:
            await connection.connect(("127.0.0.1", port))
        except ConnectionError:
            return Answer.REFUSED
        head = b""
        with suppress(ConnectionError):
            await connection.send(question.encode())
            while b"\r\n" not in head and len(head) < HEAD_MOST and (data := await connection.recv(HEAD_MOST)):
                head += data
    words = head.split(b"\r\n", 1)[0].split()
    if len(words) < 2 or not words[0].startswith(b"HTTP/1.") or not words[1].isdigit():
        return Answer.BROKE_OFF
    return Answer.ANSWERED if words[1].startswith(b"2") else Answer.NOT_YET
