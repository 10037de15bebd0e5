"""A cursor over the bytes of a GGUF header. It knows the format's values; what they mean is gguf_header's business.

Nothing is ever allocated, or stepped over, by a number that stands in the file: each count is first held against the
bytes that are there.
"""

from __future__ import annotations

import struct
from typing import Any, Final, TypeAlias

from attrs import frozen

from workers.ggml_types import TensorInfo

MOST_DIMENSIONS: Final = 4
"""GGML_MAX_DIMS: llama.cpp refuses more."""

MOST_NAME: Final = 0xFFFF
"""Bytes of a key, by the specification."""

KEPT_ELEMENTS: Final = 1024
"""Arrays up to this length are kept (per-layer head counts), longer ones (the vocabulary) are stepped over."""

KEPT_TEXT: Final = 1 << 20
"""Texts up to this many bytes are kept. A chat template has some 10 kB; a whole tokenizer.json has 30 MB."""

MOST_STEPS: Final = 8_000_000
"""Elements looked at in one file: 10 times the largest vocabulary with its merges. Bounds the time to seconds."""

MetadataValue: TypeAlias = "bool | int | float | str | tuple[MetadataValue, ...] | Skipped"

_SCALARS: Final = {
    0: struct.Struct("<B"),
    1: struct.Struct("<b"),
    2: struct.Struct("<H"),
    3: struct.Struct("<h"),
    4: struct.Struct("<I"),
    5: struct.Struct("<i"),
    6: struct.Struct("<f"),
    7: struct.Struct("<?"),
    10: struct.Struct("<Q"),
    11: struct.Struct("<q"),
    12: struct.Struct("<d"),
}
_TEXT: Final = 8
_ARRAY: Final = 9
_U32: Final = struct.Struct("<I")
_U64: Final = struct.Struct("<Q")

LEAST_PAIR: Final = 8 + 4 + 1
"""Bytes of the smallest key-value pair: empty key, type, one byte."""

LEAST_TENSOR: Final = 8 + 4 + 4 + 8
"""Bytes of the smallest tensor entry: empty name, no dimensions, type, offset."""


@frozen
class Skipped:
    """A value that was stepped over: a long array (`element_type` is GGUF's number) or a long text (8, in bytes)."""

    element_type: int
    count: int


class ShortHeaderError(Exception):
    """The header goes on past the bytes at hand."""


class BadHeaderError(Exception):
    """The header cannot be right; the text says why."""


class Cursor:
    """Walks over `buffer`, the first bytes of a file of `size` bytes, from `at` on. `ends` says of long arrays of texts that
    were walked through, by where their texts begin, where they end; those that are walked through here are added.

    Raises ShortHeaderError at the end of the buffer, BadHeaderError where no further byte could help.
    """

    def __init__(self, buffer: bytes, size: int, at: int, ends: dict[int, int]) -> None:
        self.buffer = buffer
        self.size = size
        self.at = at
        self.ends = ends
        self.steps = 0

    def _take(self, form: struct.Struct) -> Any:
        try:
            value = form.unpack_from(self.buffer, self.at)[0]
        except struct.error:
            raise ShortHeaderError from None
        self.at += form.size
        return value

    def u32(self) -> int:
        """A 32-bit number."""
        value: int = self._take(_U32)
        return value

    def u64(self) -> int:
        """A 64-bit number that is only calculated with. For one that counts things, see `count`."""
        value: int = self._take(_U64)
        return value

    def count(self, what: str, least: int, most: int | None = None) -> int:
        """A number of things of at least `least` bytes each: at most `most`, and as many as the file has room for."""
        value = self.u64()
        if value * least > self.size - self.at:
            raise BadHeaderError(f"it claims {value:,} {what}, more than its {self.size:,} bytes have room for")
        if most is not None and value > most:
            raise BadHeaderError(f"it claims {value:,} {what}, and more than {most:,} are not believed")
        return value

    def _span(self, length: int) -> bytes:
        start = self.at
        self._skip(length)
        return self.buffer[start : self.at]

    def _skip(self, length: int) -> None:
        self.at += length
        if self.at > len(self.buffer):
            raise ShortHeaderError

    def _step(self, count: int) -> None:
        self.steps += count
        if self.steps > MOST_STEPS:
            raise BadHeaderError(f"its arrays have more than {MOST_STEPS:,} elements")

    def name(self) -> str:
        """A key or a tensor's name: decoded leniently, since it is only shown and looked up."""
        return self._span(self.count("bytes of a name", 1, MOST_NAME)).decode("utf-8", "replace")

    def value(self, kind: int) -> MetadataValue:
        """A metadata value of GGUF type `kind`."""
        if kind == _TEXT:
            return self._text()
        if kind == _ARRAY:
            return self._array()
        if kind not in _SCALARS:
            raise BadHeaderError(f"metadata of the unknown type {kind}")
        value: MetadataValue = self._take(_SCALARS[kind])
        return value

    def _text(self) -> MetadataValue:
        length = self.count("bytes of text", 1)
        if length <= KEPT_TEXT:
            return self._span(length).decode("utf-8", "replace")
        self._skip(length)
        return Skipped(_TEXT, length)

    def _array(self) -> MetadataValue:
        kind = self.u32()
        if kind != _TEXT and kind not in _SCALARS:
            raise BadHeaderError(f"an array of the type {kind}")
        least = 8 if kind == _TEXT else _SCALARS[kind].size
        length = self.count("array elements", least)
        if length <= KEPT_ELEMENTS:
            self._step(length)
            return tuple([self.value(kind) for _ in range(length)])
        if kind == _TEXT:
            self._step(length)
            if self.at not in self.ends:
                self.ends[self.at] = self._end_of_texts(length)
            self._skip(self.ends[self.at] - self.at)
        else:
            self._skip(length * least)
        return Skipped(kind, length)

    def _end_of_texts(self, length: int) -> int:
        # The one loop that matters: 0.1 us a round, and a vocabulary has up to half a million of them.
        at, buffer, unpack = self.at, self.buffer, _U64.unpack_from
        try:
            for _ in range(length):
                at += 8 + unpack(buffer, at)[0]
        except (struct.error, OverflowError):  # the latter: a position beyond what a C ssize_t holds
            if at > self.size:
                raise BadHeaderError("it claims a text that is longer than the file") from None
            raise ShortHeaderError from None
        return at

    def tensor(self) -> TensorInfo:
        """One entry of the tensor list."""
        name = self.name()
        dimension_count = self.u32()
        if dimension_count > MOST_DIMENSIONS:
            raise BadHeaderError(f"tensor {name!r} has {dimension_count} dimensions")
        dimensions = tuple([self.u64() for _ in range(dimension_count)])
        kind = self.u32()
        return TensorInfo(name, dimensions, kind, self.u64())
