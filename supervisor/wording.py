"""Times, sizes, tables and strange characters as people are told of them. Pure: `now` is given."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

WAY_OUT: Final = (
    "start the container engine again: it is then ended by itself, or by `queenright stop`; if nothing of it can be left,"
    " remove `groups/{name}.*.undo` in the slot"
)
"""What to do about what a generation of the group `name` left outside its processes."""


def printable(text: str) -> str:
    """One line, without what a terminal would act upon: reasons quote the logs of servers, and names of files may be any
    bytes."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else " " if one == "\t" else "?" for one in text)


def printable_lines(text: str, indent: str = "") -> str:
    """The same of several lines; those after the first begin with `indent`."""
    return f"\n{indent}".join(map(printable, text.split("\n")))


def why(state: str, reason: str) -> str:
    """A reason behind its state: `: by me` of what is held because it is `held by me`; "" where there is none."""
    said = reason.removeprefix(f"{state} ") if state in ("held", "fetching") else reason
    return f": {said}" if reason else ""


def span(seconds: float) -> str:
    """A length of time: `3 min`."""
    whole = max(0, int(seconds))
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if whole >= size:
            return f"{whole // size} {unit}"
    return f"{whole} s"


def ago(since: float | None, now: float) -> str:
    """How long ago that was, `?` where it is not known. Both are seconds of the epoch."""
    return "?" if since is None else span(now - since)


def amount(number: int | None) -> str:
    """Bytes: `2.8 GiB`."""
    if number is None:
        return "?"
    return f"{number / 2**30:.1f} GiB" if number >= 2**30 else f"{number / 2**20:.0f} MiB"


def percent(part: int, whole: int) -> str:
    """A part of a whole: `43 %`."""
    return f"{100 * part // max(1, whole)} %"


def progress(read: int, size: int) -> str:
    """Bytes out of bytes: `43 %, 1.2 of 2.8 GiB`."""
    unit, of = ("GiB", 2**30) if size >= 2**30 else ("MiB", 2**20)
    return f"{percent(read, size)}, {read / of:.1f} of {size / of:.1f} {unit}"


def table(rows: Sequence[Sequence[str]]) -> str:
    """Cells in columns, as wide as their widest: for a terminal, and for what is none."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )
