"""An upper bound of the buffer that a server computes in, in bytes: what llama.cpp reserves for the largest graph, a batch
of `ubatch` tokens of a full context.

Of the graph's tensors only those count that live at its widest point, for memory is used again behind it. There are
four candidates, and beside each the inputs, which live throughout:

* the end: a row of logits for every token (vocabulary x ubatch x 4), and some five vectors of the embedding's width;
* attention without flash attention: the scores, heads x positions x ubatch x 4, with queries and indices;
* a feed-forward part: up to three times its width for every token, for each expert that a token uses;
* a recurrent layer: every sequence's state twice.

The inputs: a mask of positions x ubatch for the layers with the whole context, one for those with a window; 2 bytes
each with flash attention, else 4. Over several cards llama.cpp keeps four copies of its inputs, to work ahead.

Compared with the engine's own reserve of six architectures (tests/workers/planner): 0 to 7 % above, never below.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from workers.planner.kv import Shape
    from workers.planner.model import Model

F32: Final = 4
VECTORS: Final = 6
"""Vectors of the embedding's width that live beside the widest tensor; five in most graphs, six in some (measured)."""

PIPELINE_COPIES: Final = 4
"""GGML_SCHED_MAX_COPIES: copies of the inputs over several cards."""


def compute_bytes(model: Model, shape: Shape, flash: bool, *, cards: int = 1, output: bool = True) -> int:
    """Bytes reserved on the device that holds the last layer (`output`), or on another one of `cards`."""
    tokens = _tokens(shape)
    vectors = VECTORS * model.embedding * tokens * F32
    widest = max(
        (model.vocabulary * tokens * F32 if output else 0) + vectors,
        0 if flash else _scores(model, shape, tokens) + vectors,
        _feed_forward(model) * tokens * F32 + vectors,
    )
    recurrent = 2 * shape.sequences * max((layer.state_bytes for layer in model.layers), default=0)
    rows = model.vocabulary * shape.sequences * F32 if output else 0
    copies = PIPELINE_COPIES if cards > 1 else 1
    return widest + recurrent + rows + copies * _inputs(model, shape, flash, tokens)


def host_part_bytes(model: Model, shape: Shape, flash: bool) -> int:
    """Bytes reserved in system memory where all layers are on cards: the embedded batch, and a copy of the inputs."""
    tokens = _tokens(shape)
    return 2 * model.embedding * tokens * F32 + _inputs(model, shape, flash, tokens)


def _tokens(shape: Shape) -> int:
    return min(shape.ubatch, shape.cells * shape.streams)


def _keeps_nothing(model: Model) -> bool:
    return not any(layer.k_width or layer.state_bytes for layer in model.layers)


def _positions(model: Model, shape: Shape, tokens: int) -> int:
    """Positions that a token looks at. An encoder looks at its batch and keeps nothing."""
    return tokens if _keeps_nothing(model) else shape.cells


def _scores(model: Model, shape: Shape, tokens: int) -> int:
    latent = any(layer.k_width and not layer.v_width for layer in model.layers)
    queries = (4 if latent else 2) * model.heads * model.head_width * tokens * F32  # latent: in both forms, and values
    indices = 8 * max((layer.v_width for layer in model.layers), default=0) * tokens
    return model.heads * _positions(model, shape, tokens) * tokens * F32 + queries + indices


def _feed_forward(model: Model) -> int:
    """Elements per token."""
    dense = 3 * model.feed_forward
    if not model.experts_used:
        return dense
    width = model.expert_feed_forward or model.feed_forward
    return max(dense, model.experts_used * (3 * width + model.embedding))


def _inputs(model: Model, shape: Shape, flash: bool, tokens: int) -> int:
    whole = _positions(model, shape, tokens) * tokens
    sliding = shape.window_cells(model.window) * tokens if model.window else 0
    return (whole + sliding) * (2 if flash else F32)
