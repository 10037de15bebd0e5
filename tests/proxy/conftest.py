"""Which proxies the conformance suite runs against, and the rig each test gets.

The built-in proxy always; a real llama-swap when QUEENRIGHT_LLAMA_SWAP names its binary.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.proxy.rig import Kind, Rig
from tests.proxy.traits import BUILT_IN, LLAMA_SWAP
from tests.support import ROOT

VARIABLE = "QUEENRIGHT_LLAMA_SWAP"
# By absolute path and with -P, as the warden starts it.
BUILT_IN_COMMAND = (sys.executable, "-P", str(ROOT / "workers" / "proxy" / "__main__.py"))


def llama_swap() -> str:
    """The real binary to test, or ""."""
    return os.environ.get(VARIABLE, "")


def pytest_report_header() -> str:
    """Say which proxies this run is about."""
    real = llama_swap() or f"not run ({VARIABLE} names no binary)"
    return f"proxy conformance: built-in: workers/proxy; llama-swap: {real}"


@pytest.fixture(params=["built-in", "llama-swap"])
def kind(request: pytest.FixtureRequest) -> Kind:
    """The proxy under test."""
    if request.param == "built-in":
        return Kind("built-in", BUILT_IN_COMMAND, BUILT_IN)
    binary = llama_swap()
    if not binary:
        pytest.skip(f"{VARIABLE} names no llama-swap binary")
    return Kind("llama-swap", (binary,), LLAMA_SWAP)


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
    rig = Rig(Kind("built-in", BUILT_IN_COMMAND, BUILT_IN), tmp_path)
    try:
        yield rig
    finally:
        rig.close()
