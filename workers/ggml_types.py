"""How many bytes a tensor takes in a GGUF file, by its ggml type."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

TYPE_SIZES: Final[Mapping[int, tuple[int, int]]] = MappingProxyType(
    {
        0: (1, 4),  # F32
        1: (1, 2),  # F16
        2: (32, 18),  # Q4_0
        3: (32, 20),  # Q4_1
        6: (32, 22),  # Q5_0
        7: (32, 24),  # Q5_1
        8: (32, 34),  # Q8_0
        9: (32, 40),  # Q8_1
        10: (256, 84),  # Q2_K
        11: (256, 110),  # Q3_K
        12: (256, 144),  # Q4_K
        13: (256, 176),  # Q5_K
        14: (256, 210),  # Q6_K
        15: (256, 292),  # Q8_K
        16: (256, 66),  # IQ2_XXS
        17: (256, 74),  # IQ2_XS
        18: (256, 98),  # IQ3_XXS
        19: (256, 50),  # IQ1_S
        20: (32, 18),  # IQ4_NL
        21: (256, 110),  # IQ3_S
        22: (256, 82),  # IQ2_S
        23: (256, 136),  # IQ4_XS
        24: (1, 1),  # I8
        25: (1, 2),  # I16
        26: (1, 4),  # I32
        27: (1, 8),  # I64
        28: (1, 8),  # F64
        29: (256, 56),  # IQ1_M
        30: (1, 2),  # BF16
        34: (256, 54),  # TQ1_0
        35: (256, 66),  # TQ2_0
        39: (32, 17),  # MXFP4
    }
)
"""ggml tensor type -> (elements per block, bytes per block): ggml's type_traits table. A test holds it against the
`gguf` package's own."""


class TensorInfo(NamedTuple):
    """One tensor as the header tells it. `offset` is relative to the header's `data_offset`, in bytes."""

    name: str
    dimensions: tuple[int, ...]
    type: int
    offset: int

    def size(self) -> int | None:
        """Bytes, or None when the type is not known to this program. Raises ValueError if it is no whole block."""
        if self.type not in TYPE_SIZES:
            return None
        block, size = TYPE_SIZES[self.type]
        elements = 1
        for dimension in self.dimensions:
            elements *= dimension
        row = self.dimensions[0] if self.dimensions else 1
        if row % block:
            raise ValueError(f"rows of {row} elements are not whole blocks of {block}")
        return elements // block * size
