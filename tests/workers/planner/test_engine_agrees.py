"""The arithmetic against the engine's own estimate, of models that are headers and of a real one. Nothing is loaded."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from supervisor.cli import main
from workers import models
from workers.planner import compute, kv
from workers.planner.commands import EXPLAIN
from workers.planner.crosscheck import BUFFER, CACHE, Compared
from workers.planner.kv import CacheType, Shape
from workers.planner.model import read_model

PROGRAM = Path(__file__).resolve().parents[3] / "workers" / "xllamacpp_fit.py"
MIB = 1 << 20

pytestmark = [pytest.mark.engine, pytest.mark.process, pytest.mark.long]

CASES = {
    "one": (["-c", "32768", "--parallel", "1", "-fa", "on"], Shape(32_768, 1), True),
    "split": (["-c", "32768", "--parallel", "4", "-fa", "off"], Shape(8192, 4), False),
    "unified": (["-c", "32768", "--parallel", "4", "--kv-unified", "-fa", "on"], Shape(8192, 4, unified=True), True),
    "quantised": (
        ["-c", "16384", "--parallel", "2", "-fa", "on", "-ctk", "q8_0", "-ctv", "q8_0", "-ub", "1024"],
        Shape(8192, 2, CacheType.Q8_0, CacheType.Q8_0, ubatch=1024), True,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", ["gpt-oss-20b", "qwen3-4b", "gemma3-1b", "deepseek-v2-lite", "qwen3-next"])
def test_caches_are_the_engines_to_the_mib_and_compute_is_not_below(
    files: dict[str, Path], name: str, case: str
) -> None:
    pytest.importorskip("xllamacpp")
    flags, shape, flash = CASES[case]
    words = [sys.executable, "-P", str(PROGRAM), "-m", str(files[name]), *flags]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode:
        pytest.skip(f"the engine does not make this one: {done.stderr.splitlines()[-1:]}")
    place, _, context, buffer = done.stdout.split()
    assert place == "Host"
    model = read_model(files[name])
    ours = kv.kv_bytes(model, shape) + kv.state_bytes(model, shape.sequences)
    assert ours // MIB == pytest.approx(int(context), abs=1)
    reckoned = compute.compute_bytes(model, shape, flash) / MIB
    assert int(buffer) <= reckoned < 1.1 * int(buffer)
    # Within the bands, so a plan would not call the two different.
    assert not Compared("host", CACHE, ours, int(context) * MIB).differs
    assert not Compared("host", BUFFER, int(reckoned * MIB), int(buffer) * MIB).differs


def test_explain_of_a_real_model_has_the_engines_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """SmolLM2-135M at 8,192 tokens for each of two: 2 x 180 MiB of cache; weights of 92."""
    pytest.importorskip("xllamacpp")
    path = models.resolve("smollm2-135m")
    monkeypatch.setenv("QUEENRIGHT_CACHE", str(tmp_path))
    monkeypatch.delenv("QUEENRIGHT_ESTIMATOR")
    monkeypatch.setattr("workers.estimator.ESTIMATE_LIMIT", 60.0)
    words = ["explain", str(path), "--context", "8192", "--sequences", "2"]
    for more, place in ((["--ram", "16G"], "host"), (["--vram", "24G", "--ram", "16G"], None)):
        assert main([*words, *more, "--json"], known={"explain": EXPLAIN}) == 0
        found = json.loads(capsys.readouterr().out)["estimate"]
        assert found["by"].startswith("xllamacpp ")
        assert not found["differs"]
        said = {one["what"]: one["estimated"] >> 20 for one in found["compared"]}
        assert (said["weights"], said["keys and values"]) == (92, 360)
        assert {one["place"] for one in found["compared"]} == {place}
    assert len(list((tmp_path / "estimates").iterdir())) == 2
