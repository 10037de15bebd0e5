"""`make release-check` and `make changelog`: each thing they look at can be wrong, and is then said."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

import pytest

from tests.packaging.helpers import ROOT

if TYPE_CHECKING:
    from pathlib import Path


def script(name: str) -> Any:
    """A program of .ci/, which is no package."""
    spec = importlib.util.spec_from_file_location(name, ROOT / ".ci" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


check, changelog = script("release_check"), script("changelog")


def test_no_file_is_there_that_nobody_meant(tmp_path: Path) -> None:
    assert check.leftovers(check.files()) == []
    (tmp_path / "large.json").write_bytes(bytes(check.LARGE + 1))
    names = ["supervisor/cli.py", "a.orig", "workers/__pycache__/x.pyc", "large.json", "core/x.py"]
    assert check.leftovers(names, tmp_path) == ["a.orig", "workers/__pycache__/x.pyc", "large.json"]


def test_the_readme_shows_as_it_is_meant_to(tmp_path: Path) -> None:
    assert check.readme(check.read("README.md")) == []
    text = "# x\n\n```sh\nmake <b>\n```\n\n<div>\n\n[a](none.md) [b](https://example.org) `<id>`\n\n```\n"
    assert check.readme(text, tmp_path) == [
        "a code block is not closed",
        "HTML: <div>",
        "a link to none.md, which is not there",
    ]


@pytest.mark.parametrize(
    ("log", "fragments", "wrong"),
    [
        ("# Changelog\n\n## 1.2.3, 2026-12-24\n", [], 0),
        ("# Changelog\n\n## Unreleased\n", [], 1),
        ("# Changelog\n\n## 1.2.2, 2026-12-24\n", [".changes/a.md"], 2),
    ],
)
def test_a_tag_wants_its_own_changelog(log: str, fragments: list[str], wrong: int) -> None:
    assert len(check.changelog(log, fragments, "v1.2.3")) == wrong


def test_fragments_become_the_part_of_a_release() -> None:
    log = "# Changelog\n\nNewest first.\n\n## Unreleased\n\n* Old.\n\n## 0.1.0, 2026-01-01\n\n* First.\n"
    made = changelog.released(log, ["One\nand more.\n", "* Two.\n"], "0.2.0, 2026-12-24")
    assert made.partition("## 0.2.0, 2026-12-24\n\n")[2].startswith("* One\n  and more.\n* Two.\n* Old.\n\n## 0.1.0")
    assert "Unreleased" not in made
    later = changelog.released(made, ["Three."], "0.3.0, 2027-01-01")
    assert later.index("## 0.3.0") < later.index("* Three.") < later.index("## 0.2.0")


def test_each_fragment_can_go_into_the_changelog() -> None:
    for path in (ROOT / ".changes").glob("*.md"):
        text = path.read_text(encoding="utf-8").strip()
        assert text, path
        if path.name != "README.md":
            assert not text.startswith("#"), f"{path}: no heading"
            assert "\n\n" not in text, f"{path}: one entry"


def test_versions_agree() -> None:
    assert f"\nqueenright {check.version()}\n" in check.read("docs/reference/output.md")
