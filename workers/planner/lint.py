"""What a model's file says that its launch should heed. Each is a sentence with the consequence and what to do."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from workers.planner.model import Model

POOLED: Final = frozenset({1, 2, 3})
"""pooling_type of embedding models: mean, cls, last (llama.h)."""

RANK: Final = 4
"""pooling_type of a model with a classifier head."""

_REFUSES: Final = re.compile(r"raise_exception\([^)]*(reasoning|thinking|effort)", re.IGNORECASE)


def hints(model: Model, role: str, arguments: Sequence[str]) -> Iterator[str]:
    """What to know of this model in this role. Nothing of it stops a launch."""
    given = {word.partition("=")[0] for word in arguments}
    embeds = role == "embed" or bool(given & {"--embeddings", "--embedding"})
    ranks = role == "rerank" or bool(given & {"--reranking", "--rerank"})
    if model.pooling in POOLED and not embeds and not ranks:
        yield (
            "an embedding model (its header names a pooling) without --embeddings: it answers a chat with an error; give it "
            "the role embed"
        )
    if ranks and not model.has_classifier and model.pooling != RANK:
        yield (
            "the role rerank on a model without a classifier head: llama-server answers 200 with scores that mean nothing"
        )
    if "tools" in model.template and "--no-jinja" in given:
        yield "its template knows tools, and --no-jinja turns templates off: requests with `tools` are refused"
    elif "tools" in model.template:
        yield "its template knows tools: requests with `tools` need --jinja (newer servers have it on)"
    if _REFUSES.search(model.template):
        yield (
            "its template raises an error over a reasoning level that it does not know: a client that sends another one is "
            "refused"
        )
    if model.mtp_layers:
        yield (
            f"it brings {model.mtp_layers} layers for prediction ahead (MTP); they are a property of this file, and only "
            "take memory unless the server is told to draft with them"
        )
    if model.has_routed_experts:
        part = model.weights.experts / model.weights.total
        yield f"{model.experts} routed experts, {model.experts_used} a token: {part:.0%} of the weights may stay in system memory"
    if model.window:
        sliding = sum(1 for layer in model.layers if layer.window)
        yield (
            f"{sliding} of {len(model.layers)} layers slide over {model.window:,} tokens: their cache does not grow with the "
            "context, and an earlier prompt is only reused from a checkpoint"
        )
    if model.is_recurrent:
        yield "layers with a recurrent state: an earlier prompt is only reused from a checkpoint"
