"""`make release-check`: whether what would be published is whole. With TAG=v1.2.3 also whether it is that release.

    python .ci/release_check.py [--tag v1.2.3]

Says one line for each thing that was looked at; exit status 1 when one of them is wrong. Builds into a temporary directory
and changes nothing.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import zipfile
from email.parser import HeaderParser
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("supervisor", "workers", "chaos")
LEFT_OVER = re.compile(r"(?:~|\.orig|\.rej|\.swp|\.pyc|\.log|\.gguf|\.part|\.tar\.gz|\.DS_Store|/core)$")
LARGE = 1 << 20
"""Bytes from which a tracked file is not source."""


def version() -> str:
    """What the code says it is."""
    found = re.search(r'__version__ = "([^"]+)"', (ROOT / "supervisor" / "_version.py").read_text(encoding="utf-8"))
    return found[1] if found else ""


def files() -> list[str]:
    """Of the repository: tracked, and what is neither tracked nor ignored."""
    said = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],  # noqa: S607 - the one that made this clone
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return said.stdout.splitlines()


def leftovers(names: list[str], root: Path = ROOT) -> list[str]:
    """What nobody meant to publish."""
    found = [name for name in names if LEFT_OVER.search(name)]
    return found + [name for name in names if (root / name).is_file() and (root / name).stat().st_size > LARGE]


def readme(text: str, root: Path = ROOT) -> list[str]:
    """What of it would not show as it is meant to, in a package index or elsewhere."""
    wrong = []
    if text.count("\n```") % 2:
        wrong.append("a code block is not closed")
    outside = re.sub(r"^```.*?^```$|<!--.*?-->|`[^`]*`", "", text, flags=re.M | re.S)
    wrong += [f"HTML: {tag}" for tag in re.findall(r"<[a-z/][^>]*>", outside)]
    for target in re.findall(r"\]\(([^)#\s]+)", outside):
        if "://" not in target and not (root / target).exists():
            wrong.append(f"a link to {target}, which is not there")
    return wrong


def changelog(text: str, fragments: list[str], tag: str) -> list[str]:
    """Whether it is this release's."""
    top = re.search(r"^## (\S+)", text, flags=re.M)
    wrong = [f"{name} is not in it: `make changelog VERSION=...`" for name in fragments]
    if top is None or top[1].rstrip(",") != tag.removeprefix("v"):
        wrong.append(f"its newest part is {top[1] if top else 'none'}, not {tag.removeprefix('v')}")
    return wrong


def wheel(folder: Path) -> list[str]:
    """Builds it, and looks whether all of our files are in it and nothing else."""
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-d", str(folder)], cwd=ROOT, check=True, capture_output=True
    )
    (path,), wrong = folder.glob("*.whl"), []
    with zipfile.ZipFile(path) as archive:
        names = set(archive.namelist())
        info = next(name for name in names if name.endswith(".dist-info/METADATA"))
        facts = HeaderParser().parsestr(archive.read(info).decode())
    ours = {name for name in files() if name.split("/")[0] in PACKAGES and (ROOT / name).is_file()}
    wrong += [f"{name} is not in the wheel" for name in sorted(ours - names)]
    wrong += [f"{name} is in the wheel" for name in sorted(names - ours) if ".dist-info/" not in name]
    if facts["Version"] != version():
        wrong.append(f"the wheel says version {facts['Version']}")
    if facts["Description-Content-Type"] != "text/markdown" or facts.get_payload().strip() != read("README.md").strip():
        wrong.append("the wheel's description is not README.md as Markdown")
    if not list(folder.glob("*.tar.gz")):
        wrong.append("there is no source distribution")
    return wrong


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--tag", default="", help="the release's, as v1.2.3")
    tag = parser.parse_args().tag
    with tempfile.TemporaryDirectory() as folder:
        looked = {
            f"version {version()}": []
            if re.fullmatch(r"\d+\.\d+\.\d+(?:(?:a|b|rc)\d+)?", version())
            else ["no version"],
            "files": leftovers(files()),
            "README": readme(read("README.md")),
            "wheel": wheel(Path(folder)),
            "pages": []
            if f"\nqueenright {version()}\n" in read("docs/reference/output.md")
            else ["another version is shown"],
        }
    if tag:
        fragments = [
            f".changes/{path.name}" for path in sorted((ROOT / ".changes").glob("*.md")) if path.name != "README.md"
        ]
        looked[f"tag {tag}"] = [] if tag == f"v{version()}" else [f"the code says {version()}"]
        looked["CHANGELOG"] = changelog(read("CHANGELOG.md"), fragments, tag)
    for name, wrong in looked.items():
        print(f"{'ok' if not wrong else 'WRONG':6} {name}")
        for line in wrong:
            print(f"       {line}")
    return int(any(looked.values()))


if __name__ == "__main__":
    sys.exit(main())
