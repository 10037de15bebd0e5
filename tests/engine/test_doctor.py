"""`queenright doctor`: what it finds wrong, and a bundle that works when nothing else does and gives nothing away."""

from __future__ import annotations

import json
import os
import signal
import stat
import tarfile
from typing import TYPE_CHECKING, Any

import pytest

from supervisor import budgets
from supervisor.errors import ExitCode
from tests.engine.kit import Launch

if TYPE_CHECKING:
    from pathlib import Path

    from tests.engine.place import Place

pytestmark = pytest.mark.process


def checks(place: Place) -> tuple[int, dict[str, dict[str, Any]]]:
    done = place.cli("doctor", "--json")
    found = json.loads(done.stdout)
    assert found["ok"] == (done.returncode == 0)
    return done.returncode, {check["name"]: check for check in found["checks"]}


def pack(place: Place, *words: str) -> dict[str, str]:
    path = place.home / "report.tar.gz"
    done = place.cli("doctor", "--bundle", str(path), *words)
    assert done.returncode == ExitCode.OK, done.stderr
    assert str(path) in done.stdout
    return unpacked(path)


def unpacked(path: Path) -> dict[str, str]:
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with tarfile.open(path) as tar:
        files = {member.name.removeprefix("queenright-doctor/"): tar.extractfile(member) for member in tar}
        return {name: file.read().decode() for name, file in files.items() if file is not None}


def test_a_good_place_is_found_good_and_no_engine_is_started(place: Place) -> None:
    code, found = checks(place)
    assert code == ExitCode.OK
    assert found["slot"]["finding"] == found["engine"]["finding"] == "ok"
    assert "chat" in found["configuration of chat"]["text"]
    place.assert_never_started()


def test_a_model_that_is_not_there_is_found(place: Place) -> None:
    place.configure({"chat": (Launch("chat", "/no/such.gguf"),)})
    code, found = checks(place)
    assert code == ExitCode.ERROR
    assert "/no/such.gguf" in found["configuration of chat"]["text"]
    assert found["slot"]["finding"] == "ok", "and the rest is checked all the same"


@pytest.mark.long
def test_a_group_that_failed_is_found_with_its_cause(place: Place) -> None:
    place.configure({"chat": (Launch("chat", knobs={"reject_flag": "--nope"}, arguments=("--nope",)),)})
    place.front().open(wait=False)
    place.wait_state("failed")
    code, found = checks(place)
    assert code == ExitCode.ERROR
    assert "bad flag: --nope" in found["group chat"]["text"]
    assert "queenright retry chat" in found["group chat"]["next_step"]
    starts = [text for name, text in pack(place).items() if name.endswith(".start.log")]
    assert len(starts) == budgets.DOOMED_TRIES
    assert all("invalid argument: --nope" in text for text in starts)


def test_a_bundle_has_what_a_report_needs_and_no_secret(place: Place) -> None:
    token = "hf_0123456789abcdef"
    launch = Launch("chat", arguments=("--fake-title=x", "--hf-token", token))
    place.configure({"chat": (launch,)})
    with place.config.open("a") as config:
        config.write(f'[groups.chat.environment]\nHF_TOKEN = "{token}"\nPLAIN = "1"\n')
    place.member()
    keys = [place.slot.group_key("chat").read_text().strip()]
    keys += [key for path in place.slot.groups.glob("*.keys") for key in path.read_text().split()]
    with place.slot.group_log("chat").open("a") as log:
        log.write(f"somebody printed {keys[-1]} and {token}\n")
    found = pack(place)
    assert {"configuration.json", "status.json", "versions.json", "contract.json", "events.jsonl"} <= set(found)
    assert {"logs/chat.log", "logs/keeper.log", "machine/proc/meminfo"} <= set(found)
    assert not any(name.endswith((".key", ".keys")) for name in found)
    assert "somebody printed" in found["logs/chat.log"]
    for name, text in found.items():
        for secret in (*keys, token):
            assert secret not in text, name
    assert json.loads(found["configuration.json"])["groups"]["chat"]["environment"]["PLAIN"] == "(removed)"
    again = place.cli("doctor", "--bundle", str(place.home / "report.tar.gz"))
    assert again.returncode == ExitCode.USAGE
    assert "is there already" in again.stderr


@pytest.mark.long
def test_a_bundle_is_made_of_a_keeper_that_hangs_and_of_files_that_cannot_be_read(place: Place) -> None:
    place.member()
    (place.slot.logs / "lost.log").symlink_to(place.home / "nowhere")
    (place.slot.groups / "odd.json").write_text("{half")
    keeper = place.family().keeper.pid
    os.kill(keeper, signal.SIGSTOP)
    try:
        found = pack(place)
    finally:
        os.kill(keeper, signal.SIGCONT)
        (place.slot.logs / "lost.log").unlink()
    assert "status.json" in found, found["problems.txt"]
    assert json.loads(found["status.json"])["state"] == "degraded"
    assert "logs/lost.log: FileNotFoundError" in found["problems.txt"]
    assert "odd.json: does not parse" in found["problems.txt"]
    assert "logs/chat.log" in found


def test_a_bundle_without_engine_and_configuration_says_so(place: Place) -> None:
    place.config.write_text("this is = = no TOML")
    found = pack(place)
    assert "queenright.toml" in found["problems.txt"]
    assert "machine/proc/meminfo" in found
    place.assert_never_started()


def test_what_a_files_header_says_against_its_use_is_a_warning(place: Place) -> None:
    place.configure({"chat": (Launch("chat"),), "rank": (Launch("rerank"),)})
    code, found = checks(place)
    assert code == ExitCode.OK, "a warning ends nothing"
    assert found["rank/rerank"]["finding"] == "warning"
    assert "scores that mean nothing" in found["rank/rerank"]["text"]
    assert found["rank/rerank"]["next_step"]
    assert "chat/chat" not in found
    place.assert_never_started()
