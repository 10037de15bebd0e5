"""`bench ledger`: the memory planner against a real llama-server, cell by cell: what it reckons beside what the server
prints and what its process holds once its context is full.

Model and cache must be the server's own figures; compute buffers are reckoned from above; and what the process holds is
predicted from two cells and scored on the others, as a plan would after two boots.

What it holds is its PSS as it is where nobody else maps its files: its own memory, and beside that the resident pages of
the model and of its libraries in full. The kernel's Pss divides those by how many processes map them, so with it the same
server held 92 MiB less than a minute before, because somebody else had loaded the model (docs/reference/memory.md).
"""

from __future__ import annotations

import json
import subprocess
import time
import urllib.request
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from attrs import asdict, frozen

from supervisor.devices.host import meminfo
from workers import calibration, printed
from workers.ending import end
from workers.planner import compute, kv
from workers.planner.kv import CacheType, Shape
from workers.planner.model import read_model
from workers.printed import Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

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
    """One boot. Bytes; `printed_` is the server's, `own` and `files` are what its process holds with the context full, and
    `predicted` is of both together."""

    context: int
    sequences: int
    kind: str
    model: int
    printed_model: int
    cache: int
    printed_cache: int
    compute: int
    printed_compute: int
    own: int
    """Anonymous memory."""
    files: int
    """Resident pages of the files it maps: the model and its libraries, each in full."""
    predicted: int = 0
    is_calibration: bool = False

    @property
    def planned(self) -> int:
        """All that is reckoned."""
        return self.model + self.cache + self.compute

    @property
    def held(self) -> int:
        """All that it holds."""
        return self.own + self.files

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
) -> Iterator[Cell]:
    """Boot each cell, the two first that calibrate, and fill its context unless told not to: caches are cleared when they
    are made, and held from then on, but the work space of a full batch is touched by a prompt only. Raises NotMeasuredError
    where the server does not start."""
    model = read_model(path)
    shapes = [Shape(context, sequences, kind, kind) for kind, context, sequences in product(TYPES, CONTEXTS, SEQUENCES)]
    shapes.sort(key=lambda shape: _planned(model, shape))
    order = [shapes[0], shapes[-1], *shapes[1:-1]]

    def boots() -> Iterator[Cell]:
        for done, shape in enumerate(order):
            tell("ledger", done, len(order))
            yield _boot(server, path, folder, model, shape, fill)

    yield from predicted(boots())


def _planned(model: Model, shape: Shape) -> int:
    return kv.kv_bytes(model, shape) + compute.compute_bytes(model, shape, True)


def predicted(cells: Iterable[Cell]) -> Iterator[Cell]:
    """What each process holds, by the line through the first two, which are the smallest and the largest."""
    from attrs import evolve

    rest = iter(cells)
    ends = [next(rest), next(rest)]
    growth = calibration.fit({cell.planned: cell.held for cell in ends})
    assert growth is not None  # noqa: S101 - two different ones
    for cell in ends:
        yield evolve(cell, predicted=growth.at(cell.planned), is_calibration=True)
    for cell in rest:
        yield evolve(cell, predicted=growth.at(cell.planned))


def _boot(server: Sequence[str], path: Path, folder: Path, model: Model, shape: Shape, fill: bool) -> Cell:
    from chaos.bench_rig import NotMeasuredError
    from supervisor import ports

    context, sequences, kind = shape.window, shape.sequences, shape.type_k
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
        _fill(port, context if fill else LEAST_PROMPT, sequences)
        own, files = _held(process.pid)
        said = printed.parse(log.read_text(errors="replace").splitlines())
    if not files or not said.buffers:
        raise NotMeasuredError("neither smaps_rollup nor the server's log says what it holds")
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
        own=own,
        files=files,
    )


def _held(pid: int) -> tuple[int, int]:
    """Its own memory, and the resident pages of the files that it maps: (0, 0) where that cannot be read."""
    try:
        rollup = meminfo(Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii"))
    except OSError:
        return 0, 0
    own = rollup.get("Anonymous", 0)
    return own + rollup.get("Swap", 0), rollup.get("Rss", 0) - own


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


def _fill(port: int, context: int, sequences: int) -> None:
    """Fill all sequences but for the answer: of a prompt that is to be answered several times the server reckons the keys
    and values once, and copies them to the other sequences. On their own eight of them take eight times as long, and come
    to the same (247 MiB against 246). Raises NotMeasuredError for a server that does not do that."""
    from chaos.bench_rig import NotMeasuredError

    tokens = [100 + at * 31 % 40_000 for at in range(context - 8)]
    body = {"prompt": tokens, "n_predict": 2, "cache_prompt": False, "n_cmpl": sequences,
            "logit_bias": [["a", 100]]}  # fmt: skip # whatever else it says after such a prompt, a parser may choke on
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/completion", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=FILL_LIMIT) as answer:  # noqa: S310 - http, as above
        said = json.loads(answer.read())
    if sequences > 1 and (not isinstance(said, list) or len(said) != sequences):
        raise NotMeasuredError("this llama-server does not answer a prompt several times (n_cmpl): it is too old")


HEAD: Final = (
    "| K and V | context | sequences | model | its own | cache | its own | compute | its own | own memory | files | held |"
    " predicted | off |\n|---|---|---|---|---|---|---|---|---|---|---|---|---|---|"
)
"""Of the table. For people, and for docs/reference/memory.md; sizes in MiB."""


def row(cell: Cell) -> str:
    """Its line in the table."""
    mib = 1 << 20
    sizes = (cell.model, cell.printed_model, cell.cache, cell.printed_cache, cell.compute, cell.printed_compute)
    off = "calibrated" if cell.is_calibration else f"{100 * (cell.predicted / cell.held - 1):+.1f} %"
    words = [cell.kind, str(cell.context), str(cell.sequences), *(f"{size / mib:.2f}" for size in sizes)]
    held = (cell.own, cell.files, cell.held, cell.predicted)
    return f"| {' | '.join([*words, *(f'{size / mib:.0f}' for size in held), off])} |"


def as_data(cells: list[Cell]) -> list[dict[str, Any]]:
    """The same for programs."""
    return [{**asdict(cell), "misses": cell.misses} for cell in cells]
