"""How far a load is, from what /proc says of a process that maps or reads a file."""

from __future__ import annotations

import mmap
import os
from typing import TYPE_CHECKING

from supervisor.load_progress import bytes_in, parts, resident_of

if TYPE_CHECKING:
    from pathlib import Path

SMAPS = b"""\
7f0000000000-7f0000100000 r--s 00000000 08:01 42 /m/a model.gguf
Size:               1024 kB
Rss:                 600 kB
VmFlags: rd sh
7f0000200000-7f0000300000 r--p 00000000 08:01 43 /lib/libc.so.6
Rss:                 512 kB
7f0000300000-7f0000400000 rw-p 00000000 00:00 0
Rss:                  64 kB
7f0000500000-7f0000600000 r--s 00100000 08:01 42 /m/a model.gguf
Rss:                   4 kB
"""


def test_what_is_resident_of_a_models_mappings_and_of_nothing_else_counts() -> None:
    assert resident_of(SMAPS, {"/m/a model.gguf"}) == 604 * 1024
    assert resident_of(SMAPS, {"/m/other.gguf"}) is None
    assert resident_of(b"", {"/m/other.gguf"}) is None


def test_a_process_that_maps_or_reads_the_file_is_seen_and_one_that_does_neither_is_unknown(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"x" * (4 << 20))
    name = os.path.realpath(path)
    assert bytes_in(os.getpid(), {name}) is None
    with path.open("rb", buffering=0) as file:
        before = bytes_in(os.getpid(), {name})
        file.read(1 << 20)
        after = bytes_in(os.getpid(), {name})
        assert before is not None
        assert after is not None
        assert after - before >= 1 << 20
        with mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapping:
            file.close()
            assert sum(mapping[at] for at in range(0, len(mapping), 4096)) > 0
            assert bytes_in(os.getpid(), {name}) == 4 << 20
    assert bytes_in(1 << 30, {name}) is None


def test_a_split_model_is_all_its_files(tmp_path: Path) -> None:
    for number in (1, 2):
        (tmp_path / f"m-{number:05}-of-00003.gguf").write_bytes(b"x" * 10 * number)
    assert parts(str(tmp_path / "m-00001-of-00003.gguf")) == {
        os.path.realpath(tmp_path / "m-00001-of-00003.gguf"): 10,
        os.path.realpath(tmp_path / "m-00002-of-00003.gguf"): 20,
    }
    assert parts("") == parts(str(tmp_path / "none.gguf")) == {}
