"""The conversion, on a BERT of a few hundred numbers. The real one is pinned by its SHA-256 in the catalog."""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING

import gguf
import numpy as np
import pytest

from workers.gguf_header import read_header
from workers.minilm import BLOCK, EMBEDDINGS, convert

if TYPE_CHECKING:
    from pathlib import Path

TOKENS = ["[PAD]", "[unused0]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "word", "##s"]
CONFIG = {
    "vocab_size": len(TOKENS),
    "max_position_embeddings": 16,
    "hidden_size": 4,
    "num_hidden_layers": 2,
    "intermediate_size": 8,
    "num_attention_heads": 2,
    "layer_norm_eps": 1e-12,
    "type_vocab_size": 2,
}


def shapes() -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {"embeddings.word_embeddings.weight": (len(TOKENS), 4)}
    found |= {name: (4,) if "LayerNorm" in name else (2, 4) for name in EMBEDDINGS}
    for layer in range(2):
        for name in BLOCK:
            wide = 8 if name == "intermediate.dense" else 4
            deep = 8 if name == "output.dense" else 4
            matrix = (wide,) if "LayerNorm" in name else (wide, deep)
            found[f"encoder.layer.{layer}.{name}.weight"] = matrix
            found[f"encoder.layer.{layer}.{name}.bias"] = (wide,)
    return found


def write_sources(directory: Path, dtype: str = "F32") -> tuple[Path, Path, Path]:
    table: dict[str, object] = {}
    data = b""
    for number, (name, shape) in enumerate(shapes().items()):
        content = np.full(shape, number + 0.5, np.float32).tobytes()
        table[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    head = json.dumps(table).encode()
    weights, vocabulary, configuration = (directory / name for name in ("w", "v", "c"))
    weights.write_bytes(struct.pack("<Q", len(head)) + head + data)
    vocabulary.write_text("\n".join(TOKENS) + "\n", encoding="utf-8")
    configuration.write_text(json.dumps(CONFIG))
    return weights, vocabulary, configuration


def test_every_tensor_and_token_arrives(tmp_path: Path) -> None:
    made = tmp_path / "made.gguf"
    convert(*write_sources(tmp_path), made)
    header = read_header(made)
    assert header.architecture == "bert"
    assert header.number("context_length") == 16
    assert header.number("pooling_type") == gguf.PoolingType.MEAN
    assert header.metadata["tokenizer.ggml.tokens"] == (
        "[PAD]", "\u2581[unused0]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "\u2581word", "s",
    )  # fmt: skip
    types = header.metadata["tokenizer.ggml.token_type"]
    assert types == (3, 5, 2, 3, 3, 3, 1, 1)
    assert header.tensor_count == len(shapes())
    kinds = {tensor.name: tensor.type for tensor in header.tensors}
    assert kinds["blk.1.attn_q.weight"] == gguf.GGMLQuantizationType.F16
    assert kinds["blk.1.attn_q.bias"] == gguf.GGMLQuantizationType.F32
    values = {tensor.name: tensor.data for tensor in gguf.GGUFReader(made).tensors}
    for number, name in enumerate(shapes()):
        ours = EMBEDDINGS.get(name, "token_embd.weight")
        if name.startswith("encoder"):
            _, _, layer, *middle, part = name.split(".")
            ours = f"blk.{layer}.{BLOCK['.'.join(middle)]}.{part}"
        assert np.all(values[ours] == number + 0.5), name


def test_weights_of_another_kind_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is F16, not F32"):
        convert(*write_sources(tmp_path, "F16"), tmp_path / "made.gguf")
