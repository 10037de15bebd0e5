"""An OOM kill by the kernel itself, in a control group of the test's own."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from supervisor import evidence
from supervisor.causes import Evidence, Word, name
from supervisor.contract import Exit

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.process

LIMIT = 64 * 2**20
EATER = "import sys; sys.stdin.read(1); eaten = [bytearray(b'x' * 2**20) for _ in range(400)]"


@pytest.fixture
def group() -> Iterator[Path]:
    """A control group whose processes may have 64 MiB. Skips where we may not make one."""
    root = Path(evidence.CGROUPS)
    version_1 = (root / "memory").is_dir()
    made = (root / "memory" if version_1 else root) / f"queenright-test-{uuid.uuid4().hex[:8]}"
    try:
        made.mkdir()
    except OSError as error:
        pytest.skip(f"no control group of our own: {error}")
    try:
        (made / ("memory.limit_in_bytes" if version_1 else "memory.max")).write_text(str(LIMIT))
        yield made
    except OSError as error:
        pytest.skip(f"no memory limit for a control group: {error}")
    finally:
        made.rmdir()


def test_llama_cpp_20509_an_oom_kill_by_the_kernel_is_named(group: Path) -> None:
    log = evidence.KernelLog()
    with subprocess.Popen([sys.executable, "-I", "-S", "-c", EATER], stdin=subprocess.PIPE) as eater:
        try:
            (group / "cgroup.procs").write_text(str(eater.pid))
            before = evidence.oom_kills(eater.pid)
            assert before is not None
            assert before.source.startswith(str(group))
            assert evidence.rise(before) == ""
            eater.communicate(b"\n", timeout=60)
        finally:
            eater.kill()
    if eater.returncode != -9:
        pytest.skip("the kernel did not enforce the limit: is there swap?")
    rose = evidence.rise(before)
    assert rose.endswith("rose from 0 to 1")
    kernel = log.of([eater.pid])
    found = name(Evidence(Exit(2, 9), was_ready=True, oom=rose, kernel=kernel))
    assert found.word is Word.OOM_KILL
    if os.access(evidence.KMSG, os.R_OK):
        assert not kernel or f"Killed process {eater.pid}" in found.detail
