"""The pin: which build of the engine's programs this process would run.

Two processes share an engine only if their pins are equal. A program out of a wheel is its distribution and version;
any other program is its content: size and mtime alone repeat when a build replaces another.

A llama-server of today is a launcher of some kilobytes beside its libraries, so the fingerprint covers llama.cpp's
libraries around it as well. What it cannot cover: libraries that only LD_LIBRARY_PATH leads to, and what a wrapper
script starts.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from supervisor.errors import EngineBinaryError
from workers.cache import cache_root, make_directory, write_whole

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from workers.engines import Binary

BUILT_IN_PROTOCOL: Final = 1
"""What the built-in proxy and its clients agree on. Raise it when an older keeper could not work with a newer proxy."""

LIBRARY_PREFIXES: Final = ("libllama", "libggml", "libmtmd")
LIBRARY_PLACES: Final = (".", "../lib", "../lib64")
"""Where a llama-server's libraries lie, from its own directory: release archives and wheels, `make install`."""

RACY_NS: Final = 2_000_000_000
"""Nanoseconds. A file changed this recently can change again within one tick of its timestamps, so its fingerprint is
not remembered (as git does with its index)."""

MOST_REMEMBERED: Final = 1024
"""Entries kept. A user has a handful of binaries and models; a developer makes a new one every hour."""


ELF: Final = b"\x7fELF"
"""How a program that is no script begins (elf(5))."""

SCRIPT: Final = b"#!"


class Pin(NamedTuple):
    """The identity of an engine build: the server's and the proxy's."""

    llama_server: str
    proxy: str

    def render(self) -> str:
        """The pin as one string, without blanks: what is compared, recorded and shown."""
        return f"llama-server={self.llama_server};proxy={self.proxy}"


def pin_of(llama_server: Binary, proxy: Binary) -> Pin:
    """The pin of an engine made of these two programs.

    Under a millisecond when the fingerprints are remembered, else as long as hashing takes (200 MB: 0.2 s, measured).
    Raises EngineBinaryError when a program cannot be read.
    """
    return Pin(identity(llama_server), identity(proxy))


def identity(binary: Binary) -> str:
    """One program's identity. Raises EngineBinaryError."""
    from workers.engines import Kind

    if binary.kind is Kind.BUILT_IN_PROXY:
        return f"built-in/{BUILT_IN_PROTOCOL}"
    if binary.distribution:
        return f"{binary.distribution}=={binary.version}"
    try:
        path = binary.path.resolve(strict=True)
        files = [path, *(libraries(path.parent) if binary.kind is Kind.LLAMA_SERVER else ())]
        return f"sha256:{_fingerprint(files)}"
    except OSError as error:
        raise EngineBinaryError(
            f"the {binary.kind} {binary.path} cannot be read: {error.strerror}", "check its path and permissions"
        ) from None


def of_program(path: Path) -> str:
    """The identity of any other program: its content alone. Raises OSError."""
    return f"sha256:{_fingerprint([path.resolve(strict=True)])}"


def remembered(what: str, path: Path, find: Callable[[], str]) -> str:
    """What `find` says of the file at `path`, found once and then kept in the user's cache for as long as stat(2) tells
    the same of that file. `what` names the question and all else that the answer depends on. Raises what `find` raises;
    then nothing is kept, and nothing is of an empty answer."""
    memory = _Memory()
    found = memory.answer(what, path, find)
    memory.save()
    return found


def asked_once(what: str, binary: Binary, ask: Callable[[], str]) -> str:
    """`remembered` of what a program says of itself, which takes 20 ms and more in each process that binds. A script is
    asked each time: what it runs may change and the script stay. Raises what `ask` raises."""
    is_program = bool(binary.distribution) or _begins(binary, ELF)
    return remembered(what, binary.path, ask) if is_program else ask()


def is_script(binary: Binary) -> bool:
    """Whether it is somebody's script (execve(2)), and so no llama-server itself, whatever it prints. One of a wheel that we
    know is none."""
    return not binary.distribution and _begins(binary, SCRIPT)


def _begins(binary: Binary, with_what: bytes) -> bool:
    with suppress(OSError), binary.path.open("rb") as file:
        return file.read(len(with_what)) == with_what
    return False


def places(beside: Path) -> list[Path]:
    """The directories around a program in which llama.cpp's shared libraries are looked for."""
    return [beside / place for place in LIBRARY_PLACES]


def libraries(beside: Path) -> list[Path]:
    """llama.cpp's shared libraries around a program, each file once, in an order that does not depend on the disk."""
    found: dict[Path, None] = {}
    for directory in places(beside):
        with suppress(OSError):
            for name in sorted(os.listdir(directory)):
                if name.startswith(LIBRARY_PREFIXES) and (".so" in name or name.endswith(".dylib")):
                    found[(directory / name).resolve()] = None
    return [path for path in found if path.is_file()]


def _fingerprint(files: list[Path]) -> str:
    """SHA-256 over the files' names and contents. The directory they lie in does not matter: a copy is the same."""
    memory = _Memory()
    whole = hashlib.sha256()
    for path in files:
        whole.update(f"{path.name}\0{memory.content_hash(path)}\n".encode("utf-8", "surrogateescape"))
    memory.save()
    return whole.hexdigest()


class _Memory:
    """Content hashes and other answers in the user's cache, by everything that stat(2) tells of a file. Losing it costs
    a hash, or asking again."""

    def __init__(self) -> None:
        self._path = cache_root() / "fingerprints.json"
        self._entries: dict[str, str] = {}
        self._changed = False
        with suppress(OSError, ValueError):
            read: Any = json.loads(self._path.read_bytes())
            if isinstance(read, dict) and all(isinstance(value, str) for value in read.values()):
                self._entries = read

    def content_hash(self, path: Path) -> str:
        """The file's SHA-256. Raises OSError."""
        key = _key(path.stat())
        if key in self._entries:
            return self._entries[key]
        with path.open("rb") as file:
            before = os.fstat(file.fileno())
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            after = os.fstat(file.fileno())
        self._keep(_key(after), digest, before, after)
        return digest

    def answer(self, what: str, path: Path, find: Callable[[], str]) -> str:
        """What `find` says, or said of the same file."""
        try:
            before = path.stat()
        except OSError:
            return find()  # it has the words for what is wrong
        key = f"{_key(before)}:{what}"
        if key in self._entries:
            return self._entries[key]
        found = find()
        if found:
            with suppress(OSError):
                self._keep(key, found, before, path.stat())
        return found

    def _keep(self, key: str, value: str, before: os.stat_result, after: os.stat_result) -> None:
        """Remember it, if the file did not change and will not change unseen."""
        quiet = time.time_ns() - max(after.st_mtime_ns, after.st_ctime_ns) > RACY_NS
        if _key(before) == _key(after) and quiet and stat.S_ISREG(after.st_mode):
            self._entries[key] = value
            self._changed = True

    def save(self) -> None:
        """Remember what is new. Two savers at once: the later one wins, and the other's entries are hashed again."""
        if not self._changed:
            return
        newest = dict(list(self._entries.items())[-MOST_REMEMBERED:])
        with suppress(OSError):  # a cache that cannot be written makes this slow, not wrong
            make_directory(self._path.parent)
            write_whole(self._path, json.dumps(newest).encode())


def _key(status: os.stat_result) -> str:
    fields = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    return ":".join(map(str, fields))
