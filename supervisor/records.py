"""Records: small versioned JSON files, for those who read what is (binders, status). The truth is in locks and the warden.

A record is replaced as a whole (temporary file, fsync, rename), so a reader never sees half of one, and carries a
checksum, so a damaged one is never taken for another truth. The layout, from the first version on:

    {"version": 1, "crc32": "89abcdef", "record": {...}}

`crc32` is over the rest as canonical JSON (sorted keys, no blanks, ASCII). `version` is the promise to later programs:
whoever finds one that he does not know says so and leaves the file alone.

All of it blocks (fsync): off the trio thread.
"""

from __future__ import annotations

import json
import os
import zlib
from functools import cache
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeVar

from supervisor.errors import RecordError, system_words

if TYPE_CHECKING:
    from pathlib import Path

    from cattrs import Converter

T = TypeVar("T")

CONTRACT_VERSION = 1
"""Of contract.json."""

GROUP_VERSION = 1
"""Of groups/<group>.json."""

RECORD_LIMIT = 16 * 1024 * 1024
"""Bytes read at most: a thousand times our largest record. More than this is not one of ours."""

_converting = Lock()
"""The converter learns its hooks while it converts, and is used from worker threads."""

BAD_KEPT = 9
"""Damaged records kept beside the good one. Enough to see a pattern; a broken disk must not fill itself with them."""


def write(path: Path, record: object, *, version: int, durable: bool = True) -> None:
    """Replace the record, readable by us alone. `record` is an instance of a frozen attrs class, or plain JSON data.
    Without `durable` it is whole or not at all for every reader, and only a power cut may leave neither old nor new.

    Raises RecordError when it cannot be written: what was there before is untouched then.
    """
    body = {"version": version, "record": unstructure(record)}
    try:
        whole = {"version": version, "crc32": _checksum(body), "record": body["record"]}
        text = json.dumps(whole, indent=1, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise RecordError(f"{path}: this cannot be a record: {error}") from error
    _replace(path, text.encode("ascii") + b"\n", durable=durable)


def write_text_private(path: Path, text: str) -> None:
    """Replace a file with this text; mode 0600 from its first moment. For keys and what only one boot can use: a power
    cut may lose it. Raises RecordError as `write` does."""
    _replace(path, text.encode("utf-8"), durable=False)


def read(path: Path, cls: type[T], *, version: int, set_aside: bool = True) -> T | None:
    """The record, as an instance of `cls`; None when there is none. No value is converted: 5 is not "5".

    Raises RecordError, naming file and field, for what does not parse; that file is then renamed to `<name>.bad-<n>`,
    unless `set_aside` is off: only the owner of a record may move it. One of another version is never moved.
    """
    data = read_fields(path, version=version, set_aside=set_aside)
    if data is None:
        return None
    try:
        return structure(data, cls)
    except RecordError as error:
        raise _damaged(path, error.what, set_aside=set_aside) from error


def read_fields(path: Path, *, version: int, set_aside: bool = False) -> dict[str, Any] | None:
    """The record as plain data, version and checksum compared; None when there is none. Cheap: nothing is imported.

    Raises RecordError as `read` does.
    """
    try:
        raw = _read_limited(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise RecordError(
            f"{path} cannot be read: {system_words(error)}", "make it readable, or move it away"
        ) from error
    if len(raw) > RECORD_LIMIT:
        raise _damaged(path, f"it is larger than {RECORD_LIMIT} bytes", set_aside=set_aside)
    try:
        # Strict ASCII: what we write is, and so no byte can turn into a replacement character.
        whole = json.loads(raw.decode("ascii"), object_pairs_hook=_unique, parse_constant=_refuse_constant)
        json.dumps(whole, allow_nan=False)  # 1e999 reads as infinity
    except (ValueError, RecursionError) as error:
        raise _damaged(path, f"it is not JSON of ours: {error}", set_aside=set_aside) from error
    found = whole.get("version") if isinstance(whole, dict) else None
    if not isinstance(found, int) or isinstance(found, bool):
        raise _damaged(path, "field version: expected a whole number", set_aside=set_aside)
    if found != version:
        age = "a newer" if found > version else "an older"
        raise RecordError(
            f"{path} is of version {found}, written by {age} queenright; this one knows version {version}",
            "it was left as it is: use the program that wrote it, or stop the engine with that one first",
        )
    record = whole.get("record")
    why = ""
    if sorted(whole) != ["crc32", "record", "version"]:
        why = f"expected the fields version, crc32, record; found {', '.join(whole)}"
    elif whole["crc32"] != _checksum({"version": found, "record": record}):
        why = "field crc32: the content was changed or damaged after it was written"
    elif not isinstance(record, dict):
        why = "field record: expected an object"
    if why or not isinstance(record, dict):
        raise _damaged(path, why, set_aside=set_aside)
    return record


def structure(data: object, cls: type[T]) -> T:
    """Plain JSON data as an instance of a frozen attrs class: every field there, no other, nothing converted.

    The one widening: a whole number may stand for a float. Raises RecordError naming the field.
    """
    from cattrs import transform_error

    try:
        with _converting:
            return _converter().structure(data, cls)
    except Exception as error:  # cattrs raises groups, and whatever a class's own checks raise
        lines = transform_error(error, path=cls.__name__, format_exception=_plain_reason)
        more = f" (and {len(lines) - 3} more)" if len(lines) > 3 else ""
        raise RecordError("; ".join(lines[:3]) + more) from error


def prepare(*classes: type) -> None:
    """Have these converted quickly from now on, for who has time to spare: to import cattrs, and to make its hooks for a
    contract, takes 25 ms of CPU time once (measured)."""
    with _converting:
        for cls in classes:
            _converter().get_structure_hook(cls)
            _converter().get_unstructure_hook(cls)


def unstructure(record: object) -> Any:
    """An instance of an attrs class as plain JSON data; plain data as itself."""
    if isinstance(record, dict):
        return record
    with _converting:
        return _converter().unstructure(record)


def clear_temporaries(directory: Path) -> int:
    """Delete what writers that were killed left behind; returns how many. Only for the one owner of a directory, before
    he writes there himself: another one's write would be lost. Raises RecordError when it cannot be read."""
    count = 0
    try:
        for name in os.listdir(directory):
            if name.startswith(".") and name.endswith(".tmp"):
                os.unlink(directory / name)
                count += 1
    except FileNotFoundError:
        return count
    except OSError as error:
        raise RecordError(f"{directory} cannot be cleared: {system_words(error)}", "make it writable for us") from error
    return count


def _checksum(body: dict[str, Any]) -> str:
    canonical = json.dumps(body, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return f"{zlib.crc32(canonical.encode('ascii')):08x}"


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object that names nothing twice: json itself would take the last one silently."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a field stands in it twice")
    return found


def _refuse_constant(text: str) -> object:
    raise ValueError(f"{text} is not JSON")


def _read_limited(path: Path) -> bytes:
    """The file's bytes, up to one more than RECORD_LIMIT. A named pipe or a device reads as empty or fails."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        parts = []
        left = RECORD_LIMIT + 1
        while left and (part := os.read(descriptor, min(left, 1 << 20))):
            parts.append(part)
            left -= len(part)
        return b"".join(parts)
    finally:
        os.close(descriptor)


def _replace(path: Path, data: bytes, *, durable: bool) -> None:
    temporary = f"{path.parent}/.{path.name}.{os.urandom(6).hex()}.tmp"
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            with open(descriptor, "wb", buffering=0) as file:
                view = memoryview(data)
                while view:
                    view = view[file.write(view) :]
                if durable:
                    os.fsync(file.fileno())
            os.rename(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise
        if not durable:
            return
        # The rename itself is only durable once the directory is (fsync(2)).
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        raise RecordError(
            f"{path} cannot be written: {system_words(error)}",
            "what stood there before is unchanged; free space or make the directory writable",
        ) from error


def _damaged(path: Path, why: str, *, set_aside: bool) -> RecordError:
    """The error for a record that does not parse; the file is moved out of the way if we may."""
    next_step = "it says nothing about whether an engine runs: `queenright status` asks the locks"
    if set_aside:
        names = [path.with_name(f"{path.name}.bad-{number}") for number in range(1, BAD_KEPT + 1)]
        aside = next((name for name in names if not os.path.lexists(name)), names[-1])
        try:
            os.rename(path, aside)
            next_step = f"it was set aside as {aside.name} and counts as absent"
        except OSError as error:
            next_step = f"it could not be set aside ({system_words(error)}): move it away by hand"
    return RecordError(f"{path} is damaged: {why}", next_step)


def _plain_reason(error: BaseException, kind: type | None) -> str:
    if isinstance(error, KeyError):
        return "this field is missing"
    if type(error).__name__ == "ForbiddenExtraKeysError":
        return f"unknown field: {', '.join(sorted(getattr(error, 'extra_fields', ())))}"
    return str(error)


@cache
def _converter() -> Converter:
    from supervisor import strict  # brings cattrs, which a command that only looks never needs

    return strict.converter()
