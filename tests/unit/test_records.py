"""Records: what is written is read, and nothing else is."""

from __future__ import annotations

import errno
import json
import os
import resource
from typing import TYPE_CHECKING
from unittest.mock import Mock

import pytest
from attrs import frozen
from hypothesis import given
from hypothesis import strategies as st

from supervisor import records
from supervisor.contract import EngineSpec, Exit, GatewaySpec, GroupSpec, LaunchSpec, Lifetime
from supervisor.errors import RecordError

if TYPE_CHECKING:
    from pathlib import Path

# With lone surrogates: that is how a file name that is not UTF-8 reaches us.
texts = st.text(st.characters(exclude_categories=()), max_size=12)
counts = st.integers(min_value=-(2**63), max_value=2**63)
seconds = st.floats(allow_nan=False, allow_infinity=False)
tables = st.dictionaries(texts, texts, max_size=3)
launches = st.builds(LaunchSpec, texts, texts, texts, counts, counts, st.lists(texts, max_size=3).map(tuple), counts)
groups = st.builds(
    GroupSpec, texts, texts, st.lists(launches, max_size=2).map(tuple), texts, tables, tables, seconds, seconds
)
specs = st.builds(EngineSpec, st.lists(groups, max_size=2).map(tuple), st.sampled_from(Lifetime), st.booleans())

SPEC = EngineSpec(
    (
        GroupSpec("chat", "llama-swap", (LaunchSpec("chat", "m", "/m.gguf", 4096, 2, ("-x", "1")),), "b1", {"o": "1"}),
        GroupSpec("embed", "llama-swap", (), "b1", grace_s=3.0),
    ),
    Lifetime.RUN,
)


@frozen
class Wide:
    """What the contract's classes have not: an optional field, a list, a float."""

    name: str | None
    pids: list[int]
    share: float = 0.5


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "contract.json"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One directory for all examples of a property: no example depends on what stands in it."""
    return tmp_path_factory.mktemp("records")


def put(path: Path, body: object, *, version: object = 1) -> None:
    """A record whose checksum is right, whatever it says."""
    crc = records._checksum({"version": version, "record": body})
    path.write_text(json.dumps({"version": version, "crc32": crc, "record": body}))


@given(specs)
def test_any_contract_survives_a_round_trip(folder: Path, spec: EngineSpec) -> None:
    path = folder / "round"
    records.write(path, spec, version=1)
    assert records.read(path, EngineSpec, version=1) == spec


@given(st.data())
def test_a_damaged_record_reads_equal_or_is_refused(folder: Path, data: st.DataObject) -> None:
    path = folder / "damaged"
    records.write(path, SPEC, version=1)
    raw = bytearray(path.read_bytes())
    at = data.draw(st.integers(0, len(raw) - 1))
    if data.draw(st.booleans()):
        del raw[at:]
    else:
        raw[at] ^= data.draw(st.integers(1, 255))
    path.write_bytes(raw)
    try:
        found = records.read(path, EngineSpec, version=1, set_aside=False)
    except RecordError as error:
        refused = error.what
    else:
        assert found == SPEC
        return
    assert str(path) in refused


@given(st.binary(max_size=200))
def test_garbage_is_refused(folder: Path, garbage: bytes) -> None:
    path = folder / "garbage"
    path.write_bytes(garbage)
    with pytest.raises(RecordError):
        records.read(path, EngineSpec, version=1, set_aside=False)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


def test_what_was_prepared_is_converted_without_making_much(monkeypatch: pytest.MonkeyPatch) -> None:
    data = records.unstructure(SPEC)

    def made() -> int:
        """How often cattrs compiles a hook for what it is given; it forgets some whenever it learns of another class."""
        compiling = Mock(wraps=compile)
        with monkeypatch.context() as patch:
            patch.setattr("builtins.compile", compiling)
            assert records.unstructure(records.structure(data, EngineSpec)) == data
        return compiling.call_count

    records._converter.cache_clear()
    cold = made()
    records._converter.cache_clear()
    records.prepare(EngineSpec, GroupSpec, LaunchSpec, GatewaySpec)
    assert made() < cold / 2


@given(st.sampled_from(["groups", "lifetime", "keep_warm", "other"]), json_values)
def test_a_foreign_value_is_never_turned_into_ours(key: str, value: object) -> None:
    data = records.unstructure(SPEC)
    data[key] = value
    try:
        found = records.structure(data, EngineSpec)
    except RecordError as error:
        refused = error.what
    else:
        # Anything accepted says the same as what was there to be read.
        assert records.unstructure(found)[key] == value
        return
    assert key in refused


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"name": "a", "pids": [1]}, Wide("a", [1])),
        ({"name": None, "pids": [], "share": 2}, Wide(None, [], 2.0)),
        ({"name": 5, "pids": []}, "name"),
        ({"name": "a", "pids": ["1"]}, "pids[0]"),
        ({"name": "a", "pids": [True]}, "pids[0]"),
        ({"name": "a", "pids": [1.0]}, "pids[0]"),
        ({"name": "a", "pids": "12"}, "expected a list"),
        ({"name": "a", "pids": {"1": 2}}, "expected a list"),
        ({"name": "a", "pids": [], "share": "0.5"}, "share"),
        ({"name": "a", "pids": [], "share": True}, "share"),
        ({"name": "a"}, "missing"),
        ({"name": "a", "pids": [], "nmae": 1}, "unknown field: nmae"),
    ],
)
def test_no_value_is_converted_and_the_field_is_named(path: Path, body: object, expected: object) -> None:
    put(path, body)
    if isinstance(expected, Wide):
        found = records.read(path, Wide, version=1)
        assert found == expected
        assert type(found.share) is float
        return
    with pytest.raises(RecordError) as caught:
        records.read(path, Wide, version=1, set_aside=False)
    assert str(expected) in caught.value.what
    assert str(path) in caught.value.what


def test_a_deep_field_is_named_by_its_path(path: Path) -> None:
    body = records.unstructure(SPEC)
    body["groups"][0]["launches"][0]["context"] = "4096"
    put(path, body)
    with pytest.raises(RecordError, match=r"groups\[0\]\.launches\[0\]\.context"):
        records.read(path, EngineSpec, version=1, set_aside=False)


def test_what_is_missing_is_none(path: Path) -> None:
    assert records.read(path, EngineSpec, version=1) is None
    assert records.read_fields(path, version=1) is None


def test_a_record_is_ours_alone_and_leaves_no_temporary_file(path: Path) -> None:
    before = os.umask(0)
    try:
        for number in range(3):
            records.write(path, Exit(1, number), version=1)
        records.write_text_private(path.with_name("chat.key"), "secret")
    finally:
        os.umask(before)
    assert sorted(os.listdir(path.parent)) == ["chat.key", "contract.json"]
    assert {each.stat().st_mode & 0o777 for each in path.parent.iterdir()} == {0o600}
    assert records.read(path, Exit, version=1) == Exit(1, 2)
    assert path.with_name("chat.key").read_text() == "secret"


def test_the_cheap_reader_gives_the_same_data(path: Path) -> None:
    records.write(path, SPEC, version=1)
    assert records.read_fields(path, version=1) == records.unstructure(SPEC)
    records.write(path, {"pid": 1}, version=1)
    assert records.read_fields(path, version=1) == {"pid": 1}


def test_a_damaged_record_is_set_aside_by_its_owner_only(path: Path) -> None:
    path.write_text("{")
    with pytest.raises(RecordError):
        records.read(path, EngineSpec, version=1, set_aside=False)
    assert os.listdir(path.parent) == ["contract.json"]
    for number in range(1, records.BAD_KEPT + 3):
        path.write_text("{" * number)
        with pytest.raises(RecordError, match="set aside as"):
            records.read(path, EngineSpec, version=1)
        assert not path.exists()
    assert len(os.listdir(path.parent)) == records.BAD_KEPT
    assert path.with_name("contract.json.bad-1").read_text() == "{"
    assert records.read(path, EngineSpec, version=1) is None


@pytest.mark.parametrize("other", [0, 2, 99])
def test_another_version_is_reported_and_left_alone(path: Path, other: int) -> None:
    # Even one whose layout is another: only `version` is promised.
    path.write_text(json.dumps({"version": other, "and": "whatever"}))
    with pytest.raises(RecordError, match=f"version {other}"):
        records.read(path, EngineSpec, version=1)
    assert os.listdir(path.parent) == ["contract.json"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        "[]",
        "{}",
        '{"version": true, "crc32": "", "record": {}}',
        '{"version": 1, "version": 1, "crc32": "", "record": {}}',
        '{"version": 1, "crc32": "", "record": {"a": 1e999}}',
        '{"version": 1, "crc32": "", "record": {"a": NaN}}',
        '{"version": 1, "crc32": null, "record": {}}',
        "[" * 100_000,
        "9" * 10_000,
        "\ufeff{}",
    ],
)
def test_no_text_gets_past_as_anything_but_an_error(path: Path, text: str) -> None:
    path.write_text(text)
    with pytest.raises(RecordError, match="damaged"):
        records.read(path, EngineSpec, version=1, set_aside=False)


def test_a_record_that_is_no_object_is_refused(path: Path) -> None:
    put(path, [1])
    with pytest.raises(RecordError, match="expected an object"):
        records.read_fields(path, version=1)


def test_what_is_no_file_of_ours_is_one_clear_error(path: Path, tmp_path: Path) -> None:
    path.mkdir()
    with pytest.raises(RecordError, match="EISDIR"):
        records.read(path, EngineSpec, version=1)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(RecordError):
        records.read(tmp_path / "pipe", EngineSpec, version=1, set_aside=False)
    (tmp_path / "link").symlink_to(tmp_path / "pipe")
    with pytest.raises(RecordError, match="ELOOP"):
        records.read(tmp_path / "link", EngineSpec, version=1)


@pytest.mark.parametrize("body", [{"a": float("nan")}, {"a": {1, 2}}])
def test_what_cannot_be_json_is_refused_before_anything_is_touched(path: Path, body: object) -> None:
    records.write(path, {"a": 1}, version=1)
    with pytest.raises(RecordError):
        records.write(path, body, version=1)
    assert records.read_fields(path, version=1) == {"a": 1}
    assert os.listdir(path.parent) == ["contract.json"]


def test_a_full_disk_leaves_the_old_record_and_says_why__bitcoin_21340(path: Path) -> None:
    records.write(path, SPEC, version=1)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    try:
        with pytest.raises(RecordError) as caught:
            records.write(path, SPEC, version=1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert errno.errorcode[errno.EFBIG] in caught.value.what
    assert str(path) in caught.value.what
    assert os.listdir(path.parent) == ["contract.json"]
    assert records.read(path, EngineSpec, version=1) == SPEC
    records.write(path, Exit(1, 0), version=1)
    assert records.read(path, Exit, version=1) == Exit(1, 0)


def test_a_missing_directory_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="ENOENT"):
        records.write(tmp_path / "none" / "x.json", SPEC, version=1)


def test_leftovers_of_killed_writers_are_cleared(path: Path) -> None:
    records.write(path, SPEC, version=1)
    path.with_name(".contract.json.0123456789ab.tmp").touch()
    assert records.clear_temporaries(path.parent) == 1
    assert records.clear_temporaries(path.parent) == 0
    assert records.clear_temporaries(path.parent / "none") == 0
    assert os.listdir(path.parent) == ["contract.json"]
