"""Facts of a model that memory depends on, out of its file's header, or the headers of its parts. Milliseconds.

The weights are counted tensor by tensor, so that what goes where can be said exactly; nothing is guessed from a number
of parameters (Osmantic/ODS#3324).
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from attrs import field, frozen

from supervisor.errors import ModelError
from workers import pins
from workers.gguf_cursor import Skipped
from workers.gguf_header import Header, read_header
from workers.planner.layers import Layer, layers_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from workers.ggml_types import TensorInfo

EXPERTS: Final = re.compile(r"\.ffn_(up|down|gate|gate_up)_(ch|)exps")
"""Names of routed experts' tensors: the pattern behind llama-server's own --cpu-moe and --n-cpu-moe."""

PART: Final = re.compile(r"^(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf$")
"""llama.cpp's names for the parts of a split model."""

UNKNOWN_TYPE: Final = (1, 4)
"""Elements and bytes of a block, for a tensor type that is not known here: no type takes more than 32 bits."""

_BLOCK: Final = re.compile(r"^blk\.(\d+)\.")


class Block(NamedTuple):
    """Bytes of one layer's weights: what every token needs, and the routed experts, of which each token uses a few."""

    dense: int = 0
    experts: int = 0


class Weights(NamedTuple):
    """Bytes of the weights by where llama.cpp puts them: `input` stays with the processor whatever else goes to a card,
    `output` goes with the last layer. `tied` are input's bytes that are needed a second time as output, where a card
    computes it."""

    input: int
    output: int
    tied: int
    blocks: tuple[Block, ...]

    @property
    def experts(self) -> int:
        """Bytes of all routed experts."""
        return sum(block.experts for block in self.blocks)

    @property
    def total(self) -> int:
        """Bytes of all tensors, each once."""
        return self.input + self.output + sum(block.dense + block.experts for block in self.blocks)


@frozen
class Model:
    """What is known of a model. `conservative` names what is counted from above."""

    name: str
    architecture: str
    layers: tuple[Layer, ...]
    weights: Weights
    trained_context: int
    vocabulary: int
    embedding: int
    feed_forward: int
    heads: int
    head_width: int
    experts: int = 0
    experts_used: int = 0
    expert_feed_forward: int = 0
    mtp_layers: int = 0
    pooling: int | None = None
    has_classifier: bool = False
    template: str = field(default="", repr=False)
    files: tuple[Path, ...] = ()
    file_bytes: int = 0
    conservative: tuple[str, ...] = ()

    @property
    def has_routed_experts(self) -> bool:
        """Whether the header declares experts and there are tensors of them: what --cpu-moe can act upon."""
        return self.experts > 0 and self.weights.experts > 0

    @property
    def window(self) -> int:
        """The sliding window in tokens; 0 where no layer slides."""
        return max((layer.window for layer in self.layers), default=0)

    @property
    def is_recurrent(self) -> bool:
        """Whether some layer keeps a state instead of, or beside, keys and values."""
        return any(layer.state_bytes for layer in self.layers)


def parts_of(path: Path, count: int) -> list[Path]:
    """The files of a model that says it has `count` parts. Raises ModelError when one is named otherwise or missing."""
    if count == 1:
        return [path]
    named = PART.match(path.name)
    if named is None or int(named["count"]) != count:
        raise ModelError(
            f"the model file {path} is one of {count} parts, and its name is not that of one",
            f"name the first part, NAME-00001-of-{count:05d}.gguf",
        )
    if int(named["number"]) != 1:
        raise ModelError(f"the model file {path} is not the first of its {count} parts", "name the first part")
    parts = [path.with_name(f"{named['stem']}-{number:05d}-of-{count:05d}.gguf") for number in range(1, count + 1)]
    if missing := [part for part in parts if not part.exists()]:
        which = ", ".join(part.name for part in missing)
        raise ModelError(f"the model {path} lacks {len(missing)} of its {count} parts: {which}", "fetch them again")
    return parts


def read_model(path: str | Path) -> Model:
    """The facts of the model in the file at `path` and, for a split model, in its other parts.

    Raises ModelError for a file that is broken or foreign (see gguf_header), and for a missing part.
    """
    path = Path(path)
    first = _header(path)
    parts = parts_of(path, first.split_count)
    headers = [first, *(_header(part) for part in parts[1:])]
    total = first.metadata.get("split.tensors.count")
    found = sum(header.tensor_count for header in headers)
    if isinstance(total, int) and len(headers) > 1 and total != found:
        raise ModelError(
            f"the parts of {path} have {found:,} tensors, and the model has {total:,}", "fetch all parts again"
        )
    return model_of(headers, parts)


def _header(path: Path) -> Header:
    """Where the vocabulary of a file ends is remembered: to walk through it takes 17 ms of the 21 of SmolLM2's header, and
    models of today have several times its 49,152 tokens."""

    def walk() -> str:
        ends: dict[int, int] = {}
        read_header(path, ends)
        return json.dumps(ends)

    said = pins.remembered("where long texts of the header end", path, walk)
    return read_header(path, {int(begin): end for begin, end in json.loads(said).items()})


def model_of(headers: Sequence[Header], files: Sequence[Path] = ()) -> Model:
    """The same, of headers that were read already. The first one carries the metadata."""
    first = headers[0]
    layers, conservative = layers_of(first)
    tensors = [tensor for header in headers for tensor in header.tensors]
    weights, unknown = _weights(tensors, len(layers) + (first.number("nextn_predict_layers") or 0))
    if unknown:
        conservative += (f"{unknown} tensors are of a type that is not known here, and counted at 32 bits an element",)
    heads = _most(first, "attention.head_count")
    embedding = first.number("embedding_length") or 0
    by_name = {tensor.name: tensor for tensor in tensors}
    template = first.metadata.get("tokenizer.chat_template", "")
    name = first.metadata.get("general.name", "")
    return Model(
        name=name if isinstance(name, str) and name else (files[0].stem if files else ""),
        architecture=first.architecture,
        layers=layers,
        weights=weights,
        trained_context=first.number("context_length") or 0,
        vocabulary=_vocabulary(first, by_name),
        embedding=embedding,
        feed_forward=_most(first, "feed_forward_length"),
        heads=heads,
        head_width=first.number("attention.key_length") or (embedding // heads if heads else 0),
        experts=first.number("expert_count") or 0,
        experts_used=first.number("expert_used_count") or 0,
        expert_feed_forward=first.number("expert_feed_forward_length") or 0,
        mtp_layers=first.number("nextn_predict_layers") or 0,
        pooling=first.number("pooling_type"),
        has_classifier="cls.output.weight" in by_name or "cls.weight" in by_name,
        template=template if isinstance(template, str) else "",
        files=tuple(files),
        file_bytes=sum(header.file_size for header in headers),
        conservative=conservative,
    )


def _most(header: Header, key: str) -> int:
    """A number, or the largest of an array of them."""
    value = header.metadata.get(f"{header.architecture}.{key}")
    if isinstance(value, tuple):
        return max((one for one in value if isinstance(one, int)), default=0)
    return header.number(key) or 0


def _vocabulary(header: Header, tensors: dict[str, TensorInfo]) -> int:
    if (tensor := tensors.get("token_embd.weight")) is not None and len(tensor.dimensions) > 1:
        return tensor.dimensions[1]
    tokens = header.metadata.get("tokenizer.ggml.tokens")
    if isinstance(tokens, Skipped):
        return tokens.count
    return len(tokens) if isinstance(tokens, tuple) else header.number("vocab_size") or 0


def _size(tensor: TensorInfo) -> tuple[int, bool]:
    """Bytes, and whether its type is known."""
    if (size := tensor.size()) is not None:
        return size, True
    elements = 1
    for dimension in tensor.dimensions:
        elements *= dimension
    return elements // UNKNOWN_TYPE[0] * UNKNOWN_TYPE[1], False


def _weights(tensors: Sequence[TensorInfo], count: int) -> tuple[Weights, int]:
    """The weights by place, and how many tensors are of an unknown type."""
    dense, experts = [0] * count, [0] * count
    first = output = tied = unknown = 0
    has_output = False
    for tensor in tensors:
        size, known = _size(tensor)
        unknown += not known
        block = _BLOCK.match(tensor.name)
        if block is not None and int(block[1]) < count:
            (experts if EXPERTS.search(tensor.name) else dense)[int(block[1])] += size
        elif tensor.name.startswith("output"):
            has_output |= tensor.name == "output.weight"
            output += size
        else:
            tied = size if tensor.name == "token_embd.weight" else tied
            first += size
    blocks = tuple(Block(*pair) for pair in zip(dense, experts, strict=True))
    return Weights(first, output, 0 if has_output else tied, blocks), unknown
