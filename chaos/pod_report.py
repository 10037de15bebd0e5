"""What a run on a GPU machine came to: verdicts of its parts, of the GPU's memory, and what was not covered. Pure, but for
`machine`, which asks, and `write`, which writes and packs."""

from __future__ import annotations

import json
import platform
import tarfile
from collections.abc import Mapping
from contextlib import suppress
from importlib import metadata
from statistics import median
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from attrs import field, frozen

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from chaos.gpu import Held

ROOM: Final = 256 * 2**20
"""Bytes by which a GPU's memory may differ for nothing: contexts that a driver makes, a desktop's windows."""
BAND: Final = 0.10
"""Part above its middle that it may be at any look: while a server is replaced the old one's memory goes before the new one's
comes. A second copy of the model is 100 %."""
LOOKS_LEAST: Final = 3
JUDGED: Final = ("soak", "agents")
"""Parts with a verdict of their own; the others are measured or not."""

NOT_COVERED: Final = (
    "architectures: other models than those of the configuration, and other ways of splitting them over GPUs",
    "prompt lengths: other than those of the sweep, the quants and the agents; no prompt fills a large context",
    "hardware: other GPUs, drivers and machines than this one; nothing of it is about power or heat",
    "sequences: other numbers of requests at once than those of the sweep; callers on other machines",
    "time: hours, not weeks",
)


class Watched(NamedTuple):
    """What NVML said before, at each look while a part ran, and after it."""

    before: Held
    used: Sequence[int | None]
    after: Held


@frozen
class Part:
    """One part. `verdict`: holds, broken, unknown, measured (there is nothing to judge), or skipped; `why` for all but holds.
    `gpu` are the verdicts on the GPU's memory by claim, empty where there is none. `not_covered` is what it says itself."""

    name: str
    verdict: str
    why: str = ""
    seconds: float = 0.0
    gpu: Mapping[str, tuple[str, str]] = field(factory=dict)
    not_covered: tuple[str, ...] = ()


def judged(name: str, status: int, said: str, seconds: float, watched: Watched) -> Part:
    """A part that ran, by its exit status and what it said; a part that says nothing has shown nothing."""
    data: dict[str, Any] = {}
    with suppress(ValueError):
        loaded = json.loads(said)
        data = loaded if isinstance(loaded, dict) else {}
    verdict, why = "measured", ""
    if name in JUDGED:
        verdict = str(data.get("verdict", "unknown"))
        why = "" if verdict == "holds" else f"exit status {status}; see {name}/ and {name}.stderr"
    if status != 0 and verdict in ("measured", "holds"):
        verdict, why = "broken", f"exit status {status}; see {name}.stderr"
    elif not data:
        verdict, why = "unknown", f"it said nothing that can be read; see {name}.stdout and {name}.stderr"
    told = data.get("not_covered", ())
    not_covered = (told,) if isinstance(told, str) else tuple(map(str, told))
    return Part(name, verdict, why, seconds, gpu_verdicts(watched), not_covered)


def is_as_before(before: Held, after: Held) -> bool:
    """Whether the GPUs hold what they held; also where nobody can say."""
    return before.total is None or after.total is None or abs(after.total - before.total) <= ROOM


def gpu_verdicts(watched: Watched) -> dict[str, tuple[str, str]]:
    """The claims about GPU memory while a part ran. Empty without a GPU; unknown where one cannot be read."""
    before, after = watched.before, watched.after
    if before.is_absent:
        return {}
    used = [one for one in watched.used if one is not None]
    if before.total is None or after.total is None or len(used) < LOOKS_LEAST or len(used) < len(watched.used):
        why = before.why or after.why or f"NVML answered {len(used)} of {len(watched.used)} times"
        return dict.fromkeys(("was used", "never twice", "given back"), ("unknown", why))
    busy = [one for one in used if one - before.total > ROOM]
    if not busy:
        told = f"never more than {_mib(max(used))}, and {_mib(before.total)} before: the engine was not on the GPU"
        found = {"was used": ("broken", told), "never twice": ("unknown", "it was not used")}
    else:
        middle, most = median(busy), max(busy)
        room = max(ROOM, BAND * (middle - before.total))
        told = f"{_mib(middle)} in the middle, {_mib(most)} at the most, {_mib(room)} above it is allowed"
        found = {
            "was used": ("holds", f"{_mib(middle)}, and {_mib(before.total)} before"),
            "never twice": ("holds" if most <= middle + room else "broken", told),
        }
    told = f"{_mib(before.total)} before, {_mib(after.total)} after, {_mib(ROOM)} either way is the most"
    return found | {"given back": ("holds" if is_as_before(before, after) else "broken", told)}


def _mib(size: float) -> str:
    return f"{size / 2**20:.0f} MiB"


# --- the report -----------------------------------------------------------------------------------------------------


def machine(held: Held) -> dict[str, Any]:
    """What this is: cores, kernel, GPUs with their driver, and which llama-server would run."""
    from chaos.bench_report import machine as here
    from supervisor.devices.survey import survey
    from supervisor.errors import QueenrightError
    from workers import engines

    seen = survey()
    try:
        server = engines.find_llama_server()
        found = f"{server.path} {server.version}".strip()
    except QueenrightError as error:
        found = f"none: {error.what}"
    return {
        "machine": here().line,
        "python": platform.python_version(),
        "queenright": metadata.version("queenright"),
        "memory": seen.host.total.bytes,
        "gpus": list(held.names),
        "gpu_why": held.why,
        "driver": seen.driver,
        "llama_server": found,
    }


def as_data(facts: dict[str, Any], parts: Sequence[Part], *, command: Sequence[str]) -> dict[str, Any]:
    """All of it. `verdict` is the worst of everything that was judged; what was skipped is said, and does not count."""
    words = [part.verdict for part in parts if part.verdict != "skipped"]
    words += [verdict for part in parts for verdict, _ in part.gpu.values()]
    ran = [word for word in words if word != "measured"]
    verdict = next((word for word in ("broken", "unknown") if word in ran), "holds" if words else "unknown")
    skipped = [f"{part.name}: {part.why}" for part in parts if part.verdict == "skipped"]
    if not facts["gpus"] and not any(part.gpu for part in parts):
        skipped.append(f"GPU memory, in every part: {facts['gpu_why']}")
    not_covered = list(NOT_COVERED) + [f"{part.name}: {one}" for part in parts for one in part.not_covered]
    return {
        "command": list(command),
        **facts,
        "verdict": verdict,
        "parts": [
            {"name": one.name, "verdict": one.verdict, "why": one.why, "seconds": one.seconds,
             "gpu": {claim: {"verdict": verdict, "seen": seen} for claim, (verdict, seen) in one.gpu.items()}}
            for one in parts
        ],
        "skipped": skipped,
        "not_covered": not_covered,
    }  # fmt: skip


def text(data: dict[str, Any]) -> str:
    """For people, and as report.md."""
    gpus = ", ".join(data["gpus"]) or f"none ({data['gpu_why']})"
    lines = [
        f"# {data['verdict']}" + ("" if data["gpus"] else ", and not on a GPU"),
        "",
        f"    {' '.join(data['command'])}",
        "",
        f"* {data['machine']}; queenright {data['queenright']}",
        f"* GPU: {gpus}" + (f"; driver {data['driver']}" if data["driver"] else ""),
        f"* llama-server: {data['llama_server']}",
        "",
        "## Parts",
        "",
    ]
    for part in data["parts"]:
        why = f": {part['why']}" if part["why"] else ""
        lines.append(f"* **{part['name']}**: {part['verdict']}{why} ({part['seconds']:.0f} s)")
        lines += [f"    * GPU memory {claim}: {one['verdict']}: {one['seen']}" for claim, one in part["gpu"].items()]
    lines += ["", "## Skipped", "", *(f"* {one}" for one in data["skipped"] or ["nothing"])]
    lines += ["", "## Not covered", "", *(f"* {one}" for one in data["not_covered"])]
    return "\n".join(lines) + "\n"


def write(out: Path, data: dict[str, Any]) -> Path:
    """report.json and report.md into the directory, and all of that into one file beside it: its path."""
    (out / "report.json").write_text(json.dumps(data, indent=1), encoding="utf-8")
    (out / "report.md").write_text(text(data), encoding="utf-8")
    packed = out.with_name(f"{out.name}.tar.gz")
    with tarfile.open(packed, "w:gz") as archive:
        archive.add(out, arcname=out.name)
    return packed
