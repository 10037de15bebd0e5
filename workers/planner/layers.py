"""What each layer of a model keeps of a conversation: keys and values for a window or for all of it, or a state.

The rules are llama.cpp's (`llama_hparams`, `load_hparams` of its models). What cannot be known is counted from above,
with the reason in `conservative`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from workers.planner import architecture as arch

if TYPE_CHECKING:
    from workers.gguf_header import Header

F32: Final = 4
MOST_LAYERS: Final = 1024
"""The deepest models have some 130. Bounds what a header can make us do."""


class Layer(NamedTuple):
    """One block. Widths are elements per position; `window` is in tokens, 0 = the whole context; `state_bytes` is per
    sequence, whatever the context."""

    k_width: int = 0
    v_width: int = 0
    window: int = 0
    state_bytes: int = 0


def layers_of(header: Header) -> tuple[tuple[Layer, ...], tuple[str, ...]]:
    """The layers of a model by its (first) header, and what of them is an upper bound, each a sentence."""
    return _Reading(header).layers()


class _Reading:
    """One header, read by llama.cpp's rules."""

    def __init__(self, header: Header) -> None:
        self.header = header
        self.name = header.architecture
        self.conservative: list[str] = []
        blocks = min(self.number("block_count"), MOST_LAYERS)
        self.count = max(0, blocks - self.number("nextn_predict_layers"))

    def number(self, key: str, default: int = 0) -> int:
        value = self.header.number(key)
        return default if value is None or value < 0 else value

    def per_layer(self, key: str, default: int) -> list[int]:
        """A number for all layers or one for each. A short array leaves the rest at its largest."""
        value: Any = self.header.metadata.get(f"{self.name}.{key}")
        if isinstance(value, tuple):
            each = [int(one) for one in value if isinstance(one, int)]
            return (each + [max(each, default=default)] * self.count)[: self.count]
        return [self.number(key, default)] * self.count

    def layers(self) -> tuple[tuple[Layer, ...], tuple[str, ...]]:
        if self.name in arch.NO_CACHE:
            return (Layer(),) * self.count, ()
        if not arch.is_known(self.name):
            self.conservative.append(
                f"the architecture {self.name or '(none)'} is not known here: every layer is counted as if it held keys and "
                "values for the whole context"
            )
        recurrent = self.recurrent()
        windows = self.windows()
        own = self.layers_with_a_cache()
        widths = self.widths()
        found = []
        for index in range(self.count):
            cached = index < own and self.attends(index, recurrent)
            k, v = widths(index, bool(windows[index])) if cached else (0, 0)
            found.append(Layer(k, v, windows[index], self.state() if recurrent[index] else 0))
        return tuple(found), tuple(self.conservative)

    # --- which layer does what

    def attends(self, index: int, recurrent: list[bool]) -> bool:
        return not recurrent[index] or self.name in arch.BOTH

    def recurrent(self) -> list[bool]:
        if self.name in arch.ALL_RECURRENT or self.name in arch.BOTH:
            return [True] * self.count
        interval = self.number("full_attention_interval", arch.FULL_ATTENTION_INTERVAL.get(self.name, 0))
        if interval and (self.name in arch.FULL_ATTENTION_INTERVAL or self.has_state):
            return [(index + 1) % interval != 0 for index in range(self.count)]
        if self.has_state and self.name not in arch.PLAIN:
            kv = self.per_layer("attention.head_count_kv", self.number("attention.head_count"))
            feed = self.header.metadata.get(f"{self.name}.feed_forward_length")
            ff = self.per_layer("feed_forward_length", 0) if isinstance(feed, tuple) else [0] * self.count
            return [not heads and not width for heads, width in zip(kv, ff, strict=True)]
        return [False] * self.count

    @property
    def has_state(self) -> bool:
        keys = ("ssm.inner_size", "ssm.state_size", "shortconv.l_cache", "wkv.head_size", "kda.head_dim")
        return any(self.header.number(key) for key in keys)

    def layers_with_a_cache(self) -> int:
        shared = self.number("attention.shared_kv_layers")
        return self.count - shared if shared else min(self.count, arch.KV_FROM_START.get(self.name, self.count))

    def windows(self) -> list[int]:
        """The window of each layer, 0 for the whole context."""
        window = self.number("attention.sliding_window", arch.CHUNK.get(self.name, 0))
        if not window or self.name in arch.NEVER_SLIDES:
            return [0] * self.count
        pattern: Any = self.header.metadata.get(f"{self.name}.attention.sliding_window_pattern")
        if isinstance(pattern, tuple):
            slides = [bool(one) for one in pattern][: self.count]
            return [window if one else 0 for one in slides + [False] * (self.count - len(slides))]
        known = arch.SLIDING_PERIOD.get(self.name)
        period = pattern if isinstance(pattern, int) and not isinstance(pattern, bool) else known
        if period is None:
            self.conservative.append(
                f"the header names a sliding window of {window:,} tokens but not which layers slide: all are counted as if "
                "they held the whole context"
            )
            return [0] * self.count
        return [window if not period or index % period < period - 1 else 0 for index in range(self.count)]

    # --- how much

    def widths(self) -> Any:
        """(index, slides) -> (elements of K, of V) per position."""
        heads = self.per_layer("attention.head_count", 0)
        metadata = self.header.metadata
        if f"{self.name}.attention.head_count_kv" in metadata:
            kv_heads = self.per_layer("attention.head_count_kv", 0)
        else:
            kv_heads = heads
        whole = self.number("embedding_length") // max(1, *heads) if heads else 0
        k, v = self.number("attention.key_length", whole), self.number("attention.value_length", whole)
        k_slides = self.number("attention.key_length_swa", k)
        v_slides = self.number("attention.value_length_swa", v)
        latent = self.number("attention.kv_lora_rank")
        if latent and self.number("attention.key_length_mla"):
            # Multi-head latent attention: one compressed vector and the rotated part for all heads. Since the values are
            # a part of that vector, llama.cpp keeps no second copy of them.
            rotated = self.number("rope.dimension_count")
            indexer = self.number("attention.indexer.key_length")
            if indexer:
                self.conservative.append("the indexer's keys are counted for every layer")
            return lambda index, slides: (latent + rotated + indexer, 0) if kv_heads[index] else (0, 0)
        return lambda index, slides: (
            kv_heads[index] * (k_slides if slides else k),
            kv_heads[index] * (v_slides if slides else v),
        )

    def state(self) -> int:
        """Bytes of one layer's recurrent state, for one sequence: the last inputs of its convolution, and its memory, in
        32-bit floats (n_embd_r and n_embd_s of llama.cpp)."""
        embedding = self.number("embedding_length")
        if head := self.number("wkv.head_size"):
            return F32 * embedding * (arch.TOKEN_SHIFTS.get(self.name, 2) + head)
        if cache := self.number("shortconv.l_cache"):
            return F32 * embedding * (cache - 1)
        kernel = max(0, self.number("ssm.conv_kernel") - 1)
        if head := self.number("kda.head_dim"):
            heads = max(self.per_layer("attention.head_count", 0), default=0)
            return F32 * head * heads * (3 * kernel + head)
        inner, state = self.number("ssm.inner_size"), self.number("ssm.state_size")
        return F32 * (kernel * (inner + 2 * self.number("ssm.group_count") * state) + state * inner)
