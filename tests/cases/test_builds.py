"""What an engine is made of changes under it: its program, its model's file; and what others made of the same."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from supervisor import _version, identity, locks, resolving
from supervisor.identity import Liveness
from tests.engine.fronts import OrderFailedError
from tests.engine.kit import Launch
from tests.engine.seen import Deaths, kill
from tests.fakes.llama_server import story
from tests.support import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.engine.place import Place

pytestmark = [pytest.mark.process, pytest.mark.long]


def build(place: Place, name: str, path: Path) -> None:
    """Another build of the server at that path, put there whole, as installers do."""
    assert place.kit.server is not None
    draft = path.with_name(f".{path.name}")
    draft.write_text(f"{place.kit.server.read_text()}# build {name}\n")
    draft.chmod(0o755)
    draft.replace(path)


def of_build(place: Place, path: Path) -> None:
    """Configure what uses the server at that path."""
    place.configure({"chat": (Launch("chat", knobs={"rate": 20}),)}, engine={"llama_server": str(path)})


def pin_of(place: Place) -> str:
    """What whoever comes with the configuration as it is would run."""
    return resolving.resolve(resolving.load(place.config)).groups[0].pin


def test_a_newer_build_replaces_an_idle_engine_and_goes_beside_one_in_use__ollama_4471(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = place.home / "old-server", place.home / "new-server"
    build(place, "old", old)
    build(place, "new", new)
    of_build(place, old)
    first = place.member("first")
    before = place.family()
    there = pin_of(place)
    monkeypatch.setattr(_version, "__version__", "99.0")
    assert pin_of(place) == there, "our own version is no part of it"
    assert place.front("same build").open() == "bind"
    of_build(place, new)
    newer = pin_of(place)
    second = place.front("second")
    assert second.open() == "overflow"
    assert place.family() == before
    assert first.ask("chat", "untouched")
    assert f"is of another build: {there} and not {newer}" in place.slot.events.read_text()
    for front in place.fronts:
        front.end()
    place.wait_empty()
    private = place.slot.private(str(place.home))
    wait_until(lambda: locks.is_held(private.warden_lock) is False, within=20, what="the private engine is gone")
    # Idle, kept warm by a configuration of the old build.
    place.configure({"chat": (Launch("chat"),)}, engine={"llama_server": str(old), "keep_warm": True})
    place.member("third").end()
    place.until(lambda: not place.snapshot()["members"], within=20, what="nobody uses it")
    of_build(place, new)
    assert place.front("fourth").open() == "replace"
    assert f"is of another build: {there} and not {newer}, and nobody uses it" in place.cli("status").stdout


def test_a_program_that_is_replaced_or_removed_changes_nothing_for_what_runs__llamafarm_568(place: Place) -> None:
    path = place.home / "llama-server"
    build(place, "old", path)
    of_build(place, path)
    first = place.member("first")
    before = place.family()
    stream = first.begin("stream", role="chat", prompt="bees", tokens=40)
    first.first(stream)
    build(place, "new", path)
    assert place.front("second").open() == "overflow", "the next one is of the new build"
    path.unlink()
    with pytest.raises(OrderFailedError) as failed:
        place.front("third").open()
    assert failed.value.facts["error"] == "EngineBinaryError"
    assert str(path) in failed.value.facts["what"]
    assert first.result(stream)["text"] == "".join(story("bees", 0, 40))
    assert place.family() == before
    assert first.ask("chat", "still there")


def test_a_models_file_that_is_replaced_or_removed_is_told_and_served_on__ollama_4443(place: Place) -> None:
    model = place.home / "mine.gguf"

    def lay() -> None:
        draft = place.home / ".mine"
        draft.write_bytes(place.kit.chat.read_bytes())
        draft.replace(model)

    lay()
    place.configure({"chat": (Launch("chat", model, knobs={"map-model": 1}),)})
    first = place.member("first")
    before = place.family()
    assert place.status()[1]["groups"][0]["servers"][0]["deleted_model"] is None
    lay()
    assert place.status()[1]["groups"][0]["servers"][0]["deleted_model"] == str(model)
    model.unlink()
    code, status = place.status()
    assert (code, status["state"]) == (0, "running")
    assert f"chat serves on out of {model}, which was removed or replaced" in place.cli("status").stdout
    assert any(
        check["name"] == "model file chat" for check in json.loads(place.cli("doctor", "--json").stdout)["checks"]
    )
    assert first.ask("chat", "still there")
    assert place.family() == before
    # The next start says what is missing.
    first.end()
    place.wait_empty()
    refused = place.cli("run")
    assert refused.returncode != 0
    assert str(model) in refused.stderr


def test_a_strangers_server_with_our_model_is_named_and_left_alone__hermes_agent_116249(place: Place) -> None:
    stranger = subprocess.Popen(
        [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(600)", "--model", str(place.kit.chat)],
        stdout=subprocess.PIPE,
        env=place.environment,
    )
    try:
        assert stranger.stdout is not None
        assert stranger.stdout.readline() == b"up\n"
        place.configure({"chat": (Launch("chat"),)})
        first = place.member("first")
        checks = json.loads(place.cli("doctor", "--json").stdout)["checks"]
        (told,) = [check for check in checks if check["name"] == "stranger beside chat"]  # not the engine's own server
        assert told["finding"] == "warning"
        assert told["text"].startswith(f"pid {stranger.pid} (")
        assert f"was started with {place.kit.chat} too; it holds " in told["text"]
        assert "attached" in told["next_step"]
        first.end()
        place.wait_empty()
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.communicate()


HOST = """
import subprocess, sys
run = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
print(run.pid, flush=True)
sys.stdin.read()
"""


def test_a_host_program_that_kills_its_engine_leaves_nothing_beside_the_next_one__llama_swap_138(place: Place) -> None:
    """What its server forked into a session of its own outlives it, and is gone before the next server starts."""
    place.configure({"chat": (Launch("chat", knobs={"fork": "sleep"}),)})
    host = subprocess.Popen(
        [sys.executable, "-c", HOST, *place.command("run")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=place.home,
        env=place.environment,
    )
    try:
        assert host.stdout is not None
        pid = int(host.stdout.readline())
        family = place.family()
        assert family.warden.pid == pid
        (left,) = [one for one in identity.with_marker("QUEENRIGHT_GENERATION") if one[1] == place.group()["generation"]
                   and one[0] not in family.everybody]  # fmt: skip
        with Deaths(family.everybody) as deaths:
            kill(family.warden)
            deaths.wait()
        assert identity.liveness(left[0]) is Liveness.ALIVE
        second = place.front("second")
        assert second.open() == "take over"
        assert identity.liveness(left[0]) is Liveness.DEAD
        assert second.ask("chat", "taken over")
        assert len(place.spawns()) == 2
    finally:
        host.kill()
        host.communicate()
