"""`queenright unit`: systemd's units for this engine, printed with the paths filled in. It installs nothing."""

from __future__ import annotations

import os
import sys
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Final

from supervisor import budgets
from supervisor.commands._common import add_place
from supervisor.errors import ExitCode, UsageError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence

NAME: Final = "queenright"
CARRIED: Final = (
    "PATH",
    "QUEENRIGHT_CACHE",
    "QUEENRIGHT_ESTIMATOR",
    "QUEENRIGHT_LLAMA_SERVER",
    "QUEENRIGHT_LLAMA_SWAP",
    "QUEENRIGHT_RESERVATIONS",
    "XDG_CACHE_HOME",
    "XDG_CONFIG_HOME",
    "XDG_DATA_HOME",
    "XDG_STATE_HOME",
)
"""What decides which binaries, models and slot are found: a manager's own values would find others than a shell does, and
an engine of another build is shared with nobody. A configuration and a slot that are named are in the command line."""
DOOMED: Final = (ExitCode.USAGE,)
"""Trying again does not change these: the configuration has to. OWNED_ELSEWHERE is not one, it passes."""

SERVICE: Final = """\
[Unit]
Description=queenright, one inference engine that every program shares
# A slot that is in use or held passes: it is tried until it is free, however often.
StartLimitIntervalSec=0

[Service]
Type=notify
# The warden alone speaks, and is the main process.
NotifyAccess=main
{environment}ExecStart={run}
ExecReload={apply}
# SIGTERM to the warden, which ends the rest in order; whatever is left at the end of the limit is killed, all of it.
KillMode=mixed
TimeoutStartSec={start:g}
TimeoutStopSec={stop:g}
WatchdogSec={watchdog:g}
Restart=on-failure
RestartSec={retry:g}
RestartPreventExitStatus={doomed}
# A server that the kernel kills for memory is rebuilt: that is no reason to end the others.
OOMPolicy=continue
UMask=0077
{hardening}
[Install]
WantedBy={target}
"""

HARDENING: Final = """\
User={user}
# Programs are not ours to change. Nothing else is shut off. The members' /proc has to be seen (ProtectProc=, PrivatePIDs=),
# GPUs (PrivateDevices=, DevicePolicy=), slots in /tmp and home (PrivateTmp=, ProtectHome=); drivers generate code
# (MemoryDenyWriteExecute=), and nvidia-modprobe is set-user-id (NoNewPrivileges=, and what implies it).
ProtectSystem=full
ProtectControlGroups=yes
"""

SOCKET: Final = """\
[Unit]
Description=queenright's gateway: the first request starts the engine

[Socket]
ListenStream={listen}

[Install]
WantedBy=sockets.target
"""


class Unit:
    """The command."""

    help = "print a systemd unit for this engine, for a user or the system"

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add this command's arguments."""
        add_place(parser)
        manager = parser.add_mutually_exclusive_group()
        manager.add_argument("--user", action="store_true", help="for the user's service manager (the default)")
        manager.add_argument("--system", action="store_true", help="for the system's; it runs as you")
        parser.add_argument("--socket", action="store_true", help="the socket unit that belongs to it")
        parser.add_argument("--json", action="store_true", help="its name, where it goes, and its text, as data")
        parser.epilog = (
            "example:\n  queenright unit > ~/.config/systemd/user/queenright.service\n"
            "  systemctl --user daemon-reload && systemctl --user enable --now queenright\n\n"
            "It installs nothing. docs/guides/systemd.md says more."
        )

    def run(self, args: argparse.Namespace) -> int:
        """Print it. Raises ConfigError, and UsageError for a socket that nothing would serve."""
        from supervisor import resolving

        config = resolving.load(args.config)
        place = ["--config", str(config.path)] if config.path else []
        slot = args.slot or os.environ.get("QUEENRIGHT_SLOT")
        place += ["--slot", os.path.abspath(slot)] if slot else []
        if args.socket and not config.gateway.enabled:
            raise UsageError("the gateway is switched off, so nothing would serve the socket", "set gateway.enabled")
        if args.socket:
            text = socket_unit(config.gateway.listen)
        else:
            program = str(Path(sys.executable).with_name(NAME))
            text = service_unit(program, place, os.environ, system=args.system)
        name = f"{NAME}.{'socket' if args.socket else 'service'}"
        if args.json:
            import json

            folder = "/etc/systemd/system" if args.system else os.path.expanduser("~/.config/systemd/user")
            print(json.dumps({"name": name, "path": f"{folder}/{name}", "text": text}))
        else:
            print(text, end="")
        return 0


def service_unit(program: str, place: Sequence[str], environment: Mapping[str, str], *, system: bool) -> str:
    """`place`: the arguments that say which engine. Words are quoted as systemd.syntax(7) wants them."""
    carried = [
        f"Environment={quoted(f'{name}={_rooted(environment[name])}')}\n" for name in CARRIED if environment.get(name)
    ]
    return SERVICE.format(
        environment="".join(carried),
        run=_command(program, "run", *place),
        apply=_command(program, "apply", *place),
        start=budgets.UNIT_START,
        stop=budgets.UNIT_STOP,
        watchdog=budgets.UNIT_WATCHDOG,
        retry=budgets.UNIT_RETRY,
        doomed=" ".join(str(int(code)) for code in DOOMED),
        hardening=HARDENING.format(user=_user()) if system else "",
        target="multi-user.target" if system else "default.target",
    )


def socket_unit(listen: str) -> str:
    """`listen`: an address as in the configuration. systemd takes numbers only (systemd.socket(5)), so of names the one
    that everybody has is turned into its number. Raises UsageError for another name, and for port 0."""
    host, _, port = listen.rpartition(":")
    host = "127.0.0.1" if host == "localhost" else host
    try:
        ip_address(host.strip("[]"))
    except ValueError:
        raise UsageError(
            f"gateway.listen: {host} is a name, and a socket unit takes a number", "name its IP address"
        ) from None
    if int(port) == 0:
        raise UsageError("gateway.listen: a socket unit needs a port of its own, and 0 is any", "name a port")
    return SOCKET.format(listen=f"{host}:{port}")


def quoted(word: str) -> str:
    """One word in quotes, without specifiers (systemd.unit(5)). Raises UsageError for one that no line can have."""
    if "\n" in word or "\r" in word:
        raise UsageError(f"{word!r} has a line break, which no unit can have", "rename it")
    return '"' + word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%") + '"'


def _rooted(value: str) -> str:
    """A path as it is meant here: a service has another working directory. Lists of them (PATH) and bare names stay."""
    is_relative = os.sep in value and os.pathsep not in value and not value.startswith(os.sep)
    return os.path.abspath(os.path.expanduser(value)) if is_relative else value


def _command(*words: str) -> str:
    """Of a command line, variables are expanded too (systemd.service(5)); not in its first word, the program."""
    return " ".join([quoted(words[0]), *(quoted(word).replace("$", "$$") for word in words[1:])])


def _user() -> str:
    import pwd

    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


COMMAND: Final = Unit()
