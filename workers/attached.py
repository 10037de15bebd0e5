"""The kind `attached`: a server that somebody else runs. It is watched and routed to; it is never started, signalled or
restarted.

What a generation of it consists of is one small process of ours (workers.attachment), which lives while the server does:
so the core treats it like any other group, and whatever it kills is ours.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from supervisor.contract import GroupSpec
from supervisor.errors import ConfigError
from supervisor.kinds import Activity, Answer, Birth, Command, Report, ServerState
from workers.as_written import launches_of, no_page, unknown_keys

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from supervisor.config_shape import EngineConfig, GroupConfig

ATTACHMENT: Final = "attachment"
"""The one port: of our process, not of the server."""
PROGRAM: Final = Path(__file__).resolve().parent / "attachment.py"
FOR_EVER = 10 * 31_536_000.0  # budget: a start lasts until somebody starts the server, which is no failure of anybody's
KNOWN: Final = ("health", "key_file", "unit", "url")

_UNIT: Final = re.compile(r"[A-Za-z0-9:_.@\\][A-Za-z0-9:_.@\\-]*\.service")
"""systemd.unit(5); the first character is none that systemctl would take for an option."""


class Attached:
    """See supervisor.kinds.Kind."""

    name = "attached"

    def resolve(self, group: GroupConfig, engine: EngineConfig) -> GroupSpec:
        """Check what the file says of it. Raises ConfigError. Whether the server is there is not asked: it may come later."""
        problems = list(_problems(group))
        if problems:
            raise ConfigError("; ".join(problems), "docs/reference/configuration.md has an example")
        options = group.options
        key = options.get("key_file", "")
        return GroupSpec(
            name=group.name,
            kind=self.name,
            launches=launches_of(group),
            pin=f"attached={options['url']}",
            options={"health": options.get("health", "/health")} | _unit(options),
            grace_s=group.grace_s,
            start_limit_s=FOR_EVER,
            wedge_limit_s=group.wedge_limit_s,
            queue_limit=group.queue_limit,
            stall_limit_s=group.stall_limit_s,
            url=options["url"],
            key_file=str(group.folder / Path(key).expanduser()) if key else "",
        )

    def looked_at(self, spec: GroupSpec) -> Iterator[Path]:
        """Nothing but our own program."""
        yield Path(__file__).parent

    def port_names(self, spec: GroupSpec) -> tuple[str, ...]:
        """Our process's own; clients go to `GroupSpec.url`."""
        return (ATTACHMENT,)

    def command(self, spec: GroupSpec, birth: Birth) -> Command:
        """The process that watches. It reads the server's key from where the configuration has it."""
        words = (spec.url, spec.options["health"], str(birth.ports[ATTACHMENT]), f"{spec.wedge_limit_s:g}")
        return Command(
            (sys.executable, "-I", "-S", str(PROGRAM), *words, spec.options.get("unit", ""), spec.key_file), {}
        )

    async def load(self, spec: GroupSpec, birth: Birth, roles: Collection[str], report: Report) -> None:
        """Our process listens, and it does so once the server is up."""
        for launch in spec.launches:
            report(launch.role, ServerState.READY)

    async def watch(self, spec: GroupSpec, birth: Birth, report: Report, activity: Activity) -> None:
        """Our process ends with the server; of its requests nothing is known."""
        import trio

        await trio.sleep_forever()

    async def probe(self, spec: GroupSpec, birth: Birth, subject: str) -> Answer:
        """Our process says what its last look found."""
        from workers import loopback

        return await loopback.health(birth.ports[ATTACHMENT])

    async def look_closer(self, spec: GroupSpec, birth: Birth, role: str) -> str | None:
        """The server is somebody else's: nothing more is asked of it."""
        return None

    async def canary(self, spec: GroupSpec, birth: Birth, role: str) -> Answer:
        """Nor any work."""
        return Answer.UNKNOWN

    async def outside(self, birth: Birth) -> int | None:
        """Which process it is, is none of our business."""
        return None

    async def release(self, birth: Birth) -> None:
        """Nothing of it is ours to let go."""


KIND = Attached()


def _unit(options: Mapping[str, str]) -> dict[str, str]:
    """Said only where there is one: a group without one is the same as before there were any."""
    return {"unit": options["unit"]} if "unit" in options else {}


def _problems(group: GroupConfig) -> Iterator[str]:
    options = group.options
    yield from unknown_keys(options, KNOWN)
    url = options.get("url")
    if not isinstance(url, str) or not _is_base(url):
        yield f"options.url: expected http://HOST:PORT without a path, found {url!r}"
    yield from no_page(options)
    key = options.get("key_file", "x")
    if not isinstance(key, str) or not key.strip() or "\0" in key:
        yield f"options.key_file: expected the path of a file, found {key!r}"
    elif "key_file" in options and not (group.folder / Path(key).expanduser()).is_file():
        yield f"options.key_file: there is no file {group.folder / Path(key).expanduser()}"
    unit = options.get("unit", "x.service")
    if not isinstance(unit, str) or not _UNIT.fullmatch(unit):
        yield f"options.unit: expected the name of a systemd service, NAME.service, found {unit!r}"
    if group.environment:
        yield "environment: expected none: the server has its own"
    for index, launch in enumerate(group.launches):
        if launch.idle_ttl_s or launch.arguments:
            yield f"launches[{index}]: expected neither `idle_ttl_s` nor `arguments`: the server is not started by us"


def _is_base(url: str) -> bool:
    try:
        parts = urlsplit(url)
        whole = parts.scheme == "http" and bool(parts.hostname and parts.port) and url == f"http://{parts.netloc}"
        return whole and "@" not in url  # it is shown, and stands on a command line: a secret belongs into `key_file`
    except ValueError:
        return False
