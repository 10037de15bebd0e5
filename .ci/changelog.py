"""`make changelog VERSION=1.2.3`: CHANGELOG.md's part of a release, of the fragments in .changes/, which it removes.

python .ci/changelog.py VERSION [--date 2026-12-24]
"""

from __future__ import annotations

import argparse
import datetime
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
UNRELEASED = "## Unreleased\n\n"


def released(text: str, fragments: list[str], title: str) -> str:
    """The changelog, with what was unreleased and each fragment under a title."""
    if UNRELEASED not in text:
        text = text.replace("\n## ", f"\n{UNRELEASED}## ", 1)
    entries = "".join(entry(fragment) for fragment in fragments)
    return text.replace(UNRELEASED, f"## {title}\n\n{entries}", 1)


def entry(fragment: str) -> str:
    """A fragment as an item of a list: its lines after the first are indented."""
    lines = fragment.strip().removeprefix("* ").splitlines()
    return "\n".join([f"* {lines[0]}", *(f"  {line.strip()}" for line in lines[1:])]) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("version")
    parser.add_argument("--date", default=str(datetime.datetime.now(datetime.UTC).date()))
    args = parser.parse_args()
    paths = [path for path in sorted((ROOT / ".changes").glob("*.md")) if path.name != "README.md"]
    log = ROOT / "CHANGELOG.md"
    text = log.read_text(encoding="utf-8")
    log.write_text(
        released(text, [path.read_text(encoding="utf-8") for path in paths], f"{args.version}, {args.date}"),
        encoding="utf-8",
    )
    for path in paths:
        path.unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main())
