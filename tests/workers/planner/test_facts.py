"""What is read of a model: hand values from published shapes, worked out beside each."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import pytest

from supervisor.errors import ModelError
from tests.workers.planner import headers
from workers import pins
from workers.gguf_cursor import Cursor
from workers.planner import kv
from workers.planner.kv import CacheType, Shape
from workers.planner.model import Model, read_model

if TYPE_CHECKING:
    from pathlib import Path

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
F16 = headers.F16

Named = Callable[[str], Model]


def small(path: Path, architecture: str, keys: Mapping[str, Any], blocks: int) -> Model:
    """A model of that many blocks, each with one tensor of 64 x 64 f16: only its metadata matter."""
    tensors: headers.Tensors = [("token_embd.weight", (64, 100), F16)]
    tensors += [(f"blk.{index}.attn_norm.weight", (64, 64), F16) for index in range(blocks)]
    return read_model(headers.write_header(path, architecture, {"block_count": blocks, **keys}, tensors))


def test_gguf_parser_go_28_a_hybrid_model_is_charged_only_for_its_attention_layers(tmp_path: Path) -> None:
    # 40 blocks, every 4th attends: 10 layers. 2 key-value heads of 256, K and V in f16:
    # 2 x 2 x 256 x 2 bytes = 2,048 bytes a layer and position; 10 layers x 32,768 positions = 640 MiB, not 2,560.
    # A recurrent layer keeps, in 32-bit floats, 3 inputs of its convolution (kernel 4) over 4,096 + 2 x 16 x 128 = 8,192
    # channels and a 128 x 4,096 matrix: (24,576 + 524,288) x 4 = 2,195,456 bytes; 30 of them for each sequence.
    found = small(
        tmp_path / "hybrid.gguf",
        "qwen3next",
        {
            "embedding_length": 2048, "attention.head_count": 16, "attention.head_count_kv": 2,
            "attention.key_length": 256, "attention.value_length": 256, "full_attention_interval": 4,
            "ssm.conv_kernel": 4, "ssm.inner_size": 4096, "ssm.state_size": 128, "ssm.group_count": 16,
        },
        40,
    )  # fmt: skip
    assert kv.kv_bytes(found, Shape(32_768, 1)) == 640 * MIB
    assert kv.state_bytes(found, 1) == 30 * 2_195_456
    assert kv.state_bytes(found, 4) == 4 * 30 * 2_195_456
    assert not found.conservative


def test_gguf_parser_go_32_sliding_layers_are_not_charged_for_the_whole_context(model: Named) -> None:
    # gpt-oss-20b: 24 layers, every other one slides over 128. 8 key-value heads of 64: 2 x 8 x 64 x 2 = 2,048 bytes.
    # 12 layers x 131,072 positions = 3.0 GiB. The sliding 12 hold 128 + 512 (a batch), padded to 768: 18 MiB.
    # 24 full layers would be 6.0 GiB.
    assert kv.kv_bytes(model("gpt-oss-20b"), Shape(131_072, 1)) == 3 * GIB + 18 * MIB
    assert kv.kv_bytes(model("gpt-oss-20b"), Shape(131_072, 1, swa_full=True)) == 6 * GIB
    assert not model("gpt-oss-20b").conservative


def test_gguf_parser_go_32_an_unknown_pattern_is_an_upper_bound_and_says_so(tmp_path: Path) -> None:
    shape = {"embedding_length": 2880, "attention.head_count": 64, "attention.head_count_kv": 8,
             "attention.key_length": 64, "attention.value_length": 64, "attention.sliding_window": 128}  # fmt: skip
    found = small(tmp_path / "new.gguf", "brand-new", shape, 24)
    assert kv.kv_bytes(found, Shape(131_072, 1)) == 6 * GIB
    assert any("sliding window of 128" in line for line in found.conservative)
    assert any("brand-new is not known" in line for line in found.conservative)
    # The same with a pattern in its metadata, of which 6 layers of 24 see all: 6 x 2,048 x 131,072 = 1.5 GiB.
    pattern = [index % 4 != 3 for index in range(24)]
    told = small(tmp_path / "told.gguf", "brand-new", shape | {"attention.sliding_window_pattern": pattern}, 24)
    assert kv.kv_bytes(told, Shape(131_072, 1)) == 6 * 2048 * 131_072 + 18 * 2048 * 768


def test_ods_3324_equal_attention_is_equal_kv_whatever_the_parameters(tmp_path: Path) -> None:
    # Both: 32 layers, 8 key-value heads of 128: 2 x 8 x 128 x 2 x 32 = 128 KiB a position.
    shape = {"embedding_length": 4096, "attention.head_count": 32, "attention.head_count_kv": 8}
    dense = small(tmp_path / "dense.gguf", "llama", shape, 32)
    moe = tmp_path / "moe.gguf"
    tensors: headers.Tensors = [("token_embd.weight", (4096, 32_000), F16)]
    tensors += [(f"blk.{i}.ffn_up_exps.weight", (4096, 14_336, 32), F16) for i in range(32)]
    headers.write_header(moe, "llama", {"block_count": 32, **shape, "expert_count": 32}, tensors)
    large = read_model(moe)
    assert large.weights.total > 100 * dense.weights.total
    for found in (dense, large):
        assert kv.kv_bytes(found, Shape(1024, 1)) == 128 * KIB * 1024
    assert large.has_routed_experts
    assert not dense.has_routed_experts


def test_per_layer_head_counts_and_layers_without_attention(tmp_path: Path) -> None:
    # Head counts per layer 8, 4, 0, 2 (Nemotron-style): (8 + 4 + 0 + 2) x 128 x 2 x 2 = 7,168 bytes a position.
    keys = {"embedding_length": 4096, "attention.head_count": 32, "attention.head_count_kv": [8, 4, 0, 2],
            "attention.key_length": 128, "attention.value_length": 128}  # fmt: skip
    found = small(tmp_path / "deci.gguf", "deci", keys, 4)
    assert kv.kv_bytes(found, Shape(256, 1)) == 7168 * 256
    assert not found.is_recurrent


def test_latent_attention_keeps_one_compressed_vector(model: Named) -> None:
    # DeepSeek-V2-Lite: rank 512 + 64 rotated = 576 elements of f16 a layer, 27 layers: 31,104 bytes a position.
    assert kv.kv_bytes(model("deepseek-v2-lite"), Shape(4096, 1)) == 31_104 * 4096


def test_gemma_slides_in_five_layers_of_six(model: Named) -> None:
    # 26 layers, of which 4 (6th, 12th, 18th, 24th) see all; 1 key-value head of 256: 1,024 bytes a layer and position.
    # 22 others hold 512 + 512, which is a multiple of 256.
    assert kv.kv_bytes(model("gemma3-1b"), Shape(32_768, 1)) == 1024 * (4 * 32_768 + 22 * 1024)


def test_weights_are_those_of_the_tensors(model: Named) -> None:
    # gpt-oss-120b: an expert's three matrices of 2,880 x 2,880 in MXFP4 (17 bytes for 32): 4,406,400 bytes each; with
    # 128 experts and 36 layers 3 x 128 x 36 x 4,406,400 = 60,914,073,600, and 3 biases of 2,880 x 128 floats a layer.
    experts = 3 * 128 * 36 * 4_406_400 + 36 * 3 * 2880 * 128 * 4
    assert model("gpt-oss-120b").weights.experts == experts
    # Embedding and output: 2,880 x 201,088 in Q8_0 (34 bytes for 32) each; the output's norm 2,880 floats.
    ends = 2880 * 201_088 * 34 // 32
    assert model("gpt-oss-120b").weights.input == ends
    assert model("gpt-oss-120b").weights.output == ends + 4 * 2880
    # Tied: the embedding is the output as well, and a card that computes it needs it a second time.
    tied = model("qwen3-4b").weights
    assert tied.tied == tied.input == 2560 * 151_936 * 210 // 256
    assert model("gpt-oss-120b").weights.tied == 0


@pytest.mark.parametrize(
    ("kind", "size"),
    # 1,024 elements: bytes of ggml's blocks by their definitions (32 values and a 16-bit scale; a minimum; a fifth bit).
    [("f32", 4096), ("f16", 2048), ("bf16", 2048), ("q8_0", 32 * 34), ("q4_0", 32 * 18), ("q4_1", 32 * 20),
     ("iq4_nl", 32 * 18), ("q5_0", 32 * 22), ("q5_1", 32 * 24)],
)  # fmt: skip
def test_ollama_10128_each_type_of_the_cache_has_its_size_and_k_and_v_are_apart(
    model: Named, kind: str, size: int
) -> None:
    # Qwen3-4B: 36 layers, 8 key-value heads of 128: 1,024 elements of K and of V a layer and position.
    found, this = model("qwen3-4b"), CacheType(kind)
    assert kv.kv_bytes(found, Shape(256, 1, this, CacheType.F16)) == 36 * 256 * (size + 2048)
    assert kv.kv_bytes(found, Shape(256, 1, CacheType.F16, this)) == 36 * 256 * (2048 + size)


@pytest.mark.parametrize("sequences", range(1, 9))
@pytest.mark.parametrize("window", [512, 1000, 8192])
def test_ollama_14120_kv_is_for_the_tokens_that_are_allocated(model: Named, sequences: int, window: int) -> None:
    # Qwen3-4B: 36 x 2 x 1,024 x 2 = 147,456 bytes a position. Split, each sequence has its window rounded up to 256;
    # 1,000 x S rounded up and divided gives each at least 1,000, so 1,024.
    each = -(-window // 256) * 256
    assert kv.kv_bytes(model("qwen3-4b"), Shape(window, sequences)) == 147_456 * each * sequences
    together = -(-window * sequences // 256) * 256
    assert kv.kv_bytes(model("qwen3-4b"), Shape(window, sequences, unified=True)) == 147_456 * together


def test_llama_cpp_11681_ctx_size_is_the_window_times_the_sequences() -> None:
    shape = Shape(8192, 4)
    assert shape.ctx_size == 32_768
    assert shape.ctx_size // shape.sequences >= 8192
    assert shape.cells == 8192


def test_a_split_model_is_the_sum_of_its_parts_and_a_missing_one_is_named(tmp_path: Path) -> None:
    keys = {"block_count": 2, "embedding_length": 64, "attention.head_count": 4}
    first = tmp_path / "big-00001-of-00002.gguf"
    second = tmp_path / "big-00002-of-00002.gguf"
    general = {"split__count": 2, "split__tensors__count": 3}
    headers.write_header(
        first, "llama", keys, [("token_embd.weight", (64, 100), F16), ("blk.0.x.weight", (64, 64), F16)], **general
    )
    with pytest.raises(ModelError, match=r"lacks 1 of its 2 parts: big-00002-of-00002\.gguf"):
        read_model(first)
    headers.write_header(second, "llama", {}, [("blk.1.x.weight", (64, 64), F16)], split__count=2)
    assert read_model(first).weights.total == 64 * 100 * 2 + 2 * 64 * 64 * 2
    with pytest.raises(ModelError, match="is not the first of its 2 parts"):
        read_model(second)
    short = second.read_bytes()[:-100]
    second.write_bytes(short)
    with pytest.raises(ModelError, match=rf"expected {len(short) + 100:,} bytes, found {len(short):,}"):
        read_model(first)


def test_a_120b_header_is_read_in_milliseconds(files: dict[str, Path]) -> None:
    began = time.perf_counter()
    read_model(files["gpt-oss-120b"])
    assert time.perf_counter() - began < 1.0  # 10 ms here; a busy machine may take its time


def test_a_vocabulary_is_walked_through_once_as_long_as_its_file_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    walk, walked = Cursor._end_of_texts, []

    def counted(cursor: Cursor, length: int) -> int:
        walked.append(length)
        return walk(cursor, length)

    def made(tokens: int) -> Path:
        vocabulary = {
            "tokenizer__ggml__tokens": [f"<{n}>" for n in range(tokens)],
            "tokenizer__ggml__merges": ["a b"] * 1500,
        }
        return headers.write_header(
            tmp_path / "m.gguf", "llama", {"block_count": 1}, [("a", (32, 2), F16)], **vocabulary
        )

    monkeypatch.setenv("QUEENRIGHT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(pins, "RACY_NS", 0)
    monkeypatch.setattr(Cursor, "_end_of_texts", counted)
    first = read_model(made(5000))
    assert (first.vocabulary, walked) == (5000, [5000, 1500])
    assert read_model(tmp_path / "m.gguf") == first
    assert walked == [5000, 1500]
    assert read_model(made(6000)).vocabulary == 6000
    assert walked == [5000, 1500, 6000, 1500]
