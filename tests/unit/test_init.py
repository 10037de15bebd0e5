"""`queenright init`: writes a file that loads, whole or not at all, and never over one that is there."""

from __future__ import annotations

import argparse
import errno
import os
import stat
from typing import TYPE_CHECKING

import pytest

from supervisor.commands.init import COMMAND
from supervisor.config import load
from supervisor.config_text import TEMPLATE
from supervisor.errors import ExitCode, QueenrightError, UsageError

if TYPE_CHECKING:
    from pathlib import Path


def init(*arguments: str) -> int:
    """Run the command as the command line does."""
    parser = argparse.ArgumentParser()
    COMMAND.configure(parser)
    return COMMAND.run(parser.parse_args(arguments))


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory."""
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    return here


def test_it_writes_into_the_working_directory_what_loads(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert init() == 0
    path = here / "queenright.toml"
    said = capsys.readouterr().out
    assert said.startswith(f"wrote {path}\n")
    groups = load(path).groups
    assert groups.keys() == {"chat", "embed"}
    models = " ".join(launch.model for group in groups.values() for launch in group.launches)
    assert f"`queenright model pull {models}`" in said, "`run` refuses before they are here"
    assert "`queenright run`" in said
    assert os.listdir(here) == ["queenright.toml"]


def test_it_writes_to_a_file_or_into_a_directory_that_is_named(here: Path) -> None:
    init("other.toml")
    (here / "sub").mkdir()
    init("sub")
    assert (here / "other.toml").read_text() == (here / "sub" / "queenright.toml").read_text() == TEMPLATE


def test_it_prints_and_writes_nothing(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert init("--print") == 0
    assert capsys.readouterr().out == TEMPLATE
    assert os.listdir(here) == []


def test_the_file_has_the_mode_that_the_umask_says(here: Path) -> None:
    before = os.umask(0o027)
    try:
        init()
    finally:
        os.umask(before)
    assert stat.S_IMODE((here / "queenright.toml").stat().st_mode) == 0o640


def test_it_refuses_to_overwrite(here: Path) -> None:
    (here / "queenright.toml").write_text("# mine")
    with pytest.raises(UsageError, match="exists and was left as it is") as caught:
        init()
    assert caught.value.exit_code is ExitCode.USAGE
    assert "--force" in caught.value.next_step
    assert (here / "queenright.toml").read_text() == "# mine"


@pytest.mark.parametrize("links", [True, False])
def test_it_refuses_to_overwrite_what_appears_meanwhile(
    links: bool, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = os.link

    def late(source: Path, target: Path) -> None:
        target.write_text("# theirs")
        if not links:
            raise OSError(errno.EPERM, "no links here")
        link(source, target)

    monkeypatch.setattr(os, "link", late)
    with pytest.raises(UsageError, match="exists and was left as it is"):
        init()
    assert (here / "queenright.toml").read_text() == "# theirs"
    assert os.listdir(here) == ["queenright.toml"]


def test_it_writes_where_the_filesystem_has_no_links(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(source: Path, target: Path) -> None:
        raise OSError(errno.EPERM, "no links here")

    monkeypatch.setattr(os, "link", none)
    init()
    assert (here / "queenright.toml").read_text() == TEMPLATE
    assert os.listdir(here) == ["queenright.toml"]


def test_force_overwrites_and_keeps_mode_and_symlink(here: Path) -> None:
    (here / "real.toml").write_text("# mine")
    (here / "real.toml").chmod(0o600)
    (here / "queenright.toml").symlink_to("real.toml")
    init("--force")
    assert (here / "queenright.toml").is_symlink()
    assert (here / "real.toml").read_text() == TEMPLATE
    assert stat.S_IMODE((here / "real.toml").stat().st_mode) == 0o600


def test_what_cannot_be_written_is_said_and_leaves_nothing(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(QueenrightError, match="cannot be written: No such file or directory"):
        init("missing/queenright.toml")
    (here / "file").touch()
    with pytest.raises(QueenrightError, match="cannot be written: Not a directory"):
        init("file/queenright.toml")
    os.mkfifo(here / "fifo")
    with pytest.raises(UsageError, match="is not a regular file"):
        init("fifo", "--force")

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(QueenrightError, match="cannot be written: No space left on device"):
        init()
    assert sorted(os.listdir(here)) == ["fifo", "file"]
