"""A download that goes on where it ended: RFC 9110, sections 14 (Range) and 13.1.5 (If-Range).

It runs in a trio of its own, in whatever thread it is called: who reports its progress may end it at any moment, and what
blocks in a socket could not be ended for as long as the source is silent.
"""

from __future__ import annotations

import re
from pathlib import PurePath
from typing import TYPE_CHECKING, Final

from attrs import define

from supervisor.errors import PayloadError, WrongPayloadError
from workers.cache import write_whole

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import httpx
    import trio

    from workers.payload.fetching import Part
    from workers.payload.manifest import Item
    from workers.progress import Progress

SILENCE: Final = 60.0  # budget:
"""Seconds without a byte, or for a connection. Object stores think for up to 30 s before the first one of a cold file."""
TRIES: Final = 5
"""In a row that brought not one byte: a server that restarts is back by then, and a wrong address is not worth more."""
PAUSE: Final = 1.0  # budget: before the second of them; each further one waits twice as long, 15 s in all
LOOK: Final = (
    0.25  # budget: between two reports while nothing comes, and so from a stop to the end of a silent download
)

_RANGE: Final = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)")
_PAGE_TYPES: Final = ("text/html", "application/xhtml+xml")
_PAGE_NAMES: Final = (".html", ".htm", ".xhtml")
_PAGE: Final = re.compile(
    rb"(?:\xef\xbb\xbf)?\s*<(?:!doctype\s+html|html|head|body|script|meta|title)\b", re.IGNORECASE
)
"""How a web page begins, after a byte order mark and blanks."""


class _CutError(Exception):
    """The connection ended, or the server is not well: worth another try."""

    next_step = "check the network, then try again"


class _PageError(_CutError):
    """A web page came with a status that says it is the file, as from a network that wants a login first (RFC 8952, 1)."""

    next_step = (
        "a network that wants a login answers so, and an address that is a page's: look with a browser, then try again"
    )


@define
class _At:
    """How far it is, and what ended it from outside."""

    done: int = 0
    ended: BaseException | None = None


def download(url: str, part: Part, item: Item, progress: Progress) -> None:
    """Fill `part` up to the item's size. Raises PayloadError, and what `progress` raises, within LOOK of when it would; what
    arrived stays in the part. Blocks; not from within trio."""
    import trio

    trio.run(_download, url, part, item, progress)


async def _download(url: str, part: Part, item: Item, progress: Progress) -> None:
    import trio

    at = _At(part.length)
    with trio.CancelScope() as scope:
        # No nursery: out of one, what ends it would come as a group.
        trio.lowlevel.spawn_system_task(_look, at, progress, scope)
        await _try(url, part, item, progress, at)
    if scope.cancelled_caught and at.ended is not None:
        raise at.ended


async def _look(at: _At, progress: Progress, scope: trio.CancelScope) -> None:
    import trio

    while at.ended is None:
        await trio.sleep(LOOK)
        try:
            progress.at(at.done)
        except BaseException as error:  # noqa: BLE001 - whatever it is, it goes to who waits for the download
            at.ended = error
            scope.cancel()


async def _try(url: str, part: Part, item: Item, progress: Progress, at: _At) -> None:
    import httpx
    import trio

    size, fruitless = item.size, 0
    async with httpx.AsyncClient(
        timeout=SILENCE, follow_redirects=True, headers={"accept-encoding": "identity"}
    ) as client:
        while part.length != size or not part.path.exists():
            before = part.length
            try:
                await _once(client, url, part, item, progress, at)
                return
            except (_CutError, httpx.RequestError) as error:
                fruitless = 0 if part.length > before else fruitless + 1
                if fruitless >= TRIES:
                    said = str(error) or type(error).__name__
                    step = error.next_step if isinstance(error, _CutError) else _CutError.next_step
                    raise PayloadError(
                        f"{_plain(url)} cannot be fetched: {said}",
                        f"{part.length:,} of {size:,} bytes are here; {step}",
                    ) from None
                await trio.sleep(PAUSE * 2 ** (fruitless - 1) if fruitless else 0)
            except httpx.InvalidURL as error:
                raise WrongPayloadError(f"{_plain(url)} is no address: {error}", "correct the manifest") from None


async def _once(client: httpx.AsyncClient, url: str, part: Part, item: Item, progress: Progress, at: _At) -> None:
    have, tag, size = part.length, part.tag, item.size
    if have > size:
        part.drop()
        have = 0
    headers = {"range": f"bytes={have}-"} if have else {}
    if have and tag:
        headers["if-range"] = tag  # another file by now: it is sent whole, from its beginning
    async with client.stream("GET", url, headers=headers) as answer:
        if answer.status_code >= 500 or answer.status_code == 429:
            raise _CutError(f"HTTP {answer.status_code}")
        if answer.status_code == 416:
            part.drop()
            raise _CutError("the server has no such range; beginning anew")
        if answer.status_code not in (200, 206):
            raise PayloadError(
                f"{_plain(url)} cannot be fetched: HTTP {answer.status_code}", "check the source's address"
            )
        chunks = answer.aiter_raw()
        try:
            chunk = await anext(chunks, b"")
            if _is_page(answer, chunk, item):  # before the part is touched: it is of the file
                raise _PageError(f"a web page came in its place, from {_plain(str(answer.url))}")
            have = _begin(answer, part, have, size)
            with part.path.open("ab") as file:
                progress.at(have)
                while chunk:
                    file.write(chunk)
                    file.flush()  # what is said to be there outlives whoever fetched it
                    at.done = have = have + len(chunk)
                    progress.at(have)
                    if have > size:
                        return  # not the file that was named: who asked will say so
                    chunk = await anext(chunks, b"")
        finally:
            await _leave(chunks)
    if have < size and "content-length" not in answer.headers:
        raise _CutError("the answer ended early")


async def _leave(chunks: AsyncIterator[bytes]) -> None:
    """What is left of an answer is not wanted. A cancellation ends all that reads it, down to the socket; given up half-way,
    each generator of httpcore's would be left to the garbage collector."""
    import trio

    with trio.CancelScope() as scope:
        scope.cancel()
        async for _ in chunks:
            pass


def _is_page(answer: httpx.Response, first: bytes, item: Item) -> bool:
    """Whether what comes is a web page, and not another file than was named. An answer of the very length that was named is
    never taken for one, nor one whose type alone says so while its bytes are no text: its hash will tell."""
    if (
        answer.status_code != 200
        or PurePath(item.path).suffix.lower() in _PAGE_NAMES
        or _announced(answer) == item.size
    ):
        return False
    kind = answer.headers.get("content-type", "").partition(";")[0].strip().lower()
    is_text = b"\0" not in first or "content-encoding" in answer.headers
    return bool(_PAGE.match(first)) or (kind in _PAGE_TYPES and is_text)


def _announced(answer: httpx.Response) -> int:
    """Bytes that a whole answer says it has; -1 where it does not."""
    return int(answer.headers.get("content-length", -1)) if answer.status_code == 200 else -1


def _begin(answer: httpx.Response, part: Part, have: int, size: int) -> int:
    """Where the answer's first byte belongs; the part is cut to that. Raises PayloadError for a file of another length."""
    whole = _announced(answer)
    if answer.status_code == 206:
        found = _RANGE.fullmatch(answer.headers.get("content-range", ""))
        if found is None or int(found[1]) != have:
            part.drop()
            raise _CutError("the server sent another range than was asked for")
        whole = int(found[3]) if found[3] != "*" else -1
        part.is_joined = True
    else:
        part.drop()  # it has no ranges, or its file is another one by now
        have = 0
    if whole not in (-1, size):
        raise WrongPayloadError(
            f"{_plain(str(answer.url))} has {whole:,} bytes, and the manifest says {size:,}",
            "correct the manifest, if the source was renewed; what was in place is untouched",
        )
    tag = answer.headers.get("etag", "")
    if not have:
        # A weak tag says nothing about bytes, and a date has one second: neither may join two halves (RFC 9110, 13.1.5).
        write_whole(part.tag_path, (tag if not tag.startswith("W/") else "").encode())
    return have


def _plain(url: str) -> str:
    """Without a password and without a query: signed addresses carry a key in it."""
    return re.sub(r"//[^/?#]*@", "//", url).partition("?")[0]
