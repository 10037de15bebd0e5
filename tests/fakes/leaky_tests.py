"""Tests that misbehave, for tests/process/test_leak_check.py. Not collected by themselves, by their file's name."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

_kept: list[subprocess.Popen[bytes]] = []


@pytest.fixture(scope="module", autouse=True)
def of_the_module() -> Iterator[None]:
    """A process that is no single test's."""
    with subprocess.Popen(["/bin/sleep", "999"]) as process:
        yield
        process.kill()
    for one in _kept:
        one.wait(10)  # killed by the check


@pytest.mark.process
def test_that_leaves_a_process() -> None:
    _kept.append(subprocess.Popen(["/bin/sleep", "1000"], env={}, start_new_session=True))


@pytest.mark.process
def test_that_leaves_nothing() -> None:
    subprocess.run(["/bin/true"], check=True)


def test_that_is_not_marked() -> None:
    subprocess.run(["/bin/true"], check=True)
