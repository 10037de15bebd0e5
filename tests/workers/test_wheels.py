"""What is known of installed wheels, against importlib.metadata."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path

import pytest

from workers import wheels


def test_everything_that_is_installed_here_is_found_as_importlib_metadata_finds_it() -> None:
    compared = 0
    for name in {one.metadata["Name"] for one in importlib.metadata.distributions() if one.read_text("RECORD")}:
        theirs, ours = importlib.metadata.distribution(name), wheels.find(name)
        assert ours is not None, name
        assert (ours.name, ours.version) == (name, theirs.version)
        listed = {Path(os.path.normpath(str(theirs.locate_file(file)))) for file in theirs.files or ()}
        found = set(ours.files())
        assert listed <= found, name
        assert not [path for path in found - listed if path.exists()], name  # newer ones leave out what is missing
        compared += bool(listed)
    assert compared > 10


def test_a_wheel_is_found_however_its_name_is_written_and_no_other_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for made in ("Some_Thing-1.0+cpu", "some_thing_else-2", "dots.in.it-4"):
        (tmp_path / f"{made}.dist-info").mkdir()
    (tmp_path / "old-3.egg-info").mkdir()
    monkeypatch.setattr("sys.path", [str(tmp_path / "not there"), str(tmp_path)])
    for name in ("some-thing", "Some.Thing", "some_thing"):
        found = wheels.find(name)
        assert found == (name, "1.0+cpu", tmp_path / "Some_Thing-1.0+cpu.dist-info")
        assert list(found.files()) == [], "it has no record"
    assert wheels.find("dots-in-it") is not None
    assert [wheels.find(name) for name in ("some", "thing", "old", "some-thing-e", "")] == [None] * 5


@pytest.mark.process
def test_a_server_of_a_wheel_is_found_without_importlib_metadata(tmp_path: Path) -> None:
    info, server = tmp_path / "lilbee_engine-3.dist-info", tmp_path / "lilbee_engine" / "llama-server"
    for folder in (info, server.parent):
        folder.mkdir()
    (info / "RECORD").write_text("../../bin/llama-server,,\nlilbee_engine/llama-server,sha256=x,1\n")
    server.write_text("#!/bin/sh\n")
    server.chmod(0o755)
    code = (
        "import sys; sys.path.insert(1, sys.argv[1]); from workers import engines;"
        "print(engines.find_llama_server(environment={'PATH': ''}).path, 'importlib.metadata' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(server), "False"]
