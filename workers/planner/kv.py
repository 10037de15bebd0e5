"""Bytes of the caches of one server: keys and values by type and layer, and recurrent state. llama.cpp's own rules.

`--ctx-size` is for all sequences together. Split, each of the `--parallel` sequences has its own part; unified, they
share one pool. Either is rounded up to 256 positions (`llama_context`, seen in b10068 and b11549).
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from workers.planner.layers import Layer
    from workers.planner.model import Model

PAD: Final = 256
"""Positions: what llama.cpp rounds the context of a sequence, and every cache, up to."""


class CacheType(StrEnum):
    """Types that llama-server takes for K and V."""

    F32 = "f32"
    F16 = "f16"
    BF16 = "bf16"
    Q8_0 = "q8_0"
    Q4_0 = "q4_0"
    Q4_1 = "q4_1"
    IQ4_NL = "iq4_nl"
    Q5_0 = "q5_0"
    Q5_1 = "q5_1"

    @property
    def is_quantised(self) -> bool:
        """Whether it is kept in blocks with a scale."""
        return _BLOCKS[self][0] > 1


_BLOCKS: Final = {
    CacheType.F32: (1, 4),
    CacheType.F16: (1, 2),
    CacheType.BF16: (1, 2),
    CacheType.Q8_0: (32, 34),  # 32 int8 and a 16-bit scale
    CacheType.Q4_0: (32, 18),  # 32 nibbles and a scale
    CacheType.Q4_1: (32, 20),  # and a minimum
    CacheType.IQ4_NL: (32, 18),
    CacheType.Q5_0: (32, 22),  # and a fifth bit each
    CacheType.Q5_1: (32, 24),
}
"""Elements per block, and bytes per block (ggml's type traits)."""


def row_bytes(width: int, kind: CacheType) -> int:
    """Bytes of one position's `width` elements."""
    elements, size = _BLOCKS[kind]
    return -(-width // elements) * size


def padded(positions: int) -> int:
    """Rounded up to whole PADs."""
    return -(-positions // PAD) * PAD


class Shape(NamedTuple):
    """What the caches of a server are made for: `window` tokens for each of `sequences`."""

    window: int
    sequences: int
    type_k: CacheType = CacheType.F16
    type_v: CacheType = CacheType.F16
    unified: bool = False
    swa_full: bool = False
    ubatch: int = 512

    @property
    def ctx_size(self) -> int:
        """What --ctx-size must say, for each sequence to have its window."""
        return self.window * self.sequences

    @property
    def streams(self) -> int:
        """Caches side by side."""
        return 1 if self.unified else self.sequences

    @property
    def cells(self) -> int:
        """Positions of one stream, as llama.cpp divides and pads."""
        whole = padded(self.ctx_size)
        return whole if self.unified else padded(whole // self.sequences)

    def window_cells(self, window: int) -> int:
        """Positions of one stream in a layer that slides: the window and the batch that moves it, never more than
        without a window."""
        if not window or self.swa_full:
            return self.cells
        each = window * (self.sequences if self.unified else 1)
        return padded(min(self.cells, each + self.ubatch))


def layer_bytes(layer: Layer, shape: Shape) -> int:
    """Bytes of one layer's keys and values, for all sequences."""
    position = row_bytes(layer.k_width, shape.type_k) + row_bytes(layer.v_width, shape.type_v)
    return position * shape.window_cells(layer.window) * shape.streams


def kv_bytes(model: Model, shape: Shape) -> int:
    """Bytes of keys and values in all layers."""
    return sum(layer_bytes(layer, shape) for layer in model.layers)


def state_bytes(model: Model, sequences: int) -> int:
    """Bytes of recurrent state: per sequence, whatever the context."""
    return sequences * sum(layer.state_bytes for layer in model.layers)


def checkpoint_bytes(model: Model, shape: Shape) -> int:
    """Bytes of one context checkpoint, in system memory: what cannot be rolled back, the sliding layers' last window and
    the recurrent state of one sequence. 0 for a model with neither."""
    sliding = 0
    if not shape.swa_full:
        for layer in model.layers:
            if layer.window:
                position = row_bytes(layer.k_width, shape.type_k) + row_bytes(layer.v_width, shape.type_v)
                sliding += position * min(shape.window, layer.window)
    return sliding + state_bytes(model, 1)


STATE_POSITION: Final = 16
STATE_LAYER: Final = 64
"""Bytes that a saved state has beside keys and values: who sits in each position (12 to 13, measured with b10068), and a head
for each layer."""


def prompt_bytes(model: Model, shape: Shape, checkpoints: int) -> int:
    """Bytes of one whole prompt's state as the prompt cache saves it: a sequence's window in every layer, its state, and
    its checkpoints. It is saved before the cache's limit is looked at (ggml-org/llama.cpp#21690)."""
    one = Shape(shape.window, 1, shape.type_k, shape.type_v, False, shape.swa_full, shape.ubatch)
    beside = STATE_POSITION * shape.window + STATE_LAYER * len(model.layers)
    return kv_bytes(model, one) + state_bytes(model, 1) + checkpoints * checkpoint_bytes(model, one) + beside
