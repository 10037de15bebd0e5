"""The header reader: what it reads, and that nothing but ModelError comes out of a bad file."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.errors import ModelError
from tests.support import ROOT, as_plain_user
from workers.ggml_types import TYPE_SIZES
from workers.gguf_cursor import KEPT_ELEMENTS, Skipped
from workers.gguf_header import Header, read_header

TOKENS = KEPT_ELEMENTS + 100


def write_small(path: Path, **options: Any) -> None:
    """A small but complete GGUF, whose last tensor needs padding."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(8192)
    writer.add_block_count(2)
    writer.add_array("llama.attention.head_count_kv", [3, 4])
    writer.add_token_list([f"token{number}" for number in range(TOKENS)])
    writer.add_token_scores([0.5] * TOKENS)
    writer.add_float32("general.some_float", 0.25)
    writer.add_bool("general.some_flag", True)
    for key, value in options.items():
        writer.add_uint32(key.replace("__", "."), value)
    writer.add_tensor("matrix", np.zeros((4, 32), np.float16))
    writer.add_tensor("vector", np.ones(5, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gguf") / "small.gguf"
    write_small(path)
    return path


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("scratch") / "changed.gguf"


def refused(path: Path) -> str:
    with pytest.raises(ModelError) as caught:
        read_header(path)
    assert str(path) in caught.value.what
    assert caught.value.next_step
    return caught.value.what


def test_a_header_is_read_with_long_arrays_stepped_over(small: Path) -> None:
    header = read_header(small)
    assert header.version == 3
    assert header.architecture == "llama"
    assert header.tensor_count == 2
    assert [tensor.name for tensor in header.tensors] == ["matrix", "vector"]
    assert header.metadata["llama.attention.head_count_kv"] == (3, 4)
    assert header.metadata["tokenizer.ggml.tokens"] == Skipped(8, TOKENS)
    assert header.metadata["tokenizer.ggml.scores"] == Skipped(6, TOKENS)
    assert header.metadata["general.some_float"] == 0.25
    assert header.metadata["general.some_flag"] is True
    assert header.number("context_length") == 8192
    assert header.number("absent") is None
    assert header.split_count == 1
    assert header.data_offset + 4 * 32 * 2 + 5 * 4 == header.expected_size
    assert header.file_size == small.stat().st_size


def test_a_header_longer_than_the_first_read_is_read_whole(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = read_header(small)
    monkeypatch.setattr("workers.gguf_header.FIRST_READ", 16)
    assert read_header(small) == whole


def test_the_gguf_package_agrees_on_the_size_of_every_tensor_type() -> None:
    theirs = {int(kind): sizes for kind, sizes in gguf.GGML_QUANT_SIZES.items()}
    for kind in theirs.keys() & TYPE_SIZES.keys():
        assert TYPE_SIZES[kind] == theirs[kind], kind
    assert len(theirs.keys() & TYPE_SIZES.keys()) >= 30


@given(data=st.data())
def test_any_cut_before_the_end_of_the_last_tensor_is_refused(small: Path, scratch: Path, data: st.DataObject) -> None:
    whole = small.read_bytes()
    expected = read_header(small).expected_size
    assert expected is not None
    length = data.draw(st.integers(0, expected - 1))
    scratch.write_bytes(whole[:length])
    what = refused(scratch)
    if length > read_header(small).data_offset:
        assert f"expected {expected:,} bytes, found {length:,}" in what


def test_a_file_without_the_padding_behind_its_last_tensor_is_whole(small: Path, scratch: Path) -> None:
    header = read_header(small)
    assert header.expected_size is not None
    assert header.expected_size < header.file_size
    scratch.write_bytes(small.read_bytes()[: header.expected_size])
    assert read_header(scratch).expected_size == header.expected_size


@given(tail=st.binary(max_size=400), version=st.sampled_from([2, 3]), counts=st.booleans())
def test_random_bytes_are_refused_or_read_but_nothing_else(
    scratch: Path, tail: bytes, version: int, counts: bool
) -> None:
    start = b"GGUF" + struct.pack("<I", version) + (struct.pack("<QQ", 1, 2) if counts else b"")
    for content in (tail, start + tail):
        scratch.write_bytes(content)
        with suppress(ModelError):
            assert isinstance(read_header(scratch), Header)


@given(data=st.data())
def test_a_changed_byte_gives_a_header_or_a_refusal(small: Path, scratch: Path, data: st.DataObject) -> None:
    content = bytearray(small.read_bytes())
    end = read_header(small).data_offset
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, end - 1))] = data.draw(st.integers(0, 255))
    scratch.write_bytes(content)
    with suppress(ModelError):
        read_header(scratch)


def counts(tensors: int, pairs: int, rest: bytes = b"") -> bytes:
    return b"GGUF" + struct.pack("<IQQ", 3, tensors, pairs) + rest


def key(name: str, kind: int) -> bytes:
    return struct.pack("<Q", len(name)) + name.encode() + struct.pack("<I", kind)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty (0 bytes)"),
        (b"PK\x03\x04abcdefgh", "is not a GGUF file: it starts with 50 4b 03 04 61 62 63 64"),
        (b"GG", "truncated"),
        (b"GGUF\x03\x00", "truncated"),
        (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "GGUF version 1"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
        (counts(2**62, 0), "it claims 4,611,686,018,427,387,904 tensors"),
        (counts(0, 2**62), "metadata entries"),
        (counts(0, 1, key("a", 99) + b"12345678"), "unknown type 99"),
        (counts(0, 1, key("a", 9) + struct.pack("<IQ", 9, 1) + b"12345678"), "an array of the type 9"),
        (counts(0, 1, key("a", 9) + struct.pack("<IQ", 8, 2**61)), "array elements"),
        (counts(0, 1, key("a", 8) + struct.pack("<Q", 2**63)), "bytes of text"),
        (counts(0, 1, struct.pack("<Q", 2**63) + b"12345"), "bytes of a name"),
        (counts(1, 0, struct.pack("<Q", 0) + struct.pack("<I", 5) + bytes(60)), "has 5 dimensions"),
        (counts(0, 1, key("general.alignment", 4) + struct.pack("<I", 3)), "alignment"),
        (counts(1, 0, key("t", 1) + struct.pack("<QIQ", 32, 0, 5)), "not aligned"),
        (counts(1, 0, key("t", 1) + struct.pack("<QIQ", 33, 2, 0)), "not whole blocks of 32"),
        (counts(1, 0, key("t", 4) + struct.pack("<QQQQIQ", 2**63, 2**63, 2**63, 2**63, 0, 0)), "truncated: expected"),
    ],
)
def test_each_kind_of_bad_file_is_named(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(content)
    assert said in refused(path)


def test_a_text_in_a_long_array_that_reaches_beyond_the_file_is_refused(tmp_path: Path) -> None:
    for length in (2**40, 2**63, 2**64 - 1):
        texts = struct.pack("<IQ", 8, KEPT_ELEMENTS + 1) + struct.pack("<Q", length) + bytes(8 * KEPT_ELEMENTS)
        path = tmp_path / "bad.gguf"
        path.write_bytes(counts(0, 1, key("a", 9) + texts))
        assert "longer than the file" in refused(path)


def test_a_tensor_type_from_the_future_is_read_without_an_expected_size(tmp_path: Path) -> None:
    path = tmp_path / "new.gguf"
    path.write_bytes(counts(1, 0, key("t", 1) + struct.pack("<QIQ", 32, 4711, 0)))
    assert read_header(path).expected_size is None


def test_a_part_of_a_split_model_is_read(tmp_path: Path) -> None:
    path = tmp_path / "part.gguf"
    path.write_bytes(counts(0, 1, key("split.count", 2) + struct.pack("<H", 3)))
    header = read_header(path)
    assert header.split_count == 3
    assert header.architecture == ""


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    assert "does not exist" in refused(tmp_path / "absent.gguf")
    assert "is a directory" in refused(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    assert "is not a regular file" in refused(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    assert "cannot be read" in refused(tmp_path / "loop")
    refused(Path("nul\0byte"))


@pytest.mark.process
def test_an_unreadable_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "secret.gguf"
    path.write_bytes(b"GGUF")
    path.chmod(0)
    code = "import sys; from workers.gguf_header import read_header; read_header(sys.argv[1])"
    command = [*as_plain_user(), sys.executable, "-c", code, str(path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert "ModelError" in done.stderr
    assert "Permission denied" in done.stderr
