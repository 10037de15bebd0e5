"""What still points at a file: configurations, manifests, and processes that have it open or mapped."""

from __future__ import annotations

import json
import os
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attrs import frozen

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


@frozen
class Pointer:
    """`where` names a file or a process, `how` says what in it points, `value` with which words."""

    where: str
    how: str
    value: str = ""


def pointers(path: Path, documents: Iterable[Path]) -> list[Pointer]:
    """Everything that points at `path` in these TOML and JSON documents, and every process that uses it and that we may
    look into. Other users' processes are not seen without their rights."""
    found = [pointer for document in documents for pointer in _in_document(path, document)]
    return found + list(_in_processes(path))


def repointed(path: Path, to: str, document: Path) -> str | None:
    """The text of a TOML document with every value that names `path` naming `to` instead, comments and all the rest kept.
    None where there is one that cannot be replaced as text, or none."""
    text = before = document.read_text(encoding="utf-8")
    for pointer in _in_document(path, document):
        value = pointer.value
        option = "" if _is(document.parent, value, path) else value.partition("=")[0] + "="
        for quoted in (json.dumps(value, ensure_ascii=False), f"'{value}'"):
            text = text.replace(quoted, json.dumps(option + to, ensure_ascii=False))
    try:
        left = any(_same(document.parent, value, path) for _, value in _texts(tomllib.loads(text), ""))
    except tomllib.TOMLDecodeError:
        return None
    return None if left or text == before else text


def roots(contract: Path, name: str) -> list[Path]:
    """The configurations `name` of the directories that asked for the engine of a contract's record."""
    try:
        texts = list(_texts(json.loads(contract.read_text(encoding="utf-8")), ""))
    except (OSError, ValueError):
        return []
    return [Path(value) / name for key, value in texts if key.rpartition(".")[2] == "root" and value]


def _in_document(path: Path, document: Path) -> Iterator[Pointer]:
    try:
        text = document.read_text(encoding="utf-8")
        data = json.loads(text) if document.suffix == ".json" else tomllib.loads(text)
    except (OSError, ValueError):
        return
    for key, value in _texts(data, ""):
        if value and value != str(path.parent) and _same(document.parent, value, path):
            yield Pointer(str(document), key, value)


def _texts(value: Any, key: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        for name, each in value.items():
            yield from _texts(each, f"{key}.{name}" if key else str(name))
    elif isinstance(value, list):
        for number, each in enumerate(value):
            yield from _texts(each, f"{key}[{number}]")
    elif isinstance(value, str):
        yield key, value


def _same(base: Path, text: str, path: Path) -> bool:
    """Also as an argument's value (`--mmproj=/a/b`), and through links."""
    return any(_is(base, word, path) for word in {text, text.partition("=")[2]} if word and "\0" not in word)


def _is(base: Path, word: str, path: Path) -> bool:
    named = Path(os.path.abspath(base / os.path.expanduser(word)))
    return named == path or (named.name == path.name and os.path.realpath(named) == os.path.realpath(path))


def _in_processes(path: Path) -> Iterator[Pointer]:
    try:
        status = path.stat()
    except OSError:
        return
    for folder in Path("/proc").iterdir():
        if not folder.name.isdecimal() or int(folder.name) == os.getpid():
            continue
        try:
            how = _use(folder, path, status)
            if how:
                yield Pointer(f"pid {folder.name} ({(folder / 'comm').read_text().strip()})", how)
        except OSError:  # it ended, or is another user's
            continue


def _use(folder: Path, path: Path, status: os.stat_result) -> str:
    # The inode alone: on overlay and btrfs the device number of a mapping is not that of stat(2) (proc(5), "maps").
    for line in (folder / "maps").read_text(errors="surrogateescape").splitlines():
        fields = line.split(maxsplit=5)
        if len(fields) == 6 and fields[4] == str(status.st_ino) and os.path.basename(fields[5]) == path.name:
            return "has it mapped"
    for entry in (folder / "fd").iterdir():
        try:
            opened = entry.stat()
        except OSError:
            continue
        if (opened.st_dev, opened.st_ino) == (status.st_dev, status.st_ino):
            return "has it open"
    words = (folder / "cmdline").read_bytes().split(b"\0")
    return "names it on its command line" if os.fsencode(path) in words else ""
