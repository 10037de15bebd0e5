"""A fake NVML for the process that asks, and a fake root with what the kernel says."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.fakes import nvml

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fakes.nvml import FakeNvml


@pytest.fixture(scope="session")
def built_nvml(tmp_path_factory: pytest.TempPathFactory) -> FakeNvml:
    """Compiled once."""
    return nvml.build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def fake_nvml(built_nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    """Loaded by whatever process is started from here on; it has no device yet."""
    for name, value in built_nvml.environment.items():
        monkeypatch.setenv(name, value)
    (built_nvml.folder / "shutdowns").unlink(missing_ok=True)
    built_nvml.say()
    return built_nvml


@pytest.fixture
def root(tmp_path: Path) -> FakeRoot:
    """A machine with 121 GiB, of which 61 are available."""
    made = FakeRoot(tmp_path / "root")
    made.meminfo(MemTotal=121 * 2**30, MemFree=10 * 2**30, MemAvailable=61 * 2**30)
    return made


class FakeRoot:
    """A directory with /proc and /sys in it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        (path / "proc").mkdir(parents=True)

    def __str__(self) -> str:
        return str(self.path)

    def put(self, name: str, text: str) -> None:
        """A file of it."""
        path = self.path / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def meminfo(self, **figures: int) -> None:
        """In bytes; `Active_file` and `Inactive_file` stand for the names with brackets."""
        names = {"Active_file": "Active(file)", "Inactive_file": "Inactive(file)"}
        self.put("/proc/meminfo", "".join(f"{names.get(k, k)}:{v // 1024:>16} kB\n" for k, v in figures.items()))

    def group(self, folder: str, **files: int | str) -> None:
        """A control group's files; two underscores stand for a dot."""
        for name, value in files.items():
            self.put(f"{folder}/{name.replace('__', '.')}", f"{value}\n")
