"""The command line, in the manner of Go's flag package: one dash or two, `-name value` or `-name=value`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

DEFAULT_LISTEN = "127.0.0.1:8080"

USAGE = """\
Usage: python -m workers.proxy -config FILE [-listen HOST:PORT]
  -config string   configuration file (JSON)
  -listen string   address to listen on (default "127.0.0.1:8080"; ":PORT" is all interfaces)
  -version         show the version and exit
"""


class FlagError(Exception):
    """The command line cannot be understood; exit status 2, as with llama-swap."""


@dataclass(frozen=True, slots=True)
class Flags:
    """What the command line asks for."""

    config: str = ""
    listen: str = DEFAULT_LISTEN
    version: bool = False
    help: bool = False


def parse_flags(argv: Sequence[str]) -> Flags:
    """Parse `argv` (without the program's name).

    Raises:
        FlagError: an unknown flag, a flag without its value, or a stray argument.
    """
    found: dict[str, str] = {}
    switches: set[str] = set()
    rest = list(argv)
    while rest:
        word = rest.pop(0)
        name, has_value, value = word.lstrip("-").partition("=")
        if not word.startswith("-") or word.startswith("---") or not name:
            raise FlagError(f"unexpected argument: {word}")
        if name in {"version", "h", "help"}:
            if has_value and value not in {"true", "false"}:
                raise FlagError(f'invalid boolean value "{value}" for -{name}')
            if value != "false":
                switches.add(name)
        elif name in {"config", "listen"}:
            if not has_value:
                if not rest:
                    raise FlagError(f"flag needs an argument: -{name}")
                value = rest.pop(0)
            found[name] = value
        else:
            raise FlagError(f"flag provided but not defined: -{name}")
    return Flags(
        config=found.get("config", ""),
        listen=found.get("listen", DEFAULT_LISTEN),
        version="version" in switches,
        help=bool(switches & {"h", "help"}),
    )
