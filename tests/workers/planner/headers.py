"""GGUF files that are a header and a hole: models of published shapes, as large as one likes, at no disk space."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

from workers.ggml_types import TYPE_SIZES

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

F32, F16, Q4_0, Q8_0, Q4_K, Q6_K, BF16, MXFP4 = 0, 1, 2, 8, 12, 14, 30, 39

Tensors = list[tuple[str, tuple[int, ...], int]]


def _text(value: str) -> bytes:
    raw = value.encode()
    return struct.pack("<Q", len(raw)) + raw


def _value(value: Any) -> bytes:
    match value:
        case bool():
            return struct.pack("<I?", 7, value)
        case int():
            return struct.pack("<II", 4, value)
        case float():
            return struct.pack("<If", 6, value)
        case str():
            return struct.pack("<I", 8) + _text(value)
        case list():
            kinds = {bool: (7, "<?"), int: (5, "<i"), str: (8, "")}
            kind, form = kinds[type(value[0])]
            body = b"".join(_text(one) if kind == 8 else struct.pack(form, one) for one in value)
            return struct.pack("<IIQ", 9, kind, len(value)) + body
    raise TypeError(value)


def write_header(path: Path, architecture: str, keys: Mapping[str, Any], tensors: Tensors, **general: Any) -> Path:
    """Write it. `keys` are the architecture's own; `general`'s stand for themselves, with __ for the dot."""
    metadata = {"general.architecture": architecture}
    metadata |= {f"{architecture}.{key}": value for key, value in keys.items()}
    metadata |= {key.replace("__", "."): value for key, value in general.items()}
    metadata.setdefault("tokenizer.ggml.model", "no_vocab")
    head = [b"GGUF", struct.pack("<IQQ", 3, len(tensors), len(metadata))]
    head += [_text(key) + _value(value) for key, value in metadata.items()]
    offset = 0
    for name, dimensions, kind in tensors:
        elements = 1
        for dimension in dimensions:
            elements *= dimension
        block, size = TYPE_SIZES[kind]
        head.append(_text(name) + struct.pack(f"<I{len(dimensions)}Q", len(dimensions), *dimensions))
        head.append(struct.pack("<IQ", kind, offset))
        offset += -(-elements // block * size // 32) * 32
    whole = b"".join(head)
    start = -(-len(whole) // 32) * 32
    with path.open("wb") as file:
        file.write(whole)
        file.truncate(start + offset)
    return path


def attention(index: int, embedding: int, q: int, k: int, v: int, kind: int, head: int = 0) -> Tensors:
    """Projections of one layer; `head` adds the norms of queries and keys that some models have."""
    name = f"blk.{index}"
    more: Tensors = [(f"{name}.attn_q_norm.weight", (head,), F32), (f"{name}.attn_k_norm.weight", (head,), F32)]
    return [
        (f"{name}.attn_norm.weight", (embedding,), F32),
        (f"{name}.attn_q.weight", (embedding, q), kind),
        (f"{name}.attn_k.weight", (embedding, k), kind),
        (f"{name}.attn_v.weight", (embedding, v), kind),
        (f"{name}.attn_output.weight", (q, embedding), kind),
        *(more if head else []),
    ]


def feed_forward(index: int, embedding: int, width: int, kind: int) -> Tensors:
    """A gated feed-forward part."""
    name = f"blk.{index}"
    return [
        (f"{name}.ffn_norm.weight", (embedding,), F32),
        (f"{name}.ffn_gate.weight", (embedding, width), kind),
        (f"{name}.ffn_up.weight", (embedding, width), kind),
        (f"{name}.ffn_down.weight", (width, embedding), kind),
    ]


def ends(embedding: int, vocabulary: int, kind: int, *, tied: bool = False) -> Tensors:
    """What comes before the first and after the last layer."""
    first: Tensors = [("token_embd.weight", (embedding, vocabulary), kind), ("output_norm.weight", (embedding,), F32)]
    return first if tied else [*first, ("output.weight", (embedding, vocabulary), kind)]


def gpt_oss(path: Path, layers: int, experts: int) -> Path:
    """openai/gpt-oss: 20b has 24 layers and 32 experts, 120b 36 and 128. Hidden size 2880, 64 heads of 64, 8 key-value
    heads, 4 experts a token, vocabulary 201,088, window 128 in every other layer (its config.json). Experts in MXFP4."""
    tensors = ends(2880, 201_088, Q8_0)
    for index in range(layers):
        name = f"blk.{index}"
        tensors += attention(index, 2880, 4096, 512, 512, Q8_0)
        tensors += [
            (f"{name}.attn_q.bias", (4096,), F32),
            (f"{name}.attn_k.bias", (512,), F32),
            (f"{name}.attn_v.bias", (512,), F32),
            (f"{name}.attn_output.bias", (2880,), F32),
            (f"{name}.attn_sinks.weight", (64,), F32),
            (f"{name}.post_attention_norm.weight", (2880,), F32),
            (f"{name}.ffn_gate_inp.weight", (2880, experts), F32),
            (f"{name}.ffn_gate_inp.bias", (experts,), F32),
        ]
        for part in ("gate", "up", "down"):
            tensors += [
                (f"{name}.ffn_{part}_exps.weight", (2880, 2880, experts), MXFP4),
                (f"{name}.ffn_{part}_exps.bias", (2880, experts), F32),
            ]
    keys = {
        "block_count": layers,
        "context_length": 131_072,
        "embedding_length": 2880,
        "feed_forward_length": 2880,
        "expert_feed_forward_length": 2880,
        "attention.head_count": 64,
        "attention.head_count_kv": 8,
        "attention.key_length": 64,
        "attention.value_length": 64,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "attention.sliding_window": 128,
        "expert_count": experts,
        "expert_used_count": 4,
        "rope.dimension_count": 64,
        "rope.freq_base": 150000.0,
        "vocab_size": 201_088,
    }
    return write_header(path, "gpt-oss", keys, tensors)


def qwen3(path: Path, layers: int = 36, kind: int = Q4_K, embedding: int = 2560, kv_heads: int = 8) -> Path:
    """Qwen3-4B: 36 layers, hidden size 2560, 32 heads of 128, 8 key-value heads, feed-forward 9728, vocabulary 151,936,
    tied embeddings, context 40,960 (its config.json)."""
    tensors = ends(embedding, 151_936, Q6_K, tied=True)
    for index in range(layers):
        tensors += attention(index, embedding, 4096, kv_heads * 128, kv_heads * 128, kind, head=128)
        tensors += feed_forward(index, embedding, 9728, kind)
    keys = {
        "block_count": layers,
        "context_length": 40_960,
        "embedding_length": embedding,
        "feed_forward_length": 9728,
        "attention.head_count": 32,
        "attention.head_count_kv": kv_heads,
        "attention.key_length": 128,
        "attention.value_length": 128,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "rope.freq_base": 1000000.0,
        "vocab_size": 151_936,
    }
    return write_header(path, "qwen3", keys, tensors)


def gemma3(path: Path, layers: int = 26) -> Path:
    """Gemma 3 1B: 26 layers, hidden size 1152, 4 heads of 256, 1 key-value head, feed-forward 6912, vocabulary 262,144,
    window 512 in five layers of six, context 32,768 (its config.json)."""
    tensors = ends(1152, 262_144, Q8_0, tied=True)
    for index in range(layers):
        name = f"blk.{index}"
        tensors += attention(index, 1152, 1024, 256, 256, Q8_0, head=256)
        tensors += feed_forward(index, 1152, 6912, Q8_0)
        tensors += [
            (f"{name}.post_attention_norm.weight", (1152,), F32),
            (f"{name}.post_ffw_norm.weight", (1152,), F32),
        ]
    keys = {
        "block_count": layers,
        "context_length": 32_768,
        "embedding_length": 1152,
        "feed_forward_length": 6912,
        "attention.head_count": 4,
        "attention.head_count_kv": 1,
        "attention.key_length": 256,
        "attention.value_length": 256,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "attention.sliding_window": 512,
        "rope.freq_base": 1000000.0,
        "vocab_size": 262_144,
    }
    return write_header(path, "gemma3", keys, tensors)


def deepseek2(path: Path, layers: int = 27) -> Path:
    """DeepSeek-V2-Lite with a latent cache: 27 layers, hidden size 2048, 16 heads, latent rank 512, 64 rotated, first
    layer dense (10,944), then 64 experts of 1,408, 6 a token and 2 shared, vocabulary 102,400 (its config.json)."""
    tensors = ends(2048, 102_400, Q4_K)
    for index in range(layers):
        name = f"blk.{index}"
        tensors += [
            (f"{name}.attn_norm.weight", (2048,), F32),
            (f"{name}.attn_q.weight", (2048, 16 * 192), Q4_K),
            (f"{name}.attn_kv_a_mqa.weight", (2048, 576), Q4_K),
            (f"{name}.attn_kv_a_norm.weight", (512,), F32),
            (f"{name}.attn_k_b.weight", (128, 512, 16), Q8_0),
            (f"{name}.attn_v_b.weight", (512, 128, 16), Q8_0),
            (f"{name}.attn_output.weight", (16 * 128, 2048), Q4_K),
        ]
        if index == 0:
            tensors += feed_forward(index, 2048, 11_008 - 256, Q4_K)
            continue
        tensors += [
            (f"{name}.ffn_norm.weight", (2048,), F32),
            (f"{name}.ffn_gate_inp.weight", (2048, 64), F32),
            (f"{name}.ffn_gate_exps.weight", (2048, 1408, 64), Q8_0),
            (f"{name}.ffn_up_exps.weight", (2048, 1408, 64), Q8_0),
            (f"{name}.ffn_down_exps.weight", (1408, 2048, 64), Q8_0),
            (f"{name}.ffn_gate_shexp.weight", (2048, 2816), Q8_0),
            (f"{name}.ffn_up_shexp.weight", (2048, 2816), Q8_0),
            (f"{name}.ffn_down_shexp.weight", (2816, 2048), Q8_0),
        ]
    keys = {
        "block_count": layers,
        "context_length": 163_840,
        "embedding_length": 2048,
        "feed_forward_length": 10_752,
        "attention.head_count": 16,
        "attention.head_count_kv": 1,
        "attention.key_length": 576,
        "attention.value_length": 512,
        "attention.key_length_mla": 192,
        "attention.value_length_mla": 128,
        "attention.kv_lora_rank": 512,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "leading_dense_block_count": 1,
        "expert_count": 64,
        "expert_used_count": 6,
        "expert_shared_count": 2,
        "expert_feed_forward_length": 1408,
        "expert_weights_scale": 1.0,
        "rope.dimension_count": 64,
        "rope.freq_base": 10000.0,
        "vocab_size": 102_400,
    }
    return write_header(path, "deepseek2", keys, tensors)


def qwen3next(path: Path, layers: int = 8, experts: int = 64) -> Path:
    """Qwen3-Next-80B-A3B's layers (there are 48, with 512 experts): hidden size 2048, 16 heads of 256, 2 key-value heads,
    every 4th layer attends; the others have 32 value heads of 128, 16 key heads of 128, convolution 4 (its config.json)."""
    tensors = ends(2048, 151_936, Q4_K)
    for index in range(layers):
        name = f"blk.{index}"
        tensors += [
            (f"{name}.attn_norm.weight", (2048,), F32),
            (f"{name}.post_attention_norm.weight", (2048,), F32),
            (f"{name}.ffn_gate_inp.weight", (2048, experts), F32),
            (f"{name}.ffn_gate_exps.weight", (2048, 512, experts), Q4_K),
            (f"{name}.ffn_up_exps.weight", (2048, 512, experts), Q4_K),
            (f"{name}.ffn_down_exps.weight", (512, 2048, experts), Q4_K),
            (f"{name}.ffn_gate_inp_shexp.weight", (2048,), F32),
            (f"{name}.ffn_gate_shexp.weight", (2048, 512), Q4_K),
            (f"{name}.ffn_up_shexp.weight", (2048, 512), Q4_K),
            (f"{name}.ffn_down_shexp.weight", (512, 2048), Q4_K),
        ]
        if (index + 1) % 4 == 0:
            tensors += attention(index, 2048, 8192, 512, 512, Q4_K, head=256)[1:4]
            tensors += [
                (f"{name}.attn_output.weight", (4096, 2048), Q4_K),
                (f"{name}.attn_q_norm.weight", (256,), F32),
                (f"{name}.attn_k_norm.weight", (256,), F32),
            ]
        else:
            tensors += [
                (f"{name}.attn_qkv.weight", (2048, 8192), Q4_K),
                (f"{name}.attn_gate.weight", (2048, 4096), Q4_K),
                (f"{name}.ssm_conv1d.weight", (4, 8192), F32),
                (f"{name}.ssm_dt.bias", (32,), F32),
                (f"{name}.ssm_a", (32,), F32),
                (f"{name}.ssm_ba.weight", (2048, 64), Q4_K),
                (f"{name}.ssm_norm.weight", (128,), F32),
                (f"{name}.ssm_out.weight", (4096, 2048), Q4_K),
            ]
    keys = {
        "block_count": layers,
        "context_length": 262_144,
        "embedding_length": 2048,
        "feed_forward_length": 5120,
        "attention.head_count": 16,
        "attention.head_count_kv": 2,
        "attention.key_length": 256,
        "attention.value_length": 256,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "expert_count": experts,
        "expert_used_count": 10,
        "expert_feed_forward_length": 512,
        "expert_shared_feed_forward_length": 512,
        "ssm.conv_kernel": 4,
        "ssm.inner_size": 4096,
        "ssm.state_size": 128,
        "ssm.time_step_rank": 32,
        "ssm.group_count": 16,
        "rope.dimension_count": 64,
        "rope.freq_base": 10000000.0,
        "vocab_size": 151_936,
    }
    return write_header(path, "qwen3next", keys, tensors)
