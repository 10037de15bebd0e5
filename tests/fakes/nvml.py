"""A machine with NVIDIA devices that are not there: builds tests/fakes/nvml.c, and writes what it is to say.

The real pynvml loads it, in the process that asks, by LD_LIBRARY_PATH.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Sequence

SOURCE = Path(__file__).with_name("nvml.c")
MIB = 2**20
GIB = 2**30
NOT_SUPPORTED, NO_PERMISSION, DRIVER_NOT_LOADED, GPU_IS_LOST = 3, 4, 9, 15  # nvml.h, nvmlReturn_t


@dataclass(frozen=True)
class Gpu:
    """One device, or a slice of one. A whole number in place of an answer is an error's; `processes` are (pid, bytes),
    None where the driver does not say."""

    uuid: str
    memory: tuple[int, int] | int
    """Total and free bytes."""
    pci: str = "00000000:01:00.0"
    name: str = "NVIDIA Fake 24"
    bar1: int | None = 256 * MIB
    """Bytes; None: not supported, as on a device that shares the host's memory."""
    mig: bool | int = NOT_SUPPORTED
    processes: Sequence[tuple[int, int | None]] | int = ()
    slices: Sequence[Gpu] = ()
    lost: int = 0
    """The error that asking for its handle gives."""

    def lines(self, head: str) -> list[str]:
        """As the fake reads it."""
        found = [head, f"name {self.name}", f"bar1 {'!3' if self.bar1 is None else self.bar1}"]
        found.append(f"memory {_said(self.memory) if isinstance(self.memory, int) else '{} {}'.format(*self.memory)}")
        found.append(f"mig {int(self.mig) if isinstance(self.mig, bool) else _said(self.mig)}")
        found += [f"handle {_said(self.lost)}"] if self.lost else []
        if isinstance(self.processes, int):
            found.append(f"process {_said(self.processes)}")
        else:
            found += [f"process {pid} {'-' if size is None else size}" for pid, size in self.processes]
        for one in self.slices:
            found += one.lines(f"slice {one.uuid}")
        return found


@dataclass
class FakeNvml:
    """The library and its script, in a directory of the test's."""

    folder: Path
    devices: list[Gpu] = field(default_factory=list)

    @property
    def environment(self) -> dict[str, str]:
        """For the process that is to load it."""
        return {
            "LD_LIBRARY_PATH": str(self.folder),
            "FAKE_NVML": str(self.folder / "script"),
            "FAKE_NVML_SHUTDOWN": str(self.folder / "shutdowns"),
        }

    @property
    def shutdowns(self) -> int:
        """How often it was shut down."""
        path = self.folder / "shutdowns"
        return path.read_text().count("shutdown") if path.exists() else 0

    def say(self, *devices: Gpu, init: int = 0, hang: bool = False, count: int = 0) -> None:
        """From now on there are these devices, in NVML's own order."""
        lines = [f"init {_said(init)}", f"count {_said(count)}", "driver 580.95.05", *(["hang"] if hang else [])]
        for one in devices:
            lines += one.lines(f"device {one.uuid} {one.pci}")
        fresh = self.folder / "script.new"
        fresh.write_text("\n".join(lines) + "\n")
        os.replace(fresh, self.folder / "script")


def _said(error: int) -> str:
    return f"!{error}" if error else "0"


def build(folder: Path) -> FakeNvml:
    """Compile it there. Skips the test where there is no C compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("the fake NVML is C, and there is no C compiler here (cc, gcc, clang)")
    words = [compiler, "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o", str(folder / "libnvidia-ml.so.1")]
    subprocess.run([*words, str(SOURCE)], check=True)
    fake = FakeNvml(folder)
    fake.say()
    return fake
