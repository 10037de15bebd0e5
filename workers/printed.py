"""What a server said of its memory while it loaded: buffers, context, and whether it took less than it was asked. Pure.

llama-server (seen at build 10068) prints the effective context always, and its buffers from verbosity 4 on. That costs
14 kB more at each start and 2 kB more for each request than its default of 3, and no text of prompts (measured).
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

VERBOSITY = 4
"""From which llama-server prints its buffers (`-lv`, a level)."""

MIB = 2**20

LOADING = re.compile(r"load_model: loading model ")
BUFFER = re.compile(r": +(\S+) +(model|KV|RS|LoRA|compute|output|.{1,24} state) buffer size = +(\d+(?:\.\d+)?) MiB")
SLOTS = re.compile(r"\bn_slots = (\d+), n_ctx_slot = (\d+)(?:, kv_unified = '(\w+)')?")
CAPPED = re.compile(r"the slot context \((\d+)\) exceeds the training context of the model \((\d+)\) - capping")
REDUCED = re.compile(r"context size reduced from (\d+) to (\d+)")
POOL = re.compile(r"kv pool: (\d+) positions need .*?LOWERING THE POOL TO (\d+)")
POOLED = re.compile(r"(\d+) slot\(s\) over one (\d+)-position pool")


class Kind(StrEnum):
    """What a buffer is for."""

    MODEL = "model"
    KV = "kv"
    RECURRENT = "recurrent"
    COMPUTE = "compute"
    OUTPUT = "output"
    LORA = "lora"


NAMES = {"model": Kind.MODEL, "KV": Kind.KV, "RS": Kind.RECURRENT, "LoRA": Kind.LORA, "compute": Kind.COMPUTE,
         "output": Kind.OUTPUT}  # fmt: skip


class Buffer(NamedTuple):
    """All buffers of a kind in one place, as the server calls it (CPU, CPU_Mapped, CUDA0): bytes, to a hundredth of a
    MiB."""

    kind: Kind
    place: str
    bytes: int


class Printed(NamedTuple):
    """What the last load in a log said. `context` is tokens per sequence, as it came out; `pool` positions of a pool that
    all sequences share, where the engine has one. None: it did not say."""

    buffers: tuple[Buffer, ...] = ()
    context: int | None = None
    sequences: int | None = None
    pool: int | None = None
    lowered: tuple[str, ...] = ()
    """The lines in which it said that it took less than it was asked for."""
    is_whole: bool = False
    """Whether it is there from the weights on, which come first: in a log that was cut later, some buffers may be missing."""

    def total(self, kind: Kind) -> int | None:
        """Bytes of a kind in all places; None where no buffer was printed at all."""
        return sum(one.bytes for one in self.buffers if one.kind is kind) if self.buffers else None


def parse(lines: Iterable[str]) -> Printed:
    """From the text of one server. A log goes on over unloads and loads: what stood before the last load is dropped."""
    sums: dict[tuple[Kind, str], int] = {}
    context = sequences = pool = None
    lowered: list[str] = []
    is_whole = False
    for line in lines:
        if LOADING.search(line):
            sums, context, sequences, pool, lowered, is_whole = {}, None, None, None, [], True
        elif found := BUFFER.search(line):
            place, name, size = found.groups()
            key, count = (NAMES.get(name, Kind.RECURRENT), place), round(float(size) * MIB)
            is_whole = is_whole or (key[0] is Kind.MODEL and not sums)
            # Caches and weights come in parts (sliding window beside full, split files); graphs are reserved anew.
            sums[key] = count if key[0] in (Kind.COMPUTE, Kind.OUTPUT) else sums.get(key, 0) + count
        elif found := SLOTS.search(line):
            sequences, context = int(found[1]), int(found[2])
        elif found := POOLED.search(line):
            sequences, pool = int(found[1]), int(found[2])
        elif (found := CAPPED.search(line)) or (found := REDUCED.search(line)):
            lowered.append(line.strip())
        elif found := POOL.search(line):
            pool = int(found[2])
            lowered.append(line.strip())
    buffers = tuple(Buffer(kind, place, size) for (kind, place), size in sums.items())
    return Printed(buffers, context, sequences, pool, tuple(lowered), is_whole)
