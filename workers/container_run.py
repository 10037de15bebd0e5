"""`podman run` and `docker run` as the command of a group: what is added to their words, and what these may not say."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from workers import container

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from supervisor.kinds import Birth

ENGINES: Final = frozenset({"podman", "docker", "nerdctl"})
FLAGS: Final = frozenset(
    {
        "--rm",
        "--init",
        "--privileged",
        "--read-only",
        "-i",
        "-t",
        "--interactive",
        "--tty",
        "-P",
        "--publish-all",
    }
    | {"--no-healthcheck", "-q", "--quiet", "--oom-kill-disable"}
    | {"--disable-content-trust", "--use-api-socket"}  # docker's
    | {"--env-host", "--http-proxy", "--no-hostname", "--no-hosts", "--passwd", "--read-only-tmpfs"}  # podman's
    | {"--replace", "--rmi", "--rootfs", "--tls-verify", "--unsetenv-all"}
)
"""Options of `run` that take no value, so that the word after one may be the image."""
REFUSED: Final = {
    "-d": "it has to stay in the foreground: its end is the container's",
    "--detach": "it has to stay in the foreground: its end is the container's",
    "--cidfile": "we give it ourselves",
    "--restart": "we restart it ourselves",
    "--sig-proxy": "its SIGTERM is the container's",
}
INSPECT: Final = 5.0  # budget: one `inspect`, which takes 20 ms; an engine that is busy with an image may take seconds
START_PERIOD: Final = "--health-start-period"
PROGRAM: Final = Path(container.__file__).resolve()


def is_run(argv: Sequence[str]) -> bool:
    """Whether these words start a container."""
    return len(argv) > 2 and Path(argv[0]).name in ENGINES and argv[1] == "run"


def problems(argv: Sequence[str], start_limit_s: float) -> Iterator[str]:
    """What such a command line may not say."""
    given = set(options(argv))
    for word in sorted(given & REFUSED.keys()):
        yield f"options.argv: {word}: leave it out, {REFUSED[word]}"
    if START_PERIOD not in given:
        return
    if "--health-cmd" not in given:  # podman then ignores it for the image's own check (podman 21476)
        yield f"options.argv: {START_PERIOD} is of no effect without --health-cmd: name that too"
    period = seconds(value_of(argv, START_PERIOD))
    if period is None or period >= start_limit_s:
        yield f"start_limit_s ({start_limit_s:g}) is not longer than {START_PERIOD} {value_of(argv, START_PERIOD)}"


def value_of(argv: Sequence[str], option: str) -> str:
    """What such an option is given."""
    for index, word in enumerate(argv):
        name, equals, value = word.partition("=")
        if name == option:
            return value if equals else "".join(argv[index + 1 : index + 2])
    return ""


def seconds(duration: str) -> float | None:
    """A duration as Go writes it (`1h30m`, `500ms`), which both engines take; None for what is none."""
    if not re.fullmatch(r"(?:\d+(?:\.\d+)?(?:ms|h|m|s))+", duration):
        return None
    units = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
    return sum(float(number) * units[unit] for number, unit in re.findall(r"([\d.]+)(ms|h|m|s)", duration))


def options(argv: Sequence[str]) -> Iterator[str]:
    """The names of the options before the image."""
    return (name for name, _ in pairs(argv))


def pairs(argv: Sequence[str]) -> Iterator[tuple[str, str]]:
    """The options before the image with their values, "" for those that take none. Of one letter there may be several in a
    word, and the last one's value may follow at once: `-dit`, `-p8080:80`."""
    words = iter(argv[2:])
    for word in words:
        if word == "--" or not word.startswith("-"):
            return
        if word.startswith("--"):
            name, equals, value = word.partition("=")
            takes = not equals and name not in FLAGS and name not in REFUSED
            yield name, next(words, "") if takes else value
            continue
        for at, letter in enumerate(word[1:], 2):
            if (name := f"-{letter}") not in FLAGS and name not in REFUSED:
                yield name, word[at:].removeprefix("=") or next(words, "")
                break
            yield name, ""


def name_of(argv: Sequence[str], slot: Path, group: str) -> str:
    """What the container is called: as the configuration says, else the same over generations."""
    given = next((value for name, value in pairs(argv) if name == "--name"), "")
    if given:
        return given
    return f"queenright-{group}-{hashlib.sha256(str(slot).encode()).hexdigest()[:8]}"


def leader(argv: Sequence[str], birth: Birth, group: str, variables: Iterable[str]) -> tuple[str, ...]:
    """The command line of the generation's leader. `variables` are handed on into the container, by name alone."""
    slot, given = slot_of(birth), set(options(argv))
    name = name_of(argv, slot, group)
    labels = {"slot": str(slot), "group": group, "generation": birth.generation}
    added = [word for key, value in labels.items() for word in ("--label", f"{container.LABEL}{key}={value}")]
    added += ["--cidfile", str(id_file(birth))]
    added += [] if "--name" in given else ["--name", name]
    added += [] if "--rm" in given else ["--rm"]
    added += [word for variable in sorted(variables) for word in ("--env", variable)]
    words = ["start", argv[0], name, str(slot), group, "--", "run", *added, *argv[2:]]
    return (sys.executable, "-I", "-S", str(PROGRAM), *words)


def undo(argv: Sequence[str], birth: Birth) -> tuple[str, ...]:
    """See kinds.Command."""
    return (sys.executable, "-I", "-S", str(PROGRAM), "undo", argv[0], birth.generation, str(id_file(birth)))


def slot_of(birth: Birth) -> Path:
    """The slot's directory."""
    return birth.config.parent.parent


def id_file(birth: Birth) -> Path:
    """Where the container engine writes the container's id; `run` refuses a file that is there."""
    return birth.config.with_suffix(".cid")


def pid_of(engine: str, birth: Birth, environment: Mapping[str, str]) -> int | None:
    """The first process of the generation's container, 0 where it runs and that cannot be told; None where none runs. It
    blocks, for INSPECT at most.

    Another pid namespace (a container engine in a virtual machine) has other numbers: a process is taken for the container's
    only if its control group is, which has the id in its name (podman's libpod-ID.scope, docker's docker-ID.scope or /docker/ID).
    """
    try:
        one = id_file(birth).read_text(encoding="ascii").strip()
        words = [engine, "inspect", "--format", "{{json .State}}", one]
        around = {**os.environ, **environment}
        done = subprocess.run(
            words, stdin=subprocess.DEVNULL, capture_output=True, env=around, timeout=INSPECT, check=False
        )
        state = json.loads(done.stdout)
        if not one or state["Running"] is not True:
            return None
        pid = int(state["Pid"])
    except (OSError, ValueError, LookupError, TypeError, subprocess.TimeoutExpired):
        return None
    try:
        return pid if pid > 0 and one in Path(f"/proc/{pid}/cgroup").read_text(encoding="utf-8") else 0
    except (OSError, ValueError):
        return 0
