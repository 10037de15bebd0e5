"""The command line itself: help in any terminal, and what it makes of errors, odd arguments and an output that fails."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import tarfile
from typing import TYPE_CHECKING, Any

import pytest

from supervisor import bundle, cli, control, locks
from supervisor.checks import Check, Finding
from supervisor.commands import doctor
from supervisor.commands._common import watch
from supervisor.errors import ExitCode, QueenrightError, UsageError
from supervisor.slot import Slot

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator
    from pathlib import Path

COMMAND = [sys.executable, "-P", "-m", "supervisor.cli"]


@pytest.mark.parametrize("columns", [60, 80, 200])
def test_the_help_fits_into_the_terminal(
    columns: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    assert cli.main(["--help"]) == 0
    texts = {"": capsys.readouterr().out}
    for name in [*cli.CORE, *cli._added()]:
        with pytest.raises(SystemExit):
            cli.main([name, "--help"])
        texts[name] = capsys.readouterr().out
    long = [(name, line) for name, text in texts.items() for line in text.splitlines() if len(line) > columns]
    paragraphs = [line for name, line in long if not line.startswith(("  ", "usage: ")) or not name]
    assert not paragraphs, "too wide"
    assert "queenright exec -- sh -c 'curl" in texts["exec"], "an example stays as it is typed"
    assert "\n\nRequests wait for the release, up to their deadlines" in texts["hold"]


@pytest.mark.parametrize("name", cli.CORE)
def test_the_overview_says_what_the_command_says_of_itself(name: str) -> None:
    assert cli.CORE[name] == cli._find(name).help


class Failing:
    """A command that fails with words that somebody else chose."""

    help = "fails"

    def configure(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("words", nargs="*")
        parser.add_argument("--json", action="store_true")

    def run(self, args: argparse.Namespace) -> int:
        raise QueenrightError("the file \x1b[2J\udcff is bad", "look")


def test_an_error_shows_nothing_that_a_terminal_would_act_upon(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["failing"], {"failing": Failing()}) == ExitCode.ERROR
    assert capsys.readouterr().err == "queenright: the file ?[2J? is bad\n  look\n"


def test_json_of_the_program_behind_two_dashes_is_not_ours(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["failing", "--", "curl", "--json", "{}"], {"failing": Failing()}) == ExitCode.ERROR
    assert capsys.readouterr().out == ""
    assert cli.main(["failing", "--json", "--", "x"], {"failing": Failing()}) == ExitCode.ERROR
    assert json.loads(capsys.readouterr().out)["error"] == "QueenrightError"


@pytest.mark.process
@pytest.mark.parametrize("words", [["version"], ["init", "--print"]])
def test_an_output_on_a_full_disk_is_said_to_be_one(words: list[str], tmp_path: Path) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [*COMMAND, *words], stdout=full, stderr=subprocess.PIPE, text=True, cwd=tmp_path, timeout=60, check=False
        )
    assert done.returncode == ExitCode.ERROR
    assert done.stderr == "queenright: what it prints cannot be written: No space left on device\n"


@pytest.mark.process
def test_a_name_that_the_locale_cannot_show_and_a_closed_output_are_no_bugs_of_ours(tmp_path: Path) -> None:
    slot = tmp_path / "é"
    around = {**os.environ, "PYTHONIOENCODING": "ascii"}
    argv = [*COMMAND, "status", "--slot", str(slot)]
    done = subprocess.run(argv, capture_output=True, text=True, env=around, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (ExitCode.NO_ENGINE, "")
    assert done.stdout.endswith("\\xe9\n")
    closed = ["sh", "-c", 'exec "$@" >&-', "sh", *argv]
    done = subprocess.run(closed, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (ExitCode.NO_ENGINE, "")


def test_a_working_directory_that_was_removed_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert cli.main(["init"]) == ExitCode.ERROR
    assert capsys.readouterr().err.startswith("queenright: the working directory is not there any more\n")


@pytest.mark.parametrize("command", ["logs", "events"])
@pytest.mark.parametrize("number", ["-1", "many", "1.5"])
def test_a_number_of_lines_that_is_none_is_refused(
    command: str, number: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        cli.main([command, f"--lines={number}"])
    assert left.value.code == ExitCode.USAGE
    assert f"{number!r} is no number of lines" in capsys.readouterr().err


def test_a_disk_that_fills_up_is_no_bug_of_ours(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fill(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Failing, "run", fill)
    assert cli.main(["failing"], {"failing": Failing()}) == ExitCode.ERROR
    said = "queenright: a file cannot be written: No space left on device\n  make room on its disk\n"
    assert capsys.readouterr().err == said


def test_a_bundle_that_does_not_fit_onto_the_disk_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    path = tmp_path / "report.tar.gz"
    made = bundle.Bundle()
    made.files["a"] = b"x"
    with monkeypatch.context() as disk:
        disk.setattr(tarfile.TarFile, "addfile", full)
        with pytest.raises(QueenrightError, match="No space left"):
            made.write(path)
    assert not path.exists()
    made.write(path)
    with pytest.raises(UsageError, match="is there already"):
        made.write(path)


@pytest.mark.parametrize("words", [["logs"], ["logs", "--start"], ["events"]])
def test_a_slot_that_may_not_be_looked_into_is_not_one_without_an_engine(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    slot = tmp_path / "slot"
    slot.symlink_to(tmp_path)
    assert cli.main([*words, "--slot", str(slot)]) == ExitCode.ERROR
    assert "is a symbolic link" in capsys.readouterr().err
    assert cli.main([*words, "--slot", str(tmp_path / "none")]) == ExitCode.NO_ENGINE


@pytest.mark.process
def test_a_finding_of_many_lines_stands_apart_from_the_next(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "queenright.toml"
    config.write_text("[engine]\nkeep_wram = true\nslott = 1\n")
    assert cli.main(["doctor", "--config", str(config), "--slot", str(tmp_path / "slot")]) == ExitCode.ERROR
    lines = capsys.readouterr().out.splitlines()
    assert all(line.startswith(("ok ", "warning ", "bad ", "         ")) for line in lines), lines
    assert sum("unknown key" in line for line in lines) == 2


def test_what_a_finding_quotes_does_nothing_to_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = Check("stranger beside chat", Finding.WARNING, "started with \x1b[2J.gguf\ntoo", "end it:\n\x1b[0m")
    monkeypatch.setattr(doctor, "look", lambda _args: [found])
    assert cli.main(["doctor"]) == ExitCode.OK
    assert capsys.readouterr().out == (
        "warning  stranger beside chat: started with ?[2J.gguf\n         too\n         end it:\n         ?[0m\n"
    )


def test_what_a_wait_says_of_a_group_is_said_as_status_says_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    starting = {"name": "chat", "state": "starting", "reason": "it said \x1b[2J", "settled": False}
    held = {"name": "chat", "state": "held", "reason": "held by me", "settled": True}

    def converse(_slot: Slot, _op: str, **_arguments: Any) -> Iterator[dict[str, Any]]:
        yield from ({"groups": [group]} for group in (starting, held))

    monkeypatch.setattr(control, "converse", converse)
    monkeypatch.setattr(locks, "is_held", lambda _path: True)
    assert watch(Slot(tmp_path), ["chat"]) == {"groups": [held]}
    assert capsys.readouterr().err == "queenright: chat: starting: it said ?[2J\nqueenright: chat: held: by me\n"
