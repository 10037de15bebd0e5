"""The directories of this machine that a container is to see: what they may be, and that they are there before it starts.

podman refuses a bind mount whose source is missing (`statfs ...: no such file or directory`), and docker makes it, as root's.
So it is made here, as ours, which in a rootless container is its root's.
"""

from __future__ import annotations

import errno
import json
import re
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Final

from supervisor.errors import PayloadError
from workers import container_run

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from supervisor.contract import GroupSpec

KERNELS: Final = ("/proc", "/sys", "/dev")
"""Nothing is made in these: what is missing there is a device or a driver."""
_FILE_LIKE: Final = re.compile(r"\.[A-Za-z]{2,12}")
"""Of a file's name; qwen2.5-7b and conf.d are directories."""


def sources(argv: Sequence[str]) -> Iterator[str]:
    """Of the bind mounts, as they are written. What has no / and does not begin with a . or ~ is the name of a volume."""
    for name, value in container_run.pairs(argv):
        if name in ("-v", "--volume"):
            source, colon, _ = value.partition(":")
            if colon and (source.startswith((".", "~")) or "/" in source):
                yield source
        elif name == "--mount":
            words = dict(word.partition("=")[::2] for word in value.split(","))
            source = words.get("source", words.get("src", ""))
            if words.get("type") == "bind" and source:
                yield source


def problems(argv: Sequence[str]) -> Iterator[str]:
    """What such a source may not be."""
    for source in sources(argv):
        if not source.startswith("/") or ".." in PurePosixPath(source).parts:
            yield f"options.argv: {source}: expected an absolute path without .. for a bind mount: no shell reads it"


LEFT_ALONE: Final = frozenset({errno.EACCES, errno.EPERM, errno.ENAMETOOLONG})
"""Not for us to look into, and the container engine may run as root: it says what it misses. Any other trouble is that of a
disk (a dead network share), and is told before a start."""


def make(spec: GroupSpec) -> None:
    """Make those that are missing. Raises PayloadError for what is not there and cannot or must not be made. One that we may
    not look at is left to the container engine, which may be allowed to."""
    from workers.payload import directories

    for source in sources(json.loads(spec.options["argv"])):
        path = Path(source)
        try:
            if path.exists():
                continue
        except OSError as error:
            if error.errno in LEFT_ALONE:
                continue
            what = f"the container is to see {path}, which cannot be looked at: {error.strerror or error}"
            raise PayloadError(what, "see what holds it: a disk, or the network") from None
        if any(path.is_relative_to(folder) for folder in KERNELS):
            raise PayloadError(f"the container is to see {path}, and there is none", "check the device or the driver")
        if _FILE_LIKE.fullmatch(path.suffix):
            raise PayloadError(
                f"the container is to see {path}, and there is none: by its name it is a file, and no directory",
                "bring it, or name it in `payload`",
            )
        directories.make([path])
