"""Put a file aside, with a record of where it was, and bring it back. Nothing is ever deleted here."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Final

from attrs import asdict, frozen

from supervisor.errors import PayloadError
from workers.cache import make_directory, sync_directory, write_whole
from workers.models import stamp_beside

DIRECTORY: Final = ".queenright-trash"
"""Beside the file, so that putting it aside is a rename: a copy of 100 GB to another disk takes room and minutes."""
RECORD: Final = "record.json"


@frozen
class Change:
    """A configuration that was pointed elsewhere, as it was and as it is."""

    path: Path
    before: str
    after: str


@frozen
class Aside:
    """What was put aside: `folder` holds it, `was` is where it lay, `to` what is used instead, `documents` what was pointed
    there. `at` is seconds UTC, for people."""

    folder: Path
    was: Path
    to: str
    at: float
    documents: tuple[Change, ...] = ()


def retire(path: Path, to: str, documents: tuple[Change, ...] = ()) -> Aside:
    """Move `path`, with its stamp, into the trash beside it. A process that has it open or mapped goes on with it.

    Raises PayloadError; it is then where it was.
    """
    trash = path.parent / DIRECTORY
    try:
        make_directory(trash)
        folder = _new_folder(trash, path.name)
        aside = Aside(folder, path, to, time.time(), documents)
        # The record first: a file in the trash that nobody knows the place of would be as good as deleted.
        write_whole(folder / RECORD, json.dumps(asdict(aside), default=str).encode())
        path.rename(folder / path.name)
        if (stamp := stamp_beside(path)).exists():
            stamp.rename(folder / stamp.name)
        sync_directory(folder)
        sync_directory(path.parent)
        for change in documents:
            write_whole(change.path, change.after.encode())
    except OSError as error:
        raise PayloadError(
            f"{path} was not put aside: {error.strerror or error}", "check path and permissions"
        ) from None
    return aside


def restore(aside: Aside) -> list[Path]:
    """Back to where it was, and what was pointed elsewhere points at it again. Gives the configurations that somebody
    changed since: they stay as they are. Raises PayloadError when something else is there now, or it cannot be moved."""
    changed = []
    kept = aside.folder / aside.was.name
    try:
        # A link fails where a name is taken; a rename would replace what is there.
        if kept.is_dir():
            if aside.was.exists():
                raise FileExistsError(17, "File exists")
            kept.rename(aside.was)
        else:
            os.link(kept, aside.was, follow_symlinks=False)
            kept.unlink()
        stamp = stamp_beside(kept)
        if stamp.exists():
            stamp.replace(stamp_beside(aside.was))
        for change in aside.documents:
            if change.path.is_file() and change.path.read_text(encoding="utf-8") == change.after:
                write_whole(change.path, change.before.encode())
            else:
                changed.append(change.path)
        (aside.folder / RECORD).unlink()
        aside.folder.rmdir()
        sync_directory(aside.was.parent)
    except FileExistsError:
        raise PayloadError(f"{aside.was} is there again", f"move it away first; the old one stays in {kept}") from None
    except OSError as error:
        raise PayloadError(f"{kept} was not brought back: {error.strerror or error}", "check its permissions") from None
    return changed


def listed(folder: Path) -> list[Aside]:
    """What was put aside out of `folder`, newest first. A record that cannot be read is passed over."""
    found = []
    for record in (folder / DIRECTORY).glob(f"*/{RECORD}"):
        try:
            data = json.loads(record.read_text(encoding="utf-8"))
            changes = tuple(Change(Path(each["path"]), each["before"], each["after"]) for each in data["documents"])
            was = folder / Path(data["was"]).name  # the trash may have been moved, with the models
            aside = Aside(record.parent, was, str(data["to"]), float(data["at"]), changes)
        except (OSError, ValueError, KeyError, TypeError):
            continue
        if (aside.folder / aside.was.name).exists():
            found.append(aside)
    return sorted(found, key=lambda aside: aside.at, reverse=True)


def find(path: Path) -> Aside | None:
    """The newest of that place, or None."""
    return next((aside for aside in listed(path.parent) if aside.was.name == path.name), None)


def _new_folder(trash: Path, name: str) -> Path:
    for number in range(1, 10_000):
        folder = trash / f"{name}.{number}"
        try:
            folder.mkdir()
        except FileExistsError:
            continue
        return folder
    raise OSError(17, f"{trash} is full of {name}")
