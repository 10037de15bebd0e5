"""llama.cpp's own estimate: who gives it, what it is asked, what is kept of it. A program that prints what was recorded
of `llama-fit-params --fit-print on` stands for it; the wheel's own is asked in the last tests."""

from __future__ import annotations

import json
import sys
import time
from math import inf
from typing import TYPE_CHECKING

import pytest

from workers import estimator
from workers.estimator import Estimate, Estimator, NoEstimateError, Part, TookTooLongError
from workers.models import resolve

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.process

RECORDED = "Host 92 180 104 \n"
"""llama-fit-params of b11434, SmolLM2-135M-Instruct Q4_1 with -c 8192 --parallel 4."""

TWO_CARDS = "CUDA0 4096 1024 512 \nCUDA1 3584 896 300 \nHost 280 0 32 \n"
"""The form for devices (its source): a line for each, the host's last."""

HELP = """\
-h,    --help, --usage                  print usage and exit
-c,    --ctx-size N                     size of the prompt context
-np,   --parallel N                     number of parallel sequences
-ctk,  --cache-type-k TYPE              KV cache data type for K
-fa,   --flash-attn [on|off|auto]       set Flash Attention use
-fitp, --fit-print [on|off]             print the estimated memory
"""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("QUEENRIGHT_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv(estimator.VARIABLE, raising=False)
    return tmp_path / "cache"


@pytest.fixture
def model(tmp_path: Path) -> list[Path]:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF")
    return [path]


def program(folder: Path, body: str, help_text: str = HELP) -> Path:
    """A llama-fit-params, that notes how it was asked."""
    folder.mkdir(exist_ok=True)
    path = folder / "llama-fit-params"
    path.write_text(
        f"#!/bin/sh\nif [ \"$1\" = --help ]; then cat <<'END'\n{help_text}END\nexit 0; fi\n"
        f'echo "$@" >> {folder}/asked\n{body}\n'
    )
    path.chmod(0o755)
    return path


def printing(folder: Path, text: str) -> Estimator:
    program(folder, f"printf '%b' {json.dumps(text)!s}")
    return estimator.find([str(folder / "llama-server")])


def asked(folder: Path) -> list[str]:
    path = folder / "asked"
    return path.read_text().splitlines() if path.exists() else []


FLAGS = [("--ctx-size", "8192"), ("--parallel", "4"), ("--cache-ram", "0")]


def test_the_program_beside_the_server_is_asked_in_flags_that_it_knows(tmp_path: Path, model: list[Path]) -> None:
    there = printing(tmp_path / "bin", RECORDED)
    assert there.knows
    found = estimator.ask(there, model, FLAGS, {})
    assert found == Estimate("llama-fit-params", (Part("Host", 92, 180, 104),))
    assert asked(tmp_path / "bin") == [f"--model {model[0]} --ctx-size 8192 --parallel 4 --fit-print on"]


def test_a_server_behind_a_link_has_its_own_estimator(tmp_path: Path) -> None:
    program(tmp_path / "build", "")
    (tmp_path / "build" / "llama-server").touch()
    link = tmp_path / "llama-server"
    link.symlink_to(tmp_path / "build" / "llama-server")
    assert estimator.find([str(link)]).argv == (str(tmp_path / "build" / "llama-fit-params"),)


def test_each_device_has_a_line_and_the_hosts_is_the_last() -> None:
    assert [one.device for one in estimator.parse(f"some log\n{TWO_CARDS}")] == ["CUDA0", "CUDA1", "Host"]
    for text in ("", "CUDA0 1 2 3\n", "Host 92 180\n", "usage: ...\n"):
        assert estimator.parse(text) == ()


def test_it_is_asked_once_for_the_same_and_again_for_anything_else(tmp_path: Path, model: list[Path]) -> None:
    there = printing(tmp_path / "bin", RECORDED)

    def count() -> int:
        return len(asked(tmp_path / "bin"))

    for _ in range(3):
        estimator.ask(there, model, FLAGS, {})
    assert count() == 1
    estimator.ask(there, model, [("--ctx-size", "4096")], {})
    assert count() == 2, "other flags"
    estimator.ask(there, model, FLAGS, {"CUDA_VISIBLE_DEVICES": "1"})
    assert count() == 3, "another environment"
    model[0].write_bytes(b"GGUF, another one")
    estimator.ask(there, model, FLAGS, {})
    assert count() == 4, "another file of that name"
    other = printing(tmp_path / "bin", TWO_CARDS)
    assert estimator.ask(other, model, FLAGS, {}).parts[0].device == "CUDA0", "another build at that place"


@pytest.mark.parametrize(
    "damage",
    [b"", b"{", b'{"version": 1, "key": [', b"[]", b"\xff\xfe", b'{"version": 0}', b'{"version": 1, "key": null, "parts": []}', b"[" * 9999],
)  # fmt: skip
def test_a_damaged_entry_is_none_and_is_replaced(cache: Path, tmp_path: Path, model: list[Path], damage: bytes) -> None:
    there = printing(tmp_path / "bin", RECORDED)
    estimator.ask(there, model, FLAGS, {})
    (entry,) = (cache / "estimates").iterdir()
    entry.write_bytes(damage)
    assert estimator.ask(there, model, FLAGS, {}).parts[0].model == 92
    assert len(asked(tmp_path / "bin")) == 2
    estimator.ask(there, model, FLAGS, {})
    assert len(asked(tmp_path / "bin")) == 2


def test_an_entry_that_says_something_else_than_the_host_is_none(
    cache: Path, tmp_path: Path, model: list[Path]
) -> None:
    there = printing(tmp_path / "bin", RECORDED)
    estimator.ask(there, model, FLAGS, {})
    (entry,) = (cache / "estimates").iterdir()
    for parts in (
        [],
        [["CUDA0", 1, 2, 3]],
        [["Host", "x", 2, 3]],
        [["Host", 1]],
        [["Host", -1, 2, 3]],
        [["Host", inf, 2, 3]],
    ):
        said = json.loads(entry.read_text())
        entry.write_text(json.dumps({**said, "parts": parts}))
        assert estimator.ask(there, model, FLAGS, {}).parts[0].model == 92


def test_no_secret_of_an_environment_is_kept(cache: Path, tmp_path: Path, model: list[Path]) -> None:
    estimator.ask(printing(tmp_path / "bin", RECORDED), model, FLAGS, {"HF_TOKEN": "hf_very_secret"})
    assert all("very_secret" not in path.read_text() for path in (cache / "estimates").iterdir())


def test_the_cache_is_bounded(cache: Path, tmp_path: Path, model: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimator, "MOST_KEPT", 3)
    there = printing(tmp_path / "bin", RECORDED)
    for number in range(5):
        estimator.ask(there, model, [("--ctx-size", str(number))], {})
    assert len(list((cache / "estimates").iterdir())) == 3


def test_a_cache_that_cannot_be_written_costs_an_estimate_each_time(
    cache: Path, tmp_path: Path, model: list[Path]
) -> None:
    cache.mkdir()
    (cache / "estimates").write_text("in the way")
    there = printing(tmp_path / "bin", RECORDED)
    for _ in range(2):
        assert estimator.ask(there, model, FLAGS, {}).parts
    assert len(asked(tmp_path / "bin")) == 2


def test_an_abort_is_unknown_with_its_reason_and_leaves_no_core(tmp_path: Path, model: list[Path]) -> None:
    program(
        tmp_path / "bin",
        f"ulimit -c > {tmp_path}/limit\necho 'error loading model: unknown architecture' >&2\necho 'what(): failed to load model' >&2\nkill -ABRT $$",
    )
    there = estimator.find([str(tmp_path / "bin" / "llama-server")])
    with pytest.raises(NoEstimateError, match=r"signal 6: error loading model: unknown architecture"):
        estimator.ask(there, model, FLAGS, {})
    assert (tmp_path / "limit").read_text() == "0\n"
    assert not list((tmp_path / "cache" / "estimates").glob("*")), "what came of it is not kept"


def test_one_that_hangs_is_ended_at_its_limit_and_left_alone_for_a_while(
    tmp_path: Path, model: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    program(tmp_path / "bin", "exec sleep 600")
    there = estimator.find([str(tmp_path / "bin" / "llama-server")])
    began = time.monotonic()
    with pytest.raises(TookTooLongError, match="said nothing within"):
        estimator.ask(there, model, FLAGS, {}, limit=0.3)
    with pytest.raises(
        TookTooLongError, match="a moment ago"
    ):  # a start plans again and again while it waits for memory
        estimator.ask(there, model, FLAGS, {})
    assert len(asked(tmp_path / "bin")) == 1
    monkeypatch.setattr(estimator, "SILENT_FOR", 0.0)
    estimator._silent.clear()
    for _ in range(2):
        with pytest.raises(TookTooLongError, match="within"):
            estimator.ask(there, model, FLAGS, {}, limit=0.1)
    assert time.monotonic() - began < 30


def test_one_that_cannot_be_told_what_decides_is_not_asked(tmp_path: Path, model: list[Path]) -> None:
    program(tmp_path / "bin", f"printf '{RECORDED}'", HELP.replace("--parallel", "--other"))
    there = estimator.find([str(tmp_path / "bin" / "llama-server")])
    with pytest.raises(NoEstimateError, match="has no --parallel"):
        estimator.ask(there, model, FLAGS, {})
    assert estimator.ask(there, model, [("--ctx-size", "8192"), ("--parallel", "1")], {}).parts
    program(tmp_path / "old", "", HELP.replace("--fit-print", "--fit-something"))
    with pytest.raises(NoEstimateError, match="older build"):
        estimator.find([str(tmp_path / "old" / "llama-server")])


def test_who_is_named_is_asked_and_none_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    named = program(tmp_path / "named", "")
    monkeypatch.setenv(estimator.VARIABLE, str(named))
    assert estimator.find([]).argv == (str(named),)
    for value, why in (("none", "do without"), (str(tmp_path / "nowhere"), "cannot be run")):
        monkeypatch.setenv(estimator.VARIABLE, value)
        with pytest.raises(NoEstimateError, match=why):
            estimator.find([])


def test_without_any_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimator, "WHEEL", "a-wheel-that-nobody-has")
    with pytest.raises(NoEstimateError, match="is installed"):
        estimator.find(["/usr/bin/llama-server"])


def test_a_model_that_went_away_is_unknown(tmp_path: Path, model: list[Path]) -> None:
    there = printing(tmp_path / "bin", RECORDED)
    model[0].unlink()
    with pytest.raises(NoEstimateError, match="No such file"):
        estimator.ask(there, model, FLAGS, {})


def test_llama_cpps_variables_of_whoever_plans_are_not_the_servers(
    tmp_path: Path, model: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLAMA_ARG_CTX_SIZE", "7")
    program(tmp_path / "bin", f'echo "$LLAMA_ARG_CTX_SIZE,$LLAMA_ARG_THREADS" >> {tmp_path}/seen\nprintf "{RECORDED}"')
    there = estimator.find([str(tmp_path / "bin" / "llama-server")])
    estimator.ask(there, model, FLAGS, {"LLAMA_ARG_THREADS": "3"})
    assert (tmp_path / "seen").read_text() == ",3\n"


def test_what_a_shell_shows_of_the_cards_does_not_poison_what_a_keeper_plans_with(
    tmp_path: Path, model: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kept by the group's environment alone, and so asked in no other: `CUDA_VISIBLE_DEVICES= queenright plan` would leave the
    answer of a machine without cards for the start that comes after it."""
    program(
        tmp_path / "bin", f'echo "$CUDA_VISIBLE_DEVICES,$CUDA_DEVICE_ORDER" >> {tmp_path}/seen\nprintf "{RECORDED}"'
    )
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    estimator.ask(estimator.find([str(tmp_path / "bin" / "llama-server")]), model, FLAGS, {})
    assert (tmp_path / "seen").read_text() == ",PCI_BUS_ID\n", "as a server has it"


# --- the wheel's own --------------------------------------------------------------------------------------------------


@pytest.mark.engine
@pytest.mark.long
def test_the_wheels_estimate_of_a_real_model(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """92, 180 and 104 MiB were recorded of llama-fit-params and of a server that loaded it (Q4_1, 8,192 tokens)."""
    pytest.importorskip("xllamacpp")
    monkeypatch.delenv("QUEENRIGHT_CACHE")
    path = resolve("smollm2-135m")
    monkeypatch.setenv("QUEENRIGHT_CACHE", str(cache))
    there = estimator.find(["/nowhere/llama-server"])
    assert there.argv[0] == sys.executable
    (host,) = estimator.ask(there, [path], [("--ctx-size", "8192"), ("--parallel", "4")], {}, limit=60).parts
    assert (host.device, host.model, host.context) == ("Host", 92, 180)
    assert 90 <= host.compute <= 120


@pytest.mark.engine
@pytest.mark.long
def test_the_wheel_aborts_over_what_is_no_model_and_that_is_unknown(model: list[Path]) -> None:
    pytest.importorskip("xllamacpp")
    there = estimator.find(["/nowhere/llama-server"])
    with pytest.raises(NoEstimateError, match="signal 6"):
        estimator.ask(there, model, FLAGS, {}, limit=60)
