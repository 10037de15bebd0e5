"""A download that goes on where it ended: RFC 9110, sections 14 (Range) and 13.1.5 (If-Range)."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Final

from supervisor.errors import PayloadError, WrongPayloadError
from workers.cache import write_whole

if TYPE_CHECKING:
    import httpx

    from workers.payload.fetching import Part
    from workers.progress import Progress

SILENCE: Final = 60.0  # budget:
"""Seconds without a byte, or for a connection. Object stores think for up to 30 s before the first one of a cold file."""
TRIES: Final = 5
"""In a row that brought not one byte: a server that restarts is back by then, and a wrong address is not worth more."""
PAUSE: Final = 1.0  # budget: before the second of them; each further one waits twice as long, 15 s in all

_RANGE: Final = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)")


class _CutError(Exception):
    """The connection ended, or the server is not well: worth another try."""


def download(url: str, part: Part, size: int, progress: Progress) -> None:
    """Fill `part` up to `size` bytes. Raises PayloadError; what arrived stays in the part."""
    import httpx

    fruitless = 0
    with httpx.Client(timeout=SILENCE, follow_redirects=True, headers={"accept-encoding": "identity"}) as client:
        while part.length != size or not part.path.exists():
            before = part.length
            try:
                _once(client, url, part, size, progress)
                return
            except (_CutError, httpx.RequestError) as error:
                fruitless = 0 if part.length > before else fruitless + 1
                if fruitless >= TRIES:
                    said = str(error) or type(error).__name__
                    raise PayloadError(
                        f"{_plain(url)} cannot be fetched: {said}",
                        f"{part.length:,} of {size:,} bytes are here; check the network, then try again",
                    ) from None
                time.sleep(PAUSE * 2 ** (fruitless - 1) if fruitless else 0)  # noqa: TID251 - the thread of a command
            except httpx.InvalidURL as error:
                raise WrongPayloadError(f"{_plain(url)} is no address: {error}", "correct the manifest") from None


def _once(client: httpx.Client, url: str, part: Part, size: int, progress: Progress) -> None:
    have, tag = part.length, part.tag
    if have > size:
        part.drop()
        have = 0
    headers = {"range": f"bytes={have}-"} if have else {}
    if have and tag:
        headers["if-range"] = tag  # another file by now: it is sent whole, from its beginning
    with client.stream("GET", url, headers=headers) as answer:
        if answer.status_code >= 500 or answer.status_code == 429:
            raise _CutError(f"HTTP {answer.status_code}")
        if answer.status_code == 416:
            part.drop()
            raise _CutError("the server has no such range; beginning anew")
        if answer.status_code not in (200, 206):
            raise PayloadError(
                f"{_plain(url)} cannot be fetched: HTTP {answer.status_code}", "check the source's address"
            )
        have = _begin(answer, part, have, size)
        with part.path.open("ab") as file:
            progress.at(have)
            for chunk in answer.iter_raw():
                file.write(chunk)
                file.flush()  # what is said to be there outlives whoever fetched it
                have += len(chunk)
                progress.at(have)
                if have > size:
                    return  # not the file that was named: who asked will say so
    if have < size and "content-length" not in answer.headers:
        raise _CutError("the answer ended early")


def _begin(answer: httpx.Response, part: Part, have: int, size: int) -> int:
    """Where the answer's first byte belongs; the part is cut to that. Raises PayloadError for a file of another length."""
    whole = int(answer.headers.get("content-length", -1)) if answer.status_code == 200 else -1
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
