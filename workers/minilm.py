"""Convert all-MiniLM-L6-v2 from safetensors to GGUF (f16), with numpy and gguf alone.

Only for this one model: what is specific to it (WordPiece vocabulary, mean pooling, absolute positions) is written
down here, not read from its configuration. The result is the same byte for byte with gguf 0.11 to 0.19 and numpy 1.26
to 2.4 (measured), so the catalog pins its SHA-256. That llama.cpp computes the right vectors with it was checked
against the published similarities of the model's page (0.755 for its first pair).
"""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

SPECIAL: Final = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")

WORD_START: Final = "\u2581"
"""llama.cpp marks the pieces that begin a word; WordPiece files mark those that go on one, by '##'."""

EMBEDDINGS: Final = {
    "embeddings.position_embeddings.weight": "position_embd.weight",
    "embeddings.token_type_embeddings.weight": "token_types.weight",
    "embeddings.LayerNorm.weight": "token_embd_norm.weight",
    "embeddings.LayerNorm.bias": "token_embd_norm.bias",
}
"""Kept in f32; llama.cpp wants these so, and they are small."""

BLOCK: Final = {
    "attention.self.query": "attn_q",
    "attention.self.key": "attn_k",
    "attention.self.value": "attn_v",
    "attention.output.dense": "attn_output",
    "attention.output.LayerNorm": "attn_output_norm",
    "intermediate.dense": "ffn_up",
    "output.dense": "ffn_down",
    "output.LayerNorm": "layer_output_norm",
}


def convert(weights: Path, vocabulary: Path, configuration: Path, target: Path) -> None:
    """Write `target`. The sources must have been checked before: a wrong one raises anything. Raises OSError."""
    import gguf
    import numpy as np

    config = json.loads(configuration.read_text(encoding="utf-8"))
    tokens = vocabulary.read_text(encoding="utf-8").split("\n")[: config["vocab_size"]]
    tensors = _Safetensors(weights)
    writer = gguf.GGUFWriter(target, "bert")
    try:
        writer.add_name("all-MiniLM-L6-v2")
        writer.add_license("apache-2.0")
        writer.add_context_length(config["max_position_embeddings"])
        writer.add_embedding_length(config["hidden_size"])
        writer.add_block_count(config["num_hidden_layers"])
        writer.add_feed_forward_length(config["intermediate_size"])
        writer.add_head_count(config["num_attention_heads"])
        writer.add_layer_norm_eps(config["layer_norm_eps"])
        writer.add_causal_attention(False)
        writer.add_token_type_count(config["type_vocab_size"])
        writer.add_pooling_type(gguf.PoolingType.MEAN)
        writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
        _add_tokenizer(writer, gguf.TokenType, tokens)
        writer.add_tensor("token_embd.weight", tensors["embeddings.word_embeddings.weight"].astype(np.float16))
        for theirs, ours in EMBEDDINGS.items():
            writer.add_tensor(ours, tensors[theirs])
        for layer in range(config["num_hidden_layers"]):
            for theirs, ours in BLOCK.items():
                for part in ("weight", "bias"):
                    tensor = tensors[f"encoder.layer.{layer}.{theirs}.{part}"]
                    matrix = tensor.ndim == 2
                    writer.add_tensor(f"blk.{layer}.{ours}.{part}", tensor.astype(np.float16) if matrix else tensor)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
    finally:
        writer.close()


def _add_tokenizer(writer: Any, kinds: Any, tokens: list[str]) -> None:
    pieces: list[str] = []
    types: list[int] = []
    for token in tokens:
        if token in SPECIAL:
            pieces.append(token)
            types.append(kinds.UNKNOWN if token == "[UNK]" else kinds.CONTROL)  # noqa: S105  # a token, no password
        else:
            pieces.append(token[2:] if token.startswith("##") else WORD_START + token)
            types.append(kinds.UNUSED if token.startswith("[unused") else kinds.NORMAL)
    writer.add_tokenizer_model("bert")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(pieces)
    writer.add_token_types(types)
    writer.add_unk_token_id(tokens.index("[UNK]"))
    writer.add_sep_token_id(tokens.index("[SEP]"))
    writer.add_pad_token_id(tokens.index("[PAD]"))
    writer.add_mask_token_id(tokens.index("[MASK]"))
    writer.add_bos_token_id(tokens.index("[CLS]"))
    writer.add_eos_token_id(tokens.index("[SEP]"))


class _Safetensors:
    """The f32 tensors of a safetensors file: an 8-byte length, a JSON table, the data (safetensors' README)."""

    def __init__(self, path: Path) -> None:
        import numpy as np

        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            self._table: dict[str, Any] = json.loads(file.read(length))
        self._start = 8 + length
        self._bytes = np.memmap(path, np.uint8, "r")

    def __getitem__(self, name: str) -> NDArray[np.float32]:
        import numpy as np

        entry = self._table[name]
        if entry["dtype"] != "F32":
            raise ValueError(f"tensor {name} is {entry['dtype']}, not F32")
        first, last = entry["data_offsets"]
        part = self._bytes[self._start + first : self._start + last]
        return np.array(part).view(np.float32).reshape(entry["shape"])
