"""What this suite covered, and that every difference it knows of is documented."""

from __future__ import annotations

from dataclasses import fields

import pytest

from tests.proxy.conftest import KINDS, VARIABLE
from tests.proxy.traits import BUILT_IN, LLAMA_SWAP, Traits
from tests.support import ROOT


def test_a_real_llama_swap_was_covered_too() -> None:
    if "llama-swap" not in KINDS:
        pytest.skip(f"{VARIABLE} names no llama-swap binary: the built-in proxy alone was tested")


def test_every_difference_has_its_line_in_the_reference() -> None:
    text = (ROOT / "docs" / "reference" / "built-in-proxy.md").read_text()
    names = {field.name for field in fields(Traits)}
    assert not {name for name in names if f"`{name}`" not in text}
    assert not {name for name in names if getattr(BUILT_IN, name) == getattr(LLAMA_SWAP, name)}
