"""What llama.cpp's source fixes for an architecture and no header says: which layers slide, and what is recurrent.

Read in llama.cpp's model sources (b11549); each table is held against the engine's own estimate by a test. An
architecture that is missing here is counted from above, and the plan says so.
"""

from __future__ import annotations

from typing import Final

SLIDING_PERIOD: Final = {
    "afmoe": 4,
    "cohere2": 4,
    "exaone4": 4,
    "gemma-embedding": 6,
    "gemma2": 2,
    "gemma3": 6,
    "gemma3n": 5,
    "gpt-oss": 2,
    "llama4": 4,
    "olmo2": 4,
    "plamo3": 8,
    "smallthinker": 4,
}
"""Every n-th layer sees the whole context, the n-1 before it a window."""

CHUNK: Final = {"llama4": 8192}
"""Tokens of the window where the header names none."""

NEVER_SLIDES: Final = frozenset({"phi3", "qwen2", "qwen2moe", "qwen3", "qwen3moe", "llama"})
"""A window in the header that llama.cpp does not act upon: their caches hold the whole context in any case."""

KV_FROM_START: Final = {"gemma3n": 20}
"""Layers from the first that have a cache of their own; the others use those. A header's `shared_kv_layers` goes first."""

FULL_ATTENTION_INTERVAL: Final = {"qwen3next": 4, "qwen35": 4, "qwen35moe": 4}
"""Every n-th layer attends, the others are recurrent, where the header names no interval."""

ALL_RECURRENT: Final = frozenset({"mamba", "mamba2", "rwkv6", "rwkv6qwen2", "rwkv7", "arwkv7"})
BOTH: Final = frozenset({"falcon-h1"})
"""Each layer attends and has a state."""

TOKEN_SHIFTS: Final = {"rwkv6": 2, "rwkv7": 2, "rwkv6qwen2": 1, "arwkv7": 1}

NO_CACHE: Final = frozenset(
    {"bert", "modern-bert", "nomic-bert", "nomic-bert-moe", "neo-bert", "jina-bert-v2", "jina-bert-v3", "t5encoder",
     "gemma-embedding", "eurobert"}
)  # fmt: skip
"""Encoders: they look at the whole text at once and keep nothing of it."""

PLAIN: Final = frozenset(
    {"apertus", "arcee", "arctic", "baichuan", "bailingmoe", "bailingmoe2", "bloom", "chatglm", "codeshell", "cogvlm",
     "command-r", "dbrx", "deci", "deepseek", "deepseek2", "dots1", "ernie4_5", "ernie4_5-moe", "exaone", "falcon",
     "gemma", "glm4", "glm4moe", "gpt2", "gptj", "gptneox", "granite", "granitemoe", "grok", "grovemoe", "hunyuan-dense",
     "hunyuan-moe", "internlm2", "jais", "llada", "llama", "llama4", "maincoder", "minicpm", "minicpm3", "minimax-m2",
     "mistral3", "mpt", "nemotron", "olmo", "olmoe", "openelm", "orion", "phi2", "phi3", "phimoe", "plamo", "qwen",
     "qwen2", "qwen2moe", "qwen2vl", "qwen3", "qwen3moe", "qwen3vl", "qwen3vlmoe", "refact", "rnd1", "seed_oss", "smollm3",
     "stablelm", "starcoder", "starcoder2", "xverse"}
)  # fmt: skip
"""Attention in every layer that has key-value heads, over the whole context."""

HYBRID: Final = frozenset(
    {"falcon-h1", "granitehybrid", "jamba", "kimi-linear", "lfm2", "lfm2moe", "nemotron_h", "nemotron_h_moe", "plamo2"}
)
"""A layer without key-value heads is recurrent (or, in nemotron_h, a feed-forward layer alone)."""


def is_known(architecture: str) -> bool:
    """Whether the tables above say how its memory is counted."""
    return (
        architecture in PLAIN | NO_CACHE | ALL_RECURRENT | HYBRID
        or architecture in SLIDING_PERIOD
        or architecture in FULL_ATTENTION_INTERVAL
    )
