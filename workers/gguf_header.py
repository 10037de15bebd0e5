"""Read a model file's GGUF header: milliseconds, no library, and never the weights.

Format: the GGUF specification in ggml (docs/gguf.md). The `gguf` package needs 1.8 s for the same header, since it
makes an object of every token (measured); this reader steps over the bodies of long arrays.

The file is read with pread, not mapped: a file that somebody truncates under a mapping kills its reader by SIGBUS,
and this reader lives in the keeper.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

from supervisor.errors import ModelError
from workers.gguf_cursor import LEAST_PAIR, LEAST_TENSOR, BadHeaderError, Cursor, MetadataValue, ShortHeaderError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from workers.ggml_types import TensorInfo

MAGIC: Final = b"GGUF"
VERSIONS: Final = (2, 3)
DEFAULT_ALIGNMENT: Final = 32

MOST_PAIRS: Final = 1 << 16
"""Metadata entries. Real files have 20 to 100."""

MOST_TENSORS: Final = 1 << 17
"""Tensors. The largest models in one tensor per expert and layer have some 50,000."""

MOST_HEADER: Final = 256 << 20
"""Bytes. The largest vocabularies known make headers of about 16 MiB. Bounds memory and time, whatever the file."""

FIRST_READ: Final = 1 << 20
"""Bytes of the first read; a longer header is read again four times as far, so that the total stays under 1.4 x."""


class Header(NamedTuple):
    """What a GGUF file says of itself.

    `architecture` is "" in the later files of a split model, which carry none. `expected_size` is the end of the last
    tensor in bytes: the file has at least as many, or `read_header` had refused it; None when a tensor's type is not
    known here (a newer llama.cpp may well load it).
    """

    version: int
    architecture: str
    tensor_count: int
    metadata: Mapping[str, MetadataValue]
    tensors: tuple[TensorInfo, ...]
    data_offset: int
    expected_size: int | None
    file_size: int

    def number(self, key: str) -> int | None:
        """The whole number under `<architecture>.<key>`, such as `context_length`; None if there is none."""
        value = self.metadata.get(f"{self.architecture}.{key}")
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    @property
    def split_count(self) -> int:
        """How many files the model consists of; 1 for an ordinary one."""
        value = self.metadata.get("split.count", 1)
        return value if isinstance(value, int) and value > 0 else 1


def read_header(path: str | Path, ends: dict[int, int] | None = None) -> Header:
    """The header of the model file at `path`. `ends` is as for a Cursor: who keeps it for this very file spares most of the
    time, which is that of a vocabulary.

    Raises ModelError for a file that is missing, unreadable, no regular file, empty, no GGUF, of an unsupported
    version, damaged, or shorter than its own header says.
    """
    path = Path(path)
    try:
        # O_NONBLOCK: opening a FIFO would otherwise wait for a writer that never comes.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        raise ModelError(f"the model file {path} does not exist", "check the path in the configuration") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ModelError(f"the model file {path} cannot be read: {reason}", "check its path and permissions") from None
    try:
        return _read(descriptor, path, {} if ends is None else ends)
    except OSError as error:
        raise ModelError(f"the model file {path} cannot be read: {error.strerror}", "check the disk") from None
    finally:
        os.close(descriptor)


def _read(descriptor: int, path: Path, ends: dict[int, int]) -> Header:
    status = os.fstat(descriptor)
    if stat.S_ISDIR(status.st_mode):
        raise ModelError(f"the model path {path} is a directory", "name the .gguf file in it")
    if not stat.S_ISREG(status.st_mode):
        raise ModelError(f"the model path {path} is not a regular file", "name a .gguf file")
    size = status.st_size
    if size == 0:
        raise ModelError(f"the model file {path} is empty (0 bytes)", "fetch it again")
    limit = FIRST_READ
    while True:
        buffer = _pread(descriptor, min(limit, size))
        try:
            return _parse(buffer, size, path, ends)
        except ShortHeaderError:
            if len(buffer) < min(limit, size) or limit >= size:
                raise ModelError(
                    f"the model file {path} is truncated: its {size:,} bytes end within the header", "fetch it again"
                ) from None
            if limit >= MOST_HEADER:
                raise _damaged(path, f"the header is longer than {MOST_HEADER:,} bytes") from None
            limit *= 4
        except BadHeaderError as error:
            raise _damaged(path, str(error)) from None


def _pread(descriptor: int, length: int) -> bytes:
    parts: list[bytes] = []
    at = 0
    while at < length and (part := os.pread(descriptor, length - at, at)):
        parts.append(part)
        at += len(part)
    return b"".join(parts)


def _damaged(path: Path, why: str) -> ModelError:
    return ModelError(f"the model file {path} is damaged: {why}", "fetch it again")


def _parse(buffer: bytes, size: int, path: Path, ends: dict[int, int]) -> Header:
    _refuse_foreign(buffer, path)
    reader = Cursor(buffer, size, 8, ends)
    version = int.from_bytes(buffer[4:8], "little")
    tensor_count = reader.count("tensors", LEAST_TENSOR, MOST_TENSORS)
    pair_count = reader.count("metadata entries", LEAST_PAIR, MOST_PAIRS)
    metadata: dict[str, MetadataValue] = {}
    for _ in range(pair_count):
        key = reader.name()
        metadata[key] = reader.value(reader.u32())
    tensors = tuple([reader.tensor() for _ in range(tensor_count)])
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or not 0 < alignment <= 1 << 30 or alignment & (alignment - 1):
        raise BadHeaderError("general.alignment is not a power of two")
    data_offset = -(-reader.at // alignment) * alignment
    expected = _expected_size(tensors, reader.at, data_offset, alignment)
    if expected is not None and size < expected:
        raise ModelError(
            f"the model file {path} is truncated: expected {expected:,} bytes, found {size:,}", "fetch it again"
        )
    architecture = metadata.get("general.architecture", "")
    return Header(
        version=version,
        architecture=architecture if isinstance(architecture, str) else "",
        tensor_count=tensor_count,
        metadata=MappingProxyType(metadata),
        tensors=tensors,
        data_offset=data_offset,
        expected_size=expected,
        file_size=size,
    )


def _refuse_foreign(buffer: bytes, path: Path) -> None:
    start = buffer[:4]
    if start != MAGIC:
        if MAGIC.startswith(start):
            raise ShortHeaderError
        shown = " ".join(f"{byte:02x}" for byte in buffer[:8])
        raise ModelError(f"the model file {path} is not a GGUF file: it starts with {shown}", "name a .gguf file")
    if len(buffer) < 8:
        raise ShortHeaderError
    version = int.from_bytes(buffer[4:8], "little")
    if version not in VERSIONS:
        what = "big-endian" if version & 0xFFFF == 0 and version else f"GGUF version {version}"
        raise ModelError(
            f"the model file {path} is {what}, and this program reads little-endian versions 2 and 3",
            "convert it with llama.cpp's tools",
        )


def _expected_size(tensors: tuple[TensorInfo, ...], header_end: int, data_offset: int, alignment: int) -> int | None:
    end = header_end
    known = True
    for tensor in tensors:
        if tensor.offset % alignment:
            raise BadHeaderError(f"tensor {tensor.name!r} is not aligned to {alignment} bytes")
        try:
            length = tensor.size()
        except ValueError as error:
            raise BadHeaderError(f"tensor {tensor.name!r}: {error}") from None
        if length is None:
            known = False
        else:
            # Without the padding behind the last tensor: llama.cpp does not need it, and some writers leave it out.
            end = max(end, data_offset + tensor.offset + length)
    return end if known else None
