"""What `import supervisor.client` brings along: front ends do it at their start, whether they ask for an engine or not."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = {"attr", "attrs", "cattrs", "filelock", "httpcore", "httpx", "psutil", "rich", "ssl", "trio"}
"""Each costs from ten milliseconds to a hundred; what is promised is 150 for all of it."""


@pytest.mark.process
def test_importing_the_client_brings_nothing_heavy() -> None:
    code = (
        "import sys; before = set(sys.modules); import supervisor.client;"
        "print(*sorted({name.partition('.')[0] for name in set(sys.modules) - before}))"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    brought = set(done.stdout.split())
    assert "supervisor" in brought
    assert not brought & HEAVY
