"""`python -m workers.proxy -config F -listen A`, or this file by its absolute path.

The socket listens before the slow imports: after a SIGKILL, whoever waits for this proxy is queued, not refused.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import socket
import sys
from pathlib import Path

if not __package__:
    # Started by path: take the packages that stand beside this very file. An entry in sys.path would not do: behind
    # site-packages another `supervisor` may come first, and before it site-packages itself could hide the library.
    for _name in ("supervisor", "workers"):
        _home = Path(__file__).resolve().parents[2] / _name
        _spec = importlib.util.spec_from_file_location(
            _name, _home / "__init__.py", submodule_search_locations=[str(_home)]
        )
        if _spec is None or _spec.loader is None:
            sys.exit(f"{_home} is not a package")
        sys.modules[_name] = importlib.util.module_from_spec(_spec)
        _spec.loader.exec_module(sys.modules[_name])

from supervisor.errors import ConfigError
from workers.proxy import limits
from workers.proxy.config import load_config
from workers.proxy.flags import USAGE, FlagError, parse_flags
from workers.proxy.generation import inherited_lock


def main(argv: list[str]) -> int:
    """Run the proxy; the exit status: 0 stopped as told, 1 configuration or listener, 2 command line."""
    lock_fd = inherited_lock(os.environ)
    try:
        flags = parse_flags(argv)
    except FlagError as error:
        print(f"{error}\n{USAGE}", end="", file=sys.stderr)
        return 2
    if flags.help:
        print(USAGE, end="", file=sys.stderr)
        return 0
    if flags.version:
        print(f"version: {version()} (queenright built-in proxy), built at unknown")
        return 0
    # Until trio listens for them there is no server to end: leave as cleanly as later.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: os._exit(0))
    try:
        if not flags.config:
            raise ConfigError("the flag -config is missing", "It names the configuration file.")
        config = load_config(Path(flags.config))
        listener = listen(flags.listen)
    except ConfigError as error:
        print(f"ERROR {error}", file=sys.stderr)
        return 1
    from workers.proxy.server import run  # trio and h11: most of the start-up time

    run(config, listener, lock_fd, version)
    return 0


def listen(address: str) -> socket.socket:
    """A listening socket for `HOST:PORT`; without a host, on all interfaces.

    Raises:
        ConfigError: the address is malformed or cannot be had.
    """
    host, colon, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not port.isdecimal() or int(port) > 65535:
        raise ConfigError(f"-listen: expected HOST:PORT, got {address!r}")
    try:
        if not host:
            return socket.create_server(
                ("", int(port)),
                family=socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET,
                backlog=limits.LISTEN_BACKLOG,
                dualstack_ipv6=socket.has_dualstack_ipv6(),
            )
        family = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, int(port)), family=family, backlog=limits.LISTEN_BACKLOG)
    except OSError as error:
        raise ConfigError(
            f"-listen {address}: cannot listen: {error}", "Choose another port, or end its holder."
        ) from error


def version() -> str:
    """The distribution's version; "unknown" when run out of a tree that is not installed."""
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as installed  # slow to import, rarely asked

    try:
        return f"builtin-{installed('queenright')}"
    except PackageNotFoundError:
        return "builtin-unknown"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
