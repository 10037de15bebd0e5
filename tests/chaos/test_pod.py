"""The run on a GPU machine: its parts, what is said of the GPU's memory, the report; and the whole of it here, without a GPU."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from chaos import gpu, pod, pod_report
from chaos.gpu import Held
from chaos.pod_report import Part, Watched
from supervisor.errors import UsageError
from tests.engine.kit import Kit, make_kit
from tests.fakes.nvml import MIB, Gpu, build
from tests.leak_check import MARKER
from tests.support import RAN, ROOT, Marker, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

NONE = Held(None, "there is no NVIDIA driver", is_absent=True)
FACTS: dict[str, Any] = {
    "machine": "2 cores", "python": "3", "queenright": "0", "memory": 1, "gpus": ["Hive 9000"], "gpu_why": "", "driver": "1",
    "llama_server": "x",
}  # fmt: skip


def held(mib: float) -> Held:
    return Held({"GPU-1": int(mib * MIB)})


def watched(used: Sequence[float | None], before: float = 500, after: float = 500) -> Watched:
    return Watched(held(before), [None if one is None else int(one * MIB) for one in used], held(after))


# --- the GPU's memory -----------------------------------------------------------------------------------------------

STEADY = [500, 8500, 8510, 8500, 4000, 8500, 8490]


def gpu_of(seen: Watched) -> dict[str, str]:
    return {claim: verdict for claim, (verdict, _) in pod_report.gpu_verdicts(seen).items()}


def test_an_engine_that_is_on_the_gpu_once_and_gives_it_back_is_green() -> None:
    assert set(gpu_of(watched(STEADY)).values()) == {"holds"}


@pytest.mark.parametrize(
    ("claim", "seen"),
    [
        ("never twice", watched([*STEADY, 16500, 8500])),
        ("given back", watched(STEADY, after=1200)),
        ("given back", watched(STEADY, before=1200, after=500)),
    ],
)
def test_each_claim_about_it_can_fail_alone(claim: str, seen: Watched) -> None:
    assert [name for name, verdict in gpu_of(seen).items() if verdict != "holds"] == [claim]


def test_a_run_that_never_used_the_gpu_proves_nothing_about_it() -> None:
    assert gpu_of(watched([500, 510, 505, 500])) == {
        "was used": "broken",
        "never twice": "unknown",
        "given back": "holds",
    }


@pytest.mark.parametrize(
    "seen",
    [
        watched([8500, 8500]),  # too few looks
        watched([*STEADY, None]),  # NVML fell silent for one
        Watched(Held(None, "it hangs"), [1, 2, 3], held(1)),
        Watched(held(1), [1, 2, 3], Held(None, "it hangs")),
    ],
)
def test_what_nvml_did_not_say_is_not_green(seen: Watched) -> None:
    assert set(gpu_of(seen).values()) == {"unknown"}


def test_without_a_gpu_nothing_is_said_of_it() -> None:
    assert pod_report.gpu_verdicts(Watched(NONE, [], NONE)) == {}


@pytest.mark.process
def test_an_answer_of_nvml_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_nvml = build(tmp_path)
    for name, value in fake_nvml.environment.items():
        monkeypatch.setenv(name, value)
    fake_nvml.say(Gpu("GPU-1", (24_000 * MIB, 20_000 * MIB)), Gpu("GPU-2", (24_000 * MIB, 23_000 * MIB)))
    seen = gpu.look()
    assert seen.total == 5_000 * MIB
    assert not seen.is_absent
    fake_nvml.say(Gpu("GPU-1", 15))  # its memory cannot be read
    broken = gpu.look()
    assert broken.total is None
    assert not broken.is_absent


# --- parts ----------------------------------------------------------------------------------------------------------


def judged(name: str, status: int, said: str) -> Part:
    return pod_report.judged(name, status, said, 1.0, Watched(NONE, [], NONE))


@pytest.mark.parametrize(
    ("name", "status", "said", "verdict"),
    [
        ("sweep", 0, '{"levels": []}', "measured"),
        ("sweep", 1, "", "broken"),
        ("sweep", 0, "", "unknown"),
        ("quants", 0, "[]", "unknown"),
        ("soak", 0, '{"verdict": "holds"}', "holds"),
        ("soak", 1, '{"verdict": "broken"}', "broken"),
        ("soak", 1, '{"verdict": "holds"}', "broken"),  # interrupted: fewer rounds than were asked for
        ("soak", 1, '{"verdict": "unknown"}', "unknown"),
        ("agents", 0, "no JSON", "unknown"),
        ("agents", 2, "", "unknown"),
    ],
)
def test_a_part_is_green_only_by_its_word_and_its_status(name: str, status: int, said: str, verdict: str) -> None:
    part = judged(name, status, said)
    assert part.verdict == verdict
    assert bool(part.why) is (verdict not in ("measured", "holds"))


def verdict_of(*parts: Part) -> str:
    return str(pod_report.as_data(FACTS, parts, command=["x"])["verdict"])


def test_the_whole_is_as_its_worst_part() -> None:
    green, measured, skipped = Part("soak", "holds"), Part("sweep", "measured"), Part("quants", "skipped", "none named")
    assert verdict_of(green, measured, skipped) == "holds"
    assert verdict_of(green, Part("agents", "unknown", "?")) == "unknown"
    assert verdict_of(green, Part("agents", "unknown", "?"), Part("sweep", "broken", "!")) == "broken"
    assert verdict_of(Part("soak", "holds", gpu={"given back": ("broken", "no")})) == "broken"
    assert verdict_of(Part("soak", "holds", gpu={"never twice": ("unknown", "?")})) == "unknown"
    assert verdict_of(skipped) == "unknown"  # nothing ran
    assert verdict_of() == "unknown"


def test_the_report_says_what_was_skipped_and_what_was_not_covered() -> None:
    facts = FACTS | {"gpus": [], "gpu_why": "there is no NVIDIA driver"}
    parts = [Part("quants", "skipped", "no two files were named"), Part("soak", "holds", not_covered=("meteors",))]
    text = pod_report.text(pod_report.as_data(facts, parts, command=["x"]))
    assert text.startswith("# holds, and not on a GPU")
    assert "quants: no two files were named" in text.partition("## Skipped")[2].partition("## Not covered")[0]
    assert "GPU memory, in every part: there is no NVIDIA driver" in text
    not_covered = text.partition("## Not covered")[2]
    for word in ("architectures", "prompt lengths", "hardware", "sequences", "soak: meteors"):
        assert word in not_covered


def test_each_part_is_a_command_or_says_why_it_is_none(tmp_path: Path) -> None:
    parser = argparse.ArgumentParser()
    pod.COMMAND.configure(parser)
    plain = parser.parse_args([])
    assert pod.words_of("quants", plain, tmp_path)[0] is None
    full = parser.parse_args(
        ["--config", "c.toml", "--quants", "a", "b", "--pairs", "2", "--streams", "1,2", "--rounds", "7", "--opencode"]
    )
    for name in pod.PARTS:
        words, why = pod.words_of(name, full, tmp_path)
        assert words is not None
        assert "--config" in words
        assert "--json" in words
        assert not why
    assert "7" in (pod.words_of("soak", full, tmp_path)[0] or [])
    assert "--opencode" in (pod.words_of("agents", full, tmp_path)[0] or [])


def test_a_part_that_is_none_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert pod.main(["--skip", "lunch"]) == int(UsageError.exit_code)
    assert "lunch" in capsys.readouterr().err


# --- all of it, on fakes and without a GPU --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def kit(tmp_path_factory: pytest.TempPathFactory) -> Kit:
    return make_kit(tmp_path_factory.mktemp("pod"))


@pytest.fixture
def config(kit: Kit, tmp_path: Path) -> Iterator[Path]:
    """A configuration of fakes, with a slot for the soak; and no process may be left."""
    RAN.setdefault("proxies", set()).add(kit.proxy_title)
    RAN.setdefault("servers", set()).add(kit.title)
    path = tmp_path / "fake.toml"
    groups = "".join(
        f'[groups.{role}]\n[[groups.{role}.launches]]\nrole = "{role}"\nmodel = {json.dumps(str(model))}\n{more}'
        for role, model, more in (
            ("chat", kit.chat, 'sequences = 4\narguments = ["--fake-rate=60"]\n'),
            ("embed", kit.embed, ""),
        )
    )
    path.write_text(
        f"[engine]\nslot = {json.dumps(str(tmp_path / 'slot'))}\nllama_server = {json.dumps(str(kit.server))}\n"
        f'llama_swap = {json.dumps(kit.proxy)}\n[gateway]\nlisten = "127.0.0.1:0"\n{groups}'
    )
    yield path
    Marker(os.environ[MARKER]).assert_no_process_left(within=20)


def start(config: Path, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "chaos.pod", "--config", str(config), "--out", str(config.parent / "out"), *words],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.long
@pytest.mark.process
@pytest.mark.timeout(600)
def test_it_runs_to_the_end_without_a_gpu_and_says_what_it_skipped(config: Path) -> None:
    words = ["--rounds", "1", "--streams", "1,2", "--pairs", "1", "--count", "2"]
    out, said = (process := start(config, *words)).communicate(timeout=500)
    assert process.returncode == 0, out + said
    data = json.loads((config.parent / "out" / "report.json").read_text())
    verdicts = {part["name"]: part["verdict"] for part in data["parts"]}
    assert verdicts == {"sweep": "measured", "quants": "skipped", "soak": "holds", "agents": "holds"}
    assert data["verdict"] == "holds"
    if not data["gpus"]:
        assert any("GPU memory" in one for one in data["skipped"])
        assert "not on a GPU" in out
    assert any(one.startswith("quants:") for one in data["skipped"])
    with tarfile.open(config.parent / "out.tar.gz") as archive:
        names = {Path(name).name for name in archive.getnames()}
    assert {"report.md", "report.json", "sweep.stdout", "soak.stderr", "report.html", "agents.json"} <= names


@pytest.mark.long
@pytest.mark.process
def test_interrupted_it_ends_its_part_and_still_writes_the_report(config: Path) -> None:
    process = start(config, "--skip", "sweep,quants,agents", "--rounds", "1000")
    out = config.parent / "out"
    rounds = out / "soak" / "rounds.jsonl"
    wait_until(lambda: rounds.exists() and rounds.read_text(), within=120, what="a round is over")
    process.send_signal(signal.SIGTERM)
    said, errors = process.communicate(timeout=200)
    assert process.returncode == 1, said + errors
    assert "Traceback" not in said + errors
    data = json.loads((out / "report.json").read_text())
    assert data["verdict"] == "unknown"
    assert data["parts"][2] == {
        "name": "soak",
        "verdict": "unknown",
        "why": "the run was interrupted",
        "seconds": 0.0,
        "gpu": {},
    }
    assert (out / "soak" / "report.html").is_file()  # the part healed, and told of what it had judged
    assert (config.parent / "out.tar.gz").is_file()
