"""`bench quants`: two files of a model, with the same text at the same depths: speed and memory, one against the other.

One at a time, in turn, each time in a fresh engine: so each has the machine to itself, and what it holds can be told from
what the other one holds. The speeds are the server's own `timings`: proxy and HTTP are not in them. Depth is how many
tokens of context stand before what is measured (as `-d` of llama-bench).
"""

from __future__ import annotations

import http.client
import json
import random
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from attrs import asdict, evolve, frozen

from chaos import bench_rig as rig
from chaos import bench_sweep, gpu, measuring, observer
from chaos.measuring import Figure
from supervisor import resolving, wording

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from chaos.bench_load import Target
    from supervisor.config_shape import Config
    from supervisor.slot import Slot

ANSWER_LIMIT: Final = 900.0  # budget: a prompt of 32 thousand tokens at 40 tokens/s, as a CPU reads a model of 8 B
DEPTHS: Final = (0, 512)
PROMPT: Final = 128
TOKENS: Final = 32
ROUNDS: Final = 3
SPARE: Final = 64
"""Tokens of context beyond what is asked for: a server keeps some for itself."""
VOCABULARY: Final = (
    "amber", "bee", "clover", "drone", "ember", "field", "garden", "honey", "iris", "jelly", "keeper", "linden",
    "meadow", "nectar", "orchard", "pollen", "queen", "rose", "sage", "thyme", "umbel", "vetch", "willow", "yarrow",
)  # fmt: skip


@frozen
class Measured:
    """One file at one depth, once. Tokens a second; `read` is how many tokens of prompt the server computed: more than asked
    for means that it did not keep what stood before."""

    prompt: float
    generation: float
    read: int


@frozen
class Visit:
    """One engine with one file: what was measured, and what it held in the end (bytes; None without a GPU)."""

    depths: dict[int, Measured]
    memory: int
    device: int | None


@frozen
class Compared:
    """The result. `visits` are in the order they were made; the figures are ratios, of the second file to the first one."""

    files: tuple[str, str]
    sizes: tuple[int, int]
    visits: tuple[tuple[Visit, ...], tuple[Visit, ...]]
    figures: tuple[Figure, ...]


def text(words: int) -> str:
    """The same for every file and every run."""
    chance = random.Random(1)
    return " ".join(chance.choice(VOCABULARY) for _ in range(words))


def wanted(path: Path, role: str, model: Path, context: int) -> Config:
    """The configuration's group of that role with this file in it, one sequence, and room for the deepest. Raises ConfigError."""
    config = bench_sweep.wanted(path, role, 0)
    ((name, group),) = config.groups.items()
    launch = next(one for one in group.launches if one.role == role)
    launch = evolve(launch, model=str(model.resolve()), context=context, sequences=1, pool=0, least_context=0)
    groups = {name: evolve(group, launches=(launch,))}
    return evolve(config, groups=groups, gateway=evolve(config.gateway, enabled=False))


def measure(
    path: Path, slot: Slot, role: str, files: tuple[Path, Path], depths: Sequence[int], rounds: int,
    tell: Callable[[str, int, int], None], *, tokens: int = TOKENS,
) -> Compared:  # fmt: skip
    """Run one engine after the other in `slot`. Raises QueenrightError for what cannot be measured."""
    visits: tuple[list[Visit], list[Visit]] = ([], [])
    context = max(depths) + PROMPT + tokens + SPARE
    for number in range(rounds):
        tell("quants", number, rounds)
        # Who is first takes turns: a machine that grows warm is then no advantage of one of them.
        for side in (0, 1) if number % 2 == 0 else (1, 0):
            visits[side].append(_visit(wanted(path, role, files[side], context), slot, role, depths, tokens))
    tell("quants", rounds, rounds)
    names = (files[0].name, files[1].name)
    sizes = (files[0].stat().st_size, files[1].stat().st_size)
    return Compared(names, sizes, (tuple(visits[0]), tuple(visits[1])), tuple(figures(names, visits[0], visits[1])))


def figures(names: tuple[str, str], first: Sequence[Visit], second: Sequence[Visit]) -> list[Figure]:
    """Ratios of the second to the first, round by round: of the time that a token takes, and of memory."""
    found = []
    for depth in first[0].depths:
        for what in ("prompt", "generation"):
            pairs = [
                (1 / getattr(two.depths[depth], what), 1 / getattr(one.depths[depth], what))
                for one, two in zip(first, second, strict=True)
            ]
            name = f"{names[1]}: time per token, {what} at depth {depth}"
            found.append(measuring.ratio_figure("quants", name, names[0], pairs))
    return found


def _visit(config: Config, slot: Slot, role: str, depths: Sequence[int], tokens: int) -> Visit:
    before = gpu.look().total
    spec = resolving.resolve(config)
    with rig.engine(slot, spec):
        group = spec.groups[0].name
        target = bench_sweep.server_of(slot, group, role)
        ids = _ids(target, max(depths) + PROMPT)
        _completion(target, ids[:PROMPT], tokens)  # for nothing: mapped weights are read
        found = {}
        for depth in depths:
            if depth:
                _completion(target, ids[:depth], 1)
            found[depth] = _timed(_completion(target, ids[: depth + PROMPT], tokens, keep=bool(depth)))
        # Not PSS: that would be less for a file which somebody else has mapped, too.
        held = sum(rig.memory_mebibytes(one.pid, "Rss") for one in observer.look(slot).servers.get(group, ()))
        after = gpu.look().total
    return Visit(found, int(held * 2**20), None if before is None or after is None else after - before)


def _ids(target: Target, count: int) -> list[int]:
    """So many tokens of the text. Raises NotMeasuredError."""
    words = count
    for _ in range(3):
        found = list(_ask(target, "/tokenize", {"content": text(words)})["tokens"])
        if len(found) >= count:
            return found[:count]
        words *= 2
    raise rig.NotMeasuredError(f"the server made only {len(found)} tokens of {words // 2} words")


def _completion(target: Target, ids: list[int], tokens: int, *, keep: bool = True) -> dict[str, Any]:
    body = {
        "prompt": ids,
        "n_predict": tokens,
        "temperature": 0,
        "ignore_eos": True,
        "cache_prompt": keep,
        "id_slot": 0,
    }
    return _ask(target, "/completion", body)


def _timed(answer: dict[str, Any]) -> Measured:
    timings = answer.get("timings") or {}
    try:
        read, took = timings["prompt_n"], timings["prompt_ms"]
        made, spent = timings["predicted_n"], timings["predicted_ms"]
        return Measured(1000 * read / took, 1000 * made / spent, read)
    except (KeyError, ZeroDivisionError):
        raise rig.NotMeasuredError(f"the server tells no times: {json.dumps(timings)[:200]}") from None


def _ask(target: Target, path: str, body: dict[str, Any]) -> dict[str, Any]:
    connection = http.client.HTTPConnection(target.host, target.port, timeout=ANSWER_LIMIT)
    try:
        headers = {"Content-Type": "application/json"}
        if target.key:
            headers["Authorization"] = f"Bearer {target.key}"
        connection.request("POST", path, json.dumps(body), headers)
        answer = connection.getresponse()
        said = answer.read()
    except (OSError, http.client.HTTPException) as error:
        raise rig.NotMeasuredError(f"the server did not answer {path}: {error}") from error
    finally:
        connection.close()
    if answer.status != 200:
        raise rig.NotMeasuredError(
            f"the server answered {path} with {answer.status}: {said.decode('utf-8', 'replace')[:300]}"
        )
    return dict(json.loads(said))


# --- what is said ---------------------------------------------------------------------------------------------------

NOT_COVERED: Final = (
    "what the answers are worth (perplexity, tasks); more than one sequence; depths other than these; batch sizes and"
    " cache types other than the configuration's"
)


def table(compared: Compared) -> str:
    """For people."""
    first, second = compared.visits
    rows = [("", compared.files[0], compared.files[1], "second / first", "95 % interval")]
    ratios = iter(compared.figures)
    for depth in first[0].depths:
        for what in ("prompt", "generation"):
            figure = next(ratios)
            rates = [median(getattr(one.depths[depth], what) for one in side) for side in (first, second)]
            # The figure is of times, and the table of rates.
            row = (f"{1 / figure.value:.2f}x", f"{1 / figure.high:.2f} to {1 / figure.low:.2f}")
            rows.append((f"{what}, depth {depth}, tokens/s", f"{rates[0]:.1f}", f"{rates[1]:.1f}", *row))
    rows.append(_sizes("file, MiB", list(compared.sizes)))
    rows.append(_sizes("server's memory, MiB", [median(one.memory for one in side) for side in (first, second)]))
    device = [[one.device for one in side if one.device is not None] for side in (first, second)]
    if all(device):
        rows.append(_sizes("GPU memory, MiB", [median(side) for side in device]))
    return wording.table(rows)


def _sizes(what: str, both: Sequence[float]) -> tuple[str, str, str, str, str]:
    ratio = f"{both[1] / both[0]:.2f}x" if both[0] else "-"
    return what, f"{both[0] / 2**20:.0f}", f"{both[1] / 2**20:.0f}", ratio, ""


def as_data(compared: Compared) -> dict[str, Any]:
    """For programs."""
    return {
        "files": list(compared.files),
        "sizes": list(compared.sizes),
        "visits": [[asdict(one) for one in side] for side in compared.visits],
        "figures": [asdict(one) for one in compared.figures],
        "not_covered": NOT_COVERED,
    }
