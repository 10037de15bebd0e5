"""`queenright explain`, as a user calls it: on files that are headers, and on cards that are supposed."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from supervisor.cli import main
from workers.planner.commands import EXPLAIN
from workers.planner.shapes import GIB

if TYPE_CHECKING:
    from pathlib import Path


def explain(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    status = main(["explain", *words], known={"explain": EXPLAIN})
    return status, capsys.readouterr().out


def test_a_120b_moe_and_a_supposed_24_gb_card(files: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    path = str(files["gpt-oss-120b"])
    status, text = explain(capsys, path, "--vram", "24G", "--ram", "96G", "--context", "32768")
    assert status == 0
    assert "the experts of 24 of 36 layers in system memory" in text
    assert "--ctx-size 32768 --parallel 1" in text
    assert "--n-cpu-moe 24" in text
    status, text = explain(
        capsys, path, "--vram", "24G", "--ram", "96G", "--no-offload", "--context", "32768", "--json"
    )
    assert status == 6
    found: dict[str, Any] = json.loads(text)
    assert not found["fits"]
    assert {"--n-cpu-moe 24"} <= {offer["what"] for offer in found["would_fit"]}


def test_the_json_ledger_adds_up(files: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--vram", "24G", "--vram", "8G", "--ram", "32G", "--sequences", "auto", "--cache-ram", "1G", "--json")
    status, text = explain(capsys, str(files["gpt-oss-20b"]), *words, "--arguments=-ctk q8_0 --threads 4")
    found = json.loads(text)
    assert status == 0
    for place in found["places"]:
        lines = sum(line["bytes"] for line in found["ledger"] if line["place"] == place["place"])
        assert lines == place["needed"]
        assert place["free"] - place["reserve"] - lines == place["left"] >= 0
    assert {line["how"] for line in found["ledger"]} <= {"printed", "measured", "header", "modelled", "assumed"}
    assert found["requested"]["context"] is None
    assert found["effective"]["ctx_size"] == found["effective"]["context"] * found["effective"]["sequences"]
    assert found["arguments"][-2:] == ["--threads", "4"]
    assert found["effective"]["type_k"] == "q8_0"


def test_unified_memory_is_one_place(files: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--vram", "62G", "--unified", "--context", "4096", "--json")
    status, text = explain(capsys, str(files["gpt-oss-120b"]), *words)
    (place,) = json.loads(text)["places"]
    assert place["total"] == 62 * GIB
    assert status == 6  # 59.0 GiB of weights and 3.1 of reserve: 62 are 62, not twice that


@pytest.mark.parametrize("words", [["--vram", "24X"], ["--context", "many"]])
def test_a_wrong_size_is_a_usage_error(files: dict[str, Path], words: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["explain", str(files["qwen3-4b"]), *words], known={"explain": EXPLAIN})
    assert caught.value.code == 2
