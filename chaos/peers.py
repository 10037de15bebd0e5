"""The supervisors that `queenright bench peers` measures, and how each is told to keep the same children.

None of them is a dependency: each is looked for on PATH, or where `QUEENRIGHT_BENCH_<NAME>` says (a program, or a
directory that holds it), and left out with a reason where it is not. Each has its defaults, but for what a comparison
needs: the grace of a stop, where it has such a setting, and for those that would otherwise wait a second or five before
a restart, the quickest that they can be told.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from attrs import frozen

from chaos.bench_rig import NotMeasuredError, console_script

HERE: Final = Path(__file__).resolve().parent
OURS: Final = "queenright"
FLOOR: Final = "bare trio loop"


@frozen
class Work:
    """What a supervisor is to keep: a command line for each child, with its port in it, and the grace of a stop in
    seconds. `program` is its command before the port, `folder` is the supervisor's own."""

    folder: Path
    program: tuple[str, ...]
    ports: tuple[int, ...]
    grace: float

    def argv(self, port: int | str) -> list[str]:
        """The command line of one child."""
        return [*self.program, "--port", str(port)]


@frozen
class Peer:
    """One supervisor. `tools` are the programs it needs; `prepare` writes its configuration and gives the command that
    runs it in the foreground; `stop` is the signal by which it ends with its children."""

    name: str
    tools: tuple[str, ...]
    prepare: Callable[[Work, Sequence[str]], list[str]]
    stop: signal.Signals = signal.SIGTERM

    def found(self) -> list[str]:
        """Where its tools are. Raises NotMeasuredError naming the first that is not there."""
        return [find(self.name, tool) for tool in self.tools]


def variable_of(name: str) -> str:
    """The environment variable that says where a supervisor is."""
    return f"QUEENRIGHT_BENCH_{name.upper()}"


def find(name: str, tool: str) -> str:
    """The path of a program. Raises NotMeasuredError."""
    variable = variable_of(name)
    named = os.environ.get(variable)
    found = shutil.which(tool) if not named else shutil.which(os.path.join(named, tool)) or shutil.which(named)
    if found is None:
        where = f"{variable} is {named}" if named else "not on PATH"
        raise NotMeasuredError(f"{tool}: {where}", f"{variable} names where it is")
    return str(Path(found).absolute())


def _ours(work: Work, _: Sequence[str]) -> list[str]:
    lines = ["[engine]", f"slot = {json.dumps(str(work.folder / 'slot'))}"]
    for port in work.ports:  # only a name here: we choose our ports ourselves
        lines += [f"[groups.g{port}]", 'kind = "command"', f"grace_s = {work.grace}", f"[groups.g{port}.options]"]
        lines += [f"argv = {json.dumps(work.argv('{port}'))}", 'health = "/health"']
        lines += [f"[[groups.g{port}.launches]]", f'role = "r{port}"', 'model = "dummy"']
    configuration = work.folder / "queenright.toml"
    configuration.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return [*console_script(), "run", "--config", str(configuration)]


def _floor(work: Work, _: Sequence[str]) -> list[str]:
    commands = json.dumps([work.argv(port) for port in work.ports])
    return [sys.executable, "-P", str(HERE / "bare_loop.py"), commands, str(work.grace)]


def _supervisord(work: Work, tools: Sequence[str]) -> list[str]:
    """Its loop looks once a second; `startsecs=0` saves it another one. Its grace is in whole seconds."""
    lines = [
        "[supervisord]", "nodaemon=true", f"logfile={work.folder}/log", f"pidfile={work.folder}/pid",
        f"childlogdir={work.folder}", "minfds=2048", "user=root" if os.geteuid() == 0 else "",
    ]  # fmt: skip
    for port in work.ports:
        lines += [f"[program:c{port}]", f"command={shlex.join(work.argv(port))}", "startsecs=0", "autorestart=true"]
        lines += [f"stopwaitsecs={-int(-work.grace // 1)}"]
    path = work.folder / "supervisord.conf"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return [tools[0], "-c", str(path)]


def _circus(work: Work, tools: Sequence[str]) -> list[str]:
    """It looks every five seconds by default, and ten times a second as it is told here."""
    sockets = [f"{name} = ipc://{work.folder}/{name}" for name in ("endpoint", "pubsub_endpoint")]
    lines = ["[circus]", "check_delay = 0.1", "statsd = false", *sockets]
    for port in work.ports:
        lines += [f"[watcher:c{port}]", f"cmd = {shlex.join(work.argv(port))}", f"graceful_timeout = {work.grace}"]
        lines += ["copy_env = true"]
    path = work.folder / "circus.ini"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return [tools[0], str(path)]


def _pm2(work: Work, tools: Sequence[str]) -> list[str]:
    """In the foreground, with a home of its own."""
    apps = [
        {
            "name": f"c{port}", "script": work.program[0], "args": work.argv(port)[1:], "interpreter": "none",
            "exec_mode": "fork", "kill_timeout": round(work.grace * 1000), "vizion": False, "pmx": False,
        }
        for port in work.ports
    ]  # fmt: skip
    path = work.folder / "ecosystem.json"
    path.write_text(json.dumps({"apps": apps}), encoding="utf-8")
    return ["/usr/bin/env", f"PM2_HOME={work.folder}/home", tools[0], "start", str(path), "--no-daemon"]


def _services(work: Work) -> Path:
    """A directory of services, as runit and s6 want it."""
    folder = work.folder / "services"
    for port in work.ports:
        (folder / f"c{port}").mkdir(parents=True)
        run = folder / f"c{port}" / "run"
        run.write_text(f"#!/bin/sh\nexec {shlex.join(work.argv(port))}\n", encoding="utf-8")
        run.chmod(0o755)
        (folder / f"c{port}" / "timeout-kill").write_text(f"{round(work.grace * 1000)}\n", encoding="ascii")
    return folder


def _runit(work: Work, tools: Sequence[str]) -> list[str]:
    """Its tools find one another on PATH."""
    folder = _services(work)
    os.utime(folder, (0, 0))  # it waits a second for a directory that was changed just now
    path = f"PATH={Path(tools[1]).parent}:{os.environ.get('PATH', '')}"
    return ["/usr/bin/env", path, tools[0], "-P", str(folder)]


def _s6(work: Work, tools: Sequence[str]) -> list[str]:
    path = f"PATH={Path(tools[1]).parent}:{os.environ.get('PATH', '')}"
    return ["/usr/bin/env", path, tools[0], str(_services(work))]


PEERS: Final = (
    Peer(OURS, (), _ours),
    Peer(FLOOR, (), _floor),
    Peer("supervisord", ("supervisord",), _supervisord),
    Peer("circus", ("circusd",), _circus),
    Peer("pm2", ("pm2",), _pm2),
    Peer("runit", ("runsvdir", "runsv"), _runit, signal.SIGHUP),
    Peer("s6", ("s6-svscan", "s6-supervise"), _s6),
)
