"""What `queenright soak` and `queenright agents` refuse before they start anything."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from supervisor import cli
from supervisor.errors import ExitCode

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("command", ["soak", "agents"])
def test_a_place_for_the_report_that_cannot_be_one_is_refused_at_once(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    out = tmp_path / "file" / "report"
    assert cli.main([command, "--out", str(out)]) == ExitCode.USAGE
    assert capsys.readouterr().err == (
        f"queenright: {out} cannot be made: Not a directory\n  name another directory with --out\n"
    )


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"verdict": "holds", "rounds": [1]}'])
def test_what_is_no_report_is_not_compared(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["soak", "compare", str(tmp_path / "a"), str(tmp_path / "b")]) == ExitCode.USAGE
    said = f"queenright: {tmp_path / 'a'} is no report of a soak: No such file or directory\n"
    assert capsys.readouterr().err.startswith(said)
    for name in ("a", "b"):
        (tmp_path / name).write_text(text)
    assert cli.main(["soak", "compare", str(tmp_path / "a"), str(tmp_path / "b")]) == ExitCode.USAGE
    said = capsys.readouterr().err
    assert "is no report of a soak" in said
    assert said.endswith("give the report.json of a run\n")
