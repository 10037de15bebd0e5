"""Who holds a serving lock, as its holder wrote it beside the lock.

The lock decides, never this file. It is written once the lock is held and removed before it is released; a holder that
was killed leaves it behind. So it is believed only of a process that lives, and that the kernel does not contradict.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from supervisor import identity, locks, records
from supervisor.errors import RecordError
from supervisor.identity import Identity, Liveness

if TYPE_CHECKING:
    from pathlib import Path

    from supervisor.scopes import Place

SIDECAR_VERSION = 1
TOKEN_NAME = "server.token"  # noqa: S105 - the name of a file
"""What every token file is called: whoever writes a sidecar for us must not have us send just any secret of ours."""


class Holder(NamedTuple):
    """A server, as it describes itself. `url` is None until it listens; `token_file` holds what ends it, mode 0600."""

    identity: Identity
    program: str
    since: float
    """Seconds since the epoch, by its clock: for people, never for decisions."""
    data_dir: str
    url: str | None
    token_file: str

    @property
    def pid(self) -> int:
        """Its pid in its own namespace."""
        return self.identity.pid

    def describe(self) -> str:
        """For people, in one line."""
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.since))
        return f"{self.program} (pid {self.pid}, since {when}, {self.url or 'not listening yet'})"

    def as_dict(self) -> dict[str, Any]:
        """As data for errors. Where its token is, is nobody's business there."""
        return {
            "pid": self.pid,
            "program": self.program,
            "since": self.since,
            "url": self.url,
            "data_dir": self.data_dir,
        }


def write(sidecar: Path, holder: Holder) -> None:
    """Name the holder; the caller holds the lock. Raises RecordError."""
    records.write(sidecar, holder._asdict() | {"identity": holder.identity._asdict()}, version=SIDECAR_VERSION)


def remove(sidecar: Path) -> None:
    """Take the name away; the caller still holds the lock. What cannot be removed is not believed anyway."""
    with suppress(OSError):
        sidecar.unlink()


def read(sidecar: Path) -> Holder | None:
    """What the file says; None when it is missing, damaged, or not one of ours."""
    try:
        found = records.read_fields(sidecar, version=SIDECAR_VERSION)
        if found is None:
            return None
        url = found["url"]
        return Holder(
            identity.parse(found["identity"]),
            str(found["program"]),
            float(found["since"]),
            str(found["data_dir"]),
            None if url is None else str(url),
            str(found["token_file"]),
        )
    except (RecordError, AttributeError, KeyError, TypeError, ValueError):
        return None


def find(place: Place) -> Holder | None:
    """Who holds a lock that was found held; None when nobody can be believed to."""
    holder = read(place.sidecar) if _is_ours(place.sidecar) else None
    if holder is None or identity.liveness(holder.identity) is Liveness.DEAD:
        return None
    known = locks.holders(place.lock)
    if known and is_local(holder) and holder.pid not in known:
        return None
    return holder


def _is_ours(sidecar: Path) -> bool:
    """In a directory that others may write, somebody else's word is not the holder's."""
    try:
        return os.lstat(sidecar).st_uid == os.geteuid()
    except OSError:
        return False


def is_local(holder: Holder) -> bool:
    """Whether its pid means that process here."""
    try:
        return holder.identity.pid_namespace == identity.pid_namespace()
    except (OSError, ValueError):
        return False


def name(place: Place, holder: Holder | None) -> str:
    """The holder for a message, where nothing better is known by what the kernel says."""
    if holder is not None:
        return holder.describe()
    known = locks.holders(place.lock)
    return " and ".join(f"pid {pid}" for pid in known) or "a process that the kernel does not name"
