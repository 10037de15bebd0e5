"""`bench ledger`: the memory planner against a real llama-server, cell by cell: what it reckons beside what the server
prints and what its process holds once its context is full.

Model and cache must be the server's own figures; compute buffers are reckoned from above; and what the process holds is
predicted from two cells and scored on the others, as a plan would after two boots.
"""

from __future__ import annotations

import json
import subprocess
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import product
from typing import TYPE_CHECKING, Any, Final

from attrs import asdict, frozen

from workers import calibration, printed
from workers.ending import end
from workers.planner import compute, kv
from workers.planner.kv import CacheType, Shape
from workers.planner.model import read_model
from workers.printed import Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from workers.planner.model import Model

MODEL: Final = "smollm2-135m"
CONTEXTS: Final = (512, 1024, 2048)
SEQUENCES: Final = (1, 2, 4, 8)
TYPES: Final = (CacheType.F16, CacheType.Q8_0)
LOAD_LIMIT = 120.0  # budget: a small model, on a machine that has much else to do
FILL_LIMIT = 900.0  # budget: 16,384 tokens of prompt at 20 a second
STOP_LIMIT = 10.0  # budget: it ends at once when nothing runs

LEAST_PROMPT: Final = 72
"""Tokens of the one prompt of a boot that is not to be filled."""

EXACT: Final = 0.01
"""Part by which model and cache may differ from the server's own lines, which are in hundredths of a MiB."""

HELD: Final = 0.08
"""Part by which the prediction of what the process holds may be off."""


@frozen
class Cell:
    """One boot. Bytes; `printed_` is the server's, `held` is PSS with the context full, `predicted` of it."""

    context: int
    sequences: int
    kind: str
    model: int
    printed_model: int
    cache: int
    printed_cache: int
    compute: int
    printed_compute: int
    held: int
    predicted: int = 0
    is_calibration: bool = False

    @property
    def planned(self) -> int:
        """All that is reckoned."""
        return self.model + self.cache + self.compute

    @property
    def misses(self) -> list[str]:
        """Which of the three goals it misses."""
        found = []
        for what, ours, theirs in (
            ("model", self.model, self.printed_model), ("cache", self.cache, self.printed_cache)
        ):  # fmt: skip
            if abs(ours - theirs) > EXACT * theirs:
                found.append(what)
        if self.compute < self.printed_compute:
            found.append("compute")
        if not self.is_calibration and abs(self.predicted - self.held) > HELD * self.held:
            found.append("held")
        return found


def measure(
    server: Sequence[str], path: Path, folder: Path, tell: Callable[[str, int, int], None], fill: bool = True
) -> list[Cell]:
    """Boot each cell, and fill its context unless told not to: caches are cleared when they are made, and held from then on,
    but the work space of a full batch is touched by a prompt only. Raises NotMeasuredError where the server does not start."""
    model = read_model(path)
    cells: list[Cell] = []
    wanted = list(product(TYPES, CONTEXTS, SEQUENCES))
    for kind, context, sequences in wanted:
        tell("ledger", len(cells), len(wanted))
        cells.append(_boot(server, path, folder, model, kind, context, sequences, fill))
    return predicted(cells)


def predicted(cells: list[Cell]) -> list[Cell]:
    """What each process holds, by the line through the smallest and the largest cell."""
    from attrs import evolve

    ends = (min(cells, key=lambda cell: cell.planned), max(cells, key=lambda cell: cell.planned))
    growth = calibration.fit({cell.planned: cell.held for cell in ends})
    assert growth is not None  # noqa: S101 - two different ones
    return [evolve(cell, predicted=growth.at(cell.planned), is_calibration=cell in ends) for cell in cells]


def _boot(
    server: Sequence[str],
    path: Path,
    folder: Path,
    model: Model,
    kind: CacheType,
    context: int,
    sequences: int,
    fill: bool,
) -> Cell:
    from chaos.bench_rig import NotMeasuredError
    from supervisor import ports
    from supervisor.devices.held import held

    port, log = ports.choose(None), folder / "server.log"
    argv = [
        *server, "--model", str(path), "--host", "127.0.0.1", "--port", str(port), "--ctx-size", str(context * sequences),
        "--parallel", str(sequences), "--no-kv-unified", "--cache-type-k", kind.value, "--cache-type-v", kind.value,
        "--flash-attn", "on", "--cache-ram", "0", "--device", "none", "-lv", str(printed.VERBOSITY),
    ]  # fmt: skip
    with log.open("wb") as out, _running(argv, out) as process:
        deadline = time.monotonic() + LOAD_LIMIT
        while not _answers(port):
            if process.poll() is not None or time.monotonic() > deadline:
                raise NotMeasuredError(f"llama-server did not start: {log.read_text(errors='replace')[-300:]}")
            time.sleep(0.1)
        with ThreadPoolExecutor(sequences) as pool:
            list(
                pool.map(
                    lambda number: _fill(port, context if fill else LEAST_PROMPT, number),
                    range(sequences if fill else 1),
                )
            )
        (one,) = held([process.pid])
        said = printed.parse(log.read_text(errors="replace").splitlines())
    if one.anonymous.bytes is None or one.file_backed.bytes is None or not said.buffers:
        raise NotMeasuredError("neither smaps_rollup nor the server's log says what it holds")
    shape = Shape(context, sequences, kind, kind)
    return Cell(
        context=context,
        sequences=sequences,
        kind=kind.value,
        model=model.weights.total,
        printed_model=said.total(Kind.MODEL) or 0,
        cache=kv.kv_bytes(model, shape),
        printed_cache=said.total(Kind.KV) or 0,
        compute=compute.compute_bytes(model, shape, True),
        printed_compute=(said.total(Kind.COMPUTE) or 0) + (said.total(Kind.OUTPUT) or 0),
        held=one.anonymous.bytes + one.file_backed.bytes,
    )


@contextmanager
def _running(argv: Sequence[str], out: Any) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT)
    try:
        yield process
    finally:
        end(process, STOP_LIMIT)


def _answers(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=LOAD_LIMIT) as answer:
            return bool(answer.status == 200)
    except OSError:  # a status of 503, too: it loads
        return False


def _fill(port: int, context: int, number: int) -> None:
    """A prompt of tokens that fills one sequence but for the answer. Each another one, so that none is shared."""
    tokens = [100 + (number * 7919 + at * 31) % 40_000 for at in range(context - 8)]
    body = {"prompt": tokens, "n_predict": 2, "cache_prompt": False, "id_slot": number}
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/completion", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=FILL_LIMIT) as answer:  # noqa: S310 - http, as above
        answer.read()


def table(cells: list[Cell]) -> str:
    """For people, and for docs/reference/memory.md."""
    mib = 1 << 20
    lines = [
        "| K and V | context | sequences | model | its own | cache | its own | compute | its own | held | predicted | off |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for cell in cells:
        sizes = (cell.model, cell.printed_model, cell.cache, cell.printed_cache, cell.compute, cell.printed_compute)
        off = "calibrated" if cell.is_calibration else f"{100 * (cell.predicted / cell.held - 1):+.1f} %"
        words = [cell.kind, str(cell.context), str(cell.sequences), *(f"{size / mib:.2f}" for size in sizes)]
        lines.append(f"| {' | '.join([*words, f'{cell.held / mib:.0f}', f'{cell.predicted / mib:.0f}', off])} |")
    return "\n".join(lines)


def as_data(cells: list[Cell]) -> list[dict[str, Any]]:
    """The same for programs."""
    return [{**asdict(cell), "misses": cell.misses} for cell in cells]
