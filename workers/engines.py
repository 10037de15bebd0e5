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
from typing import TYPE_CHECKING, Final, NamedTuple

from supervisor.config_shape import BUILT_IN
from supervisor.errors import EngineBinaryError
from workers import cpu, wheels

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from workers.wheels import Wheel

LLAMA_SERVER_VARIABLE: Final = "QUEENRIGHT_LLAMA_SERVER"
LLAMA_SWAP_VARIABLE: Final = "QUEENRIGHT_LLAMA_SWAP"

XLLAMACPP_SERVER: Final = Path(__file__).resolve().parent / "xllamacpp_server.py"
XLLAMACPP_PIN: Final = f"{cpu.XLLAMACPP}==2026.10.11549"
"""As in the extra `engine`."""

EXTRA_GLIBC: Final = {"x86_64": (2, 35), "aarch64": (2, 17)}
"""The least that every wheel of the extra `engine` runs with (their manylinux tags)."""

XLLAMACPP_GLIBC: Final = (2, 17)


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


class Binary(NamedTuple):
    """A program that runs part of an engine.

    `path` is absolute; it is run by `argv`. `distribution` and `version` name the wheel that provides the program,
    however it was found; both are "" for any other file.
    """

    path: Path
    origin: Origin
    kind: Kind
    distribution: str = ""
    version: str = ""

    @property
    def argv(self) -> tuple[str, ...]:
        """The words before its arguments, the first an absolute path. What is ours is run by this Python."""
        if self.kind is Kind.BUILT_IN_PROXY:
            return (sys.executable, "-P", str(self.path / "__main__.py"))
        if self.path == XLLAMACPP_SERVER:
            return (sys.executable, "-P", str(self.path))
        return (str(self.path),)


BUILT_IN_PROXY: Final = Binary(Path(__file__).parent / "proxy", Origin.BUILT_IN, Kind.BUILT_IN_PROXY)
"""The package `workers.proxy` of this very installation."""

_WHEELS: Final = {
    Kind.LLAMA_SERVER: ("lilbee-engine", cpu.SKULK),
    Kind.LLAMA_SWAP: ("lilbee-engine",),
}
"""Wheels that carry the program, in order: what somebody installed for a GPU before what the extra `engine` brings.
For llama-server one more comes after them, that only carries what to make it of: see _made_of_xllamacpp."""


def find_llama_server(configured: str | Path | None = None, environment: Mapping[str, str] | None = None) -> Binary:
    """The llama-server to run: `configured`, $QUEENRIGHT_LLAMA_SERVER, PATH, lilbee-engine's, the extra `engine`'s: skulk's
    if this processor has what it was built with, else the one made of xllamacpp.

    `environment` defaults to this process's. Raises EngineBinaryError when a named one cannot be used, or none is found.
    """
    found = _find(Kind.LLAMA_SERVER, configured, LLAMA_SERVER_VARIABLE, environment)
    refusal = _refusal(found) if found is not None else None
    if found is not None and refusal is None:
        return found
    own = f"put one on PATH, or name it in the configuration or in ${LLAMA_SERVER_VARIABLE}"
    if found is not None and refusal is not None and found.origin is not Origin.WHEEL:
        raise EngineBinaryError(refusal, own)
    made = _made_of_xllamacpp()
    if made is None:
        install = what_to_install(sys.platform, os.uname().machine, glibc_version())
        raise EngineBinaryError(refusal or "no llama-server was found", f"{install}, or {own}")
    if (refusal := _refusal(made)) is not None:
        raise EngineBinaryError(refusal, f"build llama.cpp for this processor and {own}")
    return made


def find_llama_swap(configured: str | Path | None = None, environment: Mapping[str, str] | None = None) -> Binary:
    """The llama-swap to run: `configured`, $QUEENRIGHT_LLAMA_SWAP, PATH, lilbee-engine's, else BUILT_IN_PROXY, which
    `configured` may also ask for as `built-in`.

    Raises EngineBinaryError when a named one cannot be used.
    """
    if configured == BUILT_IN:
        return BUILT_IN_PROXY
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
    for wheel, path in _in_wheels(kind):
        if (why := _unusable(path)) is not None:
            raise EngineBinaryError(f"the {kind} of the wheel {wheel.name}, {path}, {why}", f"reinstall {wheel.name}")
        return Binary(path, Origin.WHEEL, kind, wheel.name, wheel.version)
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


def _in_wheels(kind: Kind) -> Iterator[tuple[Wheel, Path]]:
    """Installed wheels that list a file of this name, best first. A wheel without one (a stub) does not count."""
    for name in _WHEELS[kind]:
        if (found := wheels.find(name)) is None:
            continue
        for file in found.files():
            # Not a console script, beside the packages: that would be Python in between, with a life of its own.
            if file.name == kind and file.is_relative_to(found.info.parent):
                yield found, file
                break


def _attributed(binary: Binary) -> Binary:
    """With its wheel's name, if a wheel provides the very same file: one engine has one pin, however it was named."""
    if not {"site-packages", "dist-packages"}.intersection(binary.path.resolve().parts):
        return binary  # the usual case
    for wheel, path in _in_wheels(binary.kind):
        try:
            same = path.samefile(binary.path)
        except OSError:
            continue
        if same:
            return Binary(binary.path, binary.origin, binary.kind, wheel.name, wheel.version)
    return binary


def _made_of_xllamacpp() -> Binary | None:
    """The llama-server that we make of the wheel xllamacpp, None where it is not installed, or only as a stub."""
    if (found := wheels.find(cpu.XLLAMACPP)) is None:
        return None
    for file in found.files():
        is_extension = file.parent.name == cpu.XLLAMACPP and file.name.startswith("xllamacpp.") and file.suffix == ".so"
        if is_extension and file.is_file():
            return Binary(XLLAMACPP_SERVER, Origin.WHEEL, Kind.LLAMA_SERVER, cpu.XLLAMACPP, found.version)
    return None


def _refusal(binary: Binary) -> str | None:
    """Why this processor cannot run a wheel's llama-server, as a sentence; None if it can, or if nobody knows."""
    if not binary.distribution:
        return None
    missing = cpu.lacks(binary.distribution, binary.version, os.uname().machine, cpu.this_machine())
    if not missing:
        return None
    wheel = f"{binary.distribution} {binary.version}"
    return f"the llama-server of the wheel {wheel} needs instructions that this processor lacks: {', '.join(missing)}"


def what_to_install(platform: str, machine: str, glibc: tuple[int, int] | None) -> str:
    """The next step for somebody without a llama-server, on such a machine (None: not glibc)."""
    if (platform, machine) == ("darwin", "arm64"):
        return "run `pip install 'queenright[engine]'`, or `make setup` in a checkout"
    if platform != "linux" or machine not in EXTRA_GLIBC:
        return f"install llama.cpp (no package brings a ready-made server for {platform} {machine})"
    if glibc is not None and glibc >= EXTRA_GLIBC[machine]:
        return "run `pip install 'queenright[engine]'`, or `make setup` in a checkout"
    if glibc is not None and glibc >= XLLAMACPP_GLIBC:
        return f"run `pip install {XLLAMACPP_PIN}`"
    here = ".".join(map(str, glibc)) if glibc else "another C library"
    needed = ".".join(map(str, XLLAMACPP_GLIBC))
    return f"install llama.cpp (the ready-made servers need glibc {needed}, here is {here})"


def glibc_version() -> tuple[int, int] | None:
    """The version of the running glibc, None with another C library (confstr(3))."""
    try:
        name, _, version = (os.confstr("CS_GNU_LIBC_VERSION") or "").partition(" ")
        major, minor = version.split(".")[:2]
    except (ValueError, OSError):
        return None
    return (int(major), int(minor)) if name == "glibc" else None
