"""Where serving locks are: one beside the data, and one for a scope, when the environment or the caller names one.

A scope spans data directories: a program that manages several of them wants one server over all, ever. A name is one
scope for each OS user, in the state directory; an absolute path is a directory of its own.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final, NamedTuple

from supervisor.errors import SlotError, UsageError
from supervisor.slot import filesystem_of, is_shared

SCOPE_VARIABLES: Final = ("QUEENRIGHT_EXCLUSIVE_SCOPE", "LILBEE_EXCLUSIVE_SCOPE")
"""The first that is set and not empty counts."""

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class Place(NamedTuple):
    """A lock and the file beside it that names its holder. `what` is how it is called in messages."""

    lock: Path
    sidecar: Path
    what: str


def scope_of_environment() -> str | None:
    """The scope that the environment names; None where it names none."""
    return next((value for name in SCOPE_VARIABLES if (value := os.environ.get(name, "").strip())), None)


def of_data(data_dir: Path) -> Place:
    """The lock of a data directory."""
    return Place(data_dir / "server.lock", data_dir / "server.owner.json", f"the data directory {data_dir}")


def of_scope(scope: str) -> Place:
    """The lock of a scope. Raises UsageError when it is neither a plain name nor an absolute path."""
    if scope.startswith("/"):
        folder = Path(scope)
        return Place(folder / "server.scope.lock", folder / "server.scope.owner.json", f"the scope {scope}")
    if not _NAME.fullmatch(scope):
        raise UsageError(
            f"the scope {scope!r} is neither a plain name nor an absolute path",
            f"use letters, digits, dots, - and _ ({' or '.join(SCOPE_VARIABLES)})",
        )
    from supervisor.config_find import slot_of_user

    folder = slot_of_user().parent / "scopes"
    return Place(folder / f"{scope}.lock", folder / f"{scope}.owner.json", f"the scope {scope}")


def prepare(folder: Path) -> None:
    """Make the directory (0700) if it is not there. Raises SlotError when it cannot be had, or where locks do not mean
    what they must."""
    descriptor = -1
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        kind = filesystem_of(descriptor)
    except OSError as error:
        raise SlotError(f"{folder} cannot be used: {error.strerror or error}", "choose another directory") from error
    finally:
        if descriptor >= 0:
            os.close(descriptor)
    if is_shared(kind):
        raise SlotError(
            f"{folder} is on a {kind} filesystem, where nobody can tell whether another server uses it",
            "put it on a local disk",
        )
