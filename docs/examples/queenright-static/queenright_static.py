"""The kind `static`: serves a directory by Python's own file server. The least that a kind is (docs/guides/new-kind.md)."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from supervisor.contract import GroupSpec, LaunchSpec
from supervisor.errors import ConfigError
from supervisor.kinds import Activity, Answer, Birth, Command, Report, ServerState

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from supervisor.config_shape import EngineConfig, GroupConfig


class Static:
    """See supervisor.kinds.Kind."""

    name = "static"

    def resolve(self, group: GroupConfig, engine: EngineConfig) -> GroupSpec:
        """Check everything here, in the front end: whoever wrote the file is still there to read what is wrong."""
        folder = group.folder / str(group.options.get("folder", ""))
        if group.options.keys() != {"folder"} or not folder.is_dir():
            raise ConfigError("options: expected `folder`, a directory that is there", "correct the configuration")
        return GroupSpec(
            name=group.name,
            kind=self.name,
            launches=tuple(
                LaunchSpec(
                    role=one.role, model=one.model, path=str(folder), context=one.context, sequences=one.sequences
                )
                for one in group.launches
            ),
            pin=f"python={sys.version_info.major}.{sys.version_info.minor}",
            environment=dict(group.environment),
            grace_s=group.grace_s,
            start_limit_s=group.start_limit_s,
            wedge_limit_s=group.wedge_limit_s,
            queue_limit=group.queue_limit,
            start_period_s=group.start_period_s or 0.0,
            stall_limit_s=group.stall_limit_s,
        )

    def looked_at(self, spec: GroupSpec) -> Iterable[Path]:
        return [Path(launch.path) for launch in spec.launches]

    def port_names(self, spec: GroupSpec) -> tuple[str, ...]:
        return (spec.launches[0].role,)

    def command(self, spec: GroupSpec, birth: Birth) -> Command:
        (port,) = birth.ports.values()
        words = ("-m", "http.server", str(port), "--bind", "127.0.0.1", "--directory", spec.launches[0].path)
        return Command((sys.executable, "-I", *words), dict(spec.environment))

    async def load(self, spec: GroupSpec, birth: Birth, roles: Collection[str], report: Report) -> None:
        """That it listens, and that it is ours, the core has seen; there is nothing to load."""
        for launch in spec.launches:
            report(launch.role, ServerState.READY)

    async def watch(self, spec: GroupSpec, birth: Birth, report: Report, activity: Activity) -> None:
        import trio

        await trio.sleep_forever()  # its end is the warden's to tell

    async def probe(self, spec: GroupSpec, birth: Birth, subject: str) -> Answer:
        """The server's own answer, cheaply. A connection alone would prove nothing: the kernel takes it for a dead loop, too."""
        import trio

        (port,) = birth.ports.values()
        try:
            stream = await trio.open_tcp_stream("127.0.0.1", port)
        except OSError:
            return Answer.REFUSED
        async with stream:
            try:
                await stream.send_all(b"HEAD / HTTP/1.0\r\n\r\n")
                return Answer.ANSWERED if (await stream.receive_some(64)).startswith(b"HTTP/") else Answer.BROKE_OFF
            except trio.BrokenResourceError:
                return Answer.BROKE_OFF

    async def look_closer(self, spec: GroupSpec, birth: Birth, role: str) -> str | None:
        return None

    async def canary(self, spec: GroupSpec, birth: Birth, role: str) -> Answer:
        return Answer.UNKNOWN

    async def outside(self, birth: Birth) -> int | None:
        return None

    async def release(self, birth: Birth) -> None:
        """SIGTERM ends it."""


KIND = Static()
