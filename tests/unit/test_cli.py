"""The command line itself: help in any terminal, and what it makes of errors, odd arguments and an output that fails."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from supervisor import cli
from supervisor.errors import ExitCode, QueenrightError

if TYPE_CHECKING:
    import argparse
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


@pytest.mark.parametrize("command", ["logs", "events"])
@pytest.mark.parametrize("number", ["-1", "many", "1.5"])
def test_a_number_of_lines_that_is_none_is_refused(
    command: str, number: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        cli.main([command, f"--lines={number}"])
    assert left.value.code == ExitCode.USAGE
    assert f"{number!r} is no number of lines" in capsys.readouterr().err
