"""Which proxies the conformance suite runs against, and the rig each test gets.

The built-in proxy always; a real llama-swap when QUEENRIGHT_LLAMA_SWAP names its binary.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import pytest

from tests.proxy.rig import Kind, Rig
from tests.proxy.traits import BUILT_IN, LLAMA_SWAP
from tests.support import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

VARIABLE = "QUEENRIGHT_LLAMA_SWAP"
# By absolute path and with -P, as the warden starts it.
BUILT_IN_COMMAND = (sys.executable, "-P", str(ROOT / "workers" / "proxy" / "__main__.py"))


def llama_swap() -> str:
    """The real binary to test, or ""."""
    return os.environ.get(VARIABLE, "")


KINDS = {"built-in": Kind("built-in", BUILT_IN_COMMAND, BUILT_IN)}
if llama_swap():
    KINDS["llama-swap"] = Kind("llama-swap", (llama_swap(),), LLAMA_SWAP)


@pytest.fixture(params=list(KINDS))
def kind(request: pytest.FixtureRequest) -> Kind:
    """The proxy under test. Without a real one its half is not there at all; test_coverage.py skips, saying why."""
    return KINDS[request.param]


@pytest.fixture
def rig(kind: Kind, tmp_path: Path) -> Iterator[Rig]:
    """A rig whose processes are all gone at the end."""
    rig = Rig(kind, tmp_path)
    try:
        yield rig
    finally:
        rig.close()


@pytest.fixture
def built_in(tmp_path: Path) -> Iterator[Rig]:
    """A rig for what only the built-in proxy promises."""
    rig = Rig(KINDS["built-in"], tmp_path)
    try:
        yield rig
    finally:
        rig.close()
