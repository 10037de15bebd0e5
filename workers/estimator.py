"""llama.cpp's own estimate of what a launch takes, with nothing loaded: by `llama-fit-params` where it lies beside the
llama-server, else by the wheel xllamacpp (workers/xllamacpp_fit.py), where that is installed.

Asked in a process of its own, with a time limit: llama.cpp aborts over a model that it cannot read, and a driver may hang.
That nothing came of it is *unknown*, and never says anything of the model. Answers are kept in the cache by the estimator,
the model's files and the flags; a damaged entry is none.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from attrs import field, frozen

from supervisor.errors import EngineBinaryError
from workers import outside, wheels
from workers.cache import cache_root, make_directory, write_whole

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

# budget: 0.2 to 0.6 s of a core (measured: SmolLM2, gemma), ten times that on a busy machine or with a driver to wake. Two
# of them are below PLANNING_WAIT, for which others who plan wait.
ESTIMATE_LIMIT: Final = 10.0

SILENT_FOR: Final = 60.0
# budget: for which one that said nothing in its time is not asked again: a start that waits for memory plans again and again,
# with the book of promises locked, and would wait ESTIMATE_LIMIT each time. A driver that was waking is awake by then.

VARIABLE: Final = "QUEENRIGHT_ESTIMATOR"
"""Environment variable: the path of a llama-fit-params, or `none` to do without any."""

PROGRAM: Final = "llama-fit-params"
WHEEL: Final = "xllamacpp"
XLLAMACPP_FIT: Final = Path(__file__).resolve().with_name("xllamacpp_fit.py")

MIB: Final = 1 << 20
FOLDER: Final = "estimates"
VERSION: Final = 1
MOST_KEPT: Final = 256
"""Answers in the cache, of some hundred bytes each; the oldest go."""

_LINE: Final = re.compile(r"(\S+) (\d+) (\d+) (\d+) *")
HOST: Final = "Host"
"""llama.cpp's name for system memory, the last line."""

_NO_CORE: Final = ("/bin/sh", "-c", 'ulimit -c 0 2>/dev/null; exec "$@"', "sh")
"""It aborts by design here: that must leave no core file."""


class NoEstimateError(Exception):
    """There is no estimate, and why. Never a reason to refuse anything."""


class TookTooLongError(NoEstimateError):
    """It said nothing in its time, and would not the next time."""


@frozen
class Estimator:
    """Who is asked. `identity` changes with its content; `knows` are its flags, empty where they are llama-server's."""

    name: str
    argv: tuple[str, ...]
    identity: str
    knows: frozenset[str] = field(factory=frozenset, repr=False)


class Part(NamedTuple):
    """What lies on one device (llama.cpp's name for it, HOST for system memory), in whole MiB, rounded down."""

    device: str
    model: int
    context: int
    compute: int


class Estimate(NamedTuple):
    """An answer: each device's part, the host's last. `by` names who gave it."""

    by: str
    parts: tuple[Part, ...]


_silent: dict[str, float] = {}
"""Until when (monotonic) an estimator is not asked, by its identity."""


def find(server: Sequence[str]) -> Estimator:
    """The estimator for a llama-server of these words. Raises NoEstimateError where there is none."""
    named = os.environ.get(VARIABLE, "").strip()
    if named == "none":
        raise NoEstimateError(f"${VARIABLE} says to do without")
    beside = Path(named or os.path.join(os.path.dirname(os.path.realpath(next(iter(server), ""))), PROGRAM))
    if (named or server) and os.access(beside, os.X_OK) and beside.is_file():
        return _program(beside)
    if named:
        raise NoEstimateError(f"{named}, named by ${VARIABLE}, cannot be run")
    if (found := wheels.find(WHEEL)) is None:
        raise NoEstimateError(f"neither {PROGRAM} beside the llama-server nor the wheel {WHEEL} is installed")
    version = found.version
    return Estimator(f"{WHEEL} {version}", (sys.executable, "-P", str(XLLAMACPP_FIT)), f"{WHEEL}=={version}")


def _program(path: Path) -> Estimator:
    from workers import pins
    from workers.engines import Binary, Kind, Origin

    binary = Binary(path, Origin.PATH, Kind.LLAMA_SERVER)  # its libraries are a server's
    try:
        identity = pins.identity(binary)
        text = pins.asked_once(f"{path} --help ({identity})", binary, lambda: _help(path))
    except (EngineBinaryError, OSError, subprocess.TimeoutExpired) as error:
        raise NoEstimateError(f"{path} cannot be asked: {error}") from None
    knows = frozenset(re.findall(r"(?<![\w-])(--?[A-Za-z][\w-]*)", text))
    if "--fit-print" not in knows:
        raise NoEstimateError(f"{path} has no --fit-print: it is of an older build")
    return Estimator(PROGRAM, (str(path),), identity, knows)


def _help(path: Path) -> str:
    done = outside.ask([str(path), "--help"], ESTIMATE_LIMIT, {})
    return (done.stdout + done.stderr).decode(errors="replace")


def ask(
    estimator: Estimator,
    model: Sequence[Path],
    flags: Sequence[Sequence[str]],
    environment: Mapping[str, str],
    *,
    limit: float | None = None,
) -> Estimate:
    """The estimate for a model (its files, the first one first) with these flags, each with its value; out of the cache
    where the same was asked before. `environment` is what the launch's group adds to it. Blocks for `limit` seconds at
    most (ESTIMATE_LIMIT by default). Raises NoEstimateError."""
    words = [word for flag in flags if not estimator.knows or flag[0] in estimator.knows for word in flag]
    if estimator.knows:
        if missing := [flag[0] for flag in flags if _decides(flag) and flag[0] not in estimator.knows]:
            raise NoEstimateError(f"{estimator.name} has no {', '.join(missing)}")
        words += ["--fit-print", "on"]
    key = _key(estimator, model, words, environment)
    if (known := _kept(key)) is not None:
        return Estimate(estimator.name, known)
    if time.monotonic() < _silent.get(estimator.identity, 0.0):
        raise TookTooLongError(f"{estimator.name} said nothing in its time a moment ago")
    parts = _run(estimator, [*estimator.argv, "--model", str(model[0]), *words], environment, limit or ESTIMATE_LIMIT)
    _keep(key, parts)
    return Estimate(estimator.name, parts)


_DECIDING: Final = frozenset({"--parallel", "--kv-unified", "--cache-type-k", "--cache-type-v", "--n-cpu-moe"})
"""What an estimate without would be one of something else."""


def _decides(flag: Sequence[str]) -> bool:
    return flag[0] in _DECIDING and tuple(flag) != ("--parallel", "1")  # its default


def _run(
    estimator: Estimator, words: Sequence[str], environment: Mapping[str, str], limit: float
) -> tuple[Part, ...]:  # fmt: skip
    try:
        done = outside.ask([*_NO_CORE, *words], limit, environment)
    except subprocess.TimeoutExpired:
        _silent[estimator.identity] = time.monotonic() + SILENT_FOR
        raise TookTooLongError(f"{estimator.name} said nothing within {limit:g} s") from None
    except OSError as error:
        raise NoEstimateError(f"{estimator.name} does not run: {error.strerror}") from None
    if done.returncode:
        raise NoEstimateError(f"{estimator.name} made none ({_last_words(done.returncode, done.stderr)})")
    if not (parts := parse(done.stdout.decode(errors="replace"))):
        raise NoEstimateError(f"{estimator.name} printed something else than an estimate")
    return parts


def parse(text: str) -> tuple[Part, ...]:
    """The devices of an answer; empty where it is none. The host's line ends it."""
    parts = []
    for line in text.splitlines():
        if (match := _LINE.fullmatch(line)) is not None:
            parts.append(Part(match[1], *map(int, match.groups()[1:])))
    return tuple(parts) if parts and parts[-1].device == HOST else ()


def _last_words(status: int, stderr: bytes) -> str:
    """Why it ended so, in its own words: the last line that tells of an error."""
    lines = [line.strip() for line in stderr.decode(errors="replace").splitlines()]
    telling = [line for line in lines if re.search(r"\b(error|failed|unknown|invalid)\b", line, re.IGNORECASE)]
    end = f"signal {-status}" if status < 0 else f"exit status {status}"
    # The first one says more than what comes of it: "unknown model architecture", and then that it did not load.
    return f"{end}: {telling[0][:160]}" if telling else end


# --- the cache


def _key(
    estimator: Estimator, model: Sequence[Path], words: Sequence[str], environment: Mapping[str, str]
) -> list[Any]:  # fmt: skip
    """Raises NoEstimateError for a model that is not there (any more)."""
    files = []
    try:
        for path in model:
            seen = path.stat()
            files.append([seen.st_dev, seen.st_ino, seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns])
    except OSError as error:
        raise NoEstimateError(f"{error.filename}: {error.strerror}") from None
    # A digest, for an environment may hold secrets.
    around = hashlib.sha256(json.dumps(sorted(environment.items())).encode()).hexdigest()
    return [estimator.identity, files, list(words), around]


def _place(key: list[Any]) -> Path:
    return cache_root() / FOLDER / f"{hashlib.sha256(json.dumps(key).encode()).hexdigest()[:24]}.json"


def _kept(key: list[Any]) -> tuple[Part, ...] | None:
    try:
        said = json.loads(_place(key).read_bytes())
        if said["version"] != VERSION or said["key"] != key:
            return None
        parts = tuple(Part(str(name), *map(int, sizes)) for name, *sizes in said["parts"])
    except (OSError, ValueError, LookupError, TypeError, ArithmeticError, RecursionError):
        return None
    is_whole = (
        parts and parts[-1].device == HOST and all(min(one.model, one.context, one.compute) >= 0 for one in parts)
    )
    return parts if is_whole else None


def _keep(key: list[Any], parts: Iterable[Part]) -> None:
    """That it cannot be written is no error: it is asked again then."""
    place = _place(key)
    rows = [[one.device, one.model, one.context, one.compute] for one in parts]
    with suppress(OSError):
        make_directory(place.parent)
        write_whole(place, json.dumps({"version": VERSION, "key": key, "parts": rows}).encode())
        kept = sorted(place.parent.glob("*.json"), key=lambda path: path.stat().st_mtime)
        for old in kept[:-MOST_KEPT]:
            old.unlink(missing_ok=True)
