"""Files that a group is started with: missing, stale, cut short, interrupted, of no room. Each ends as it is said to."""

from __future__ import annotations

import hashlib
import json
import sys
import time
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from supervisor import identity, stopping
from tests.engine.kit import Launch
from tests.engine.seen import kill
from tests.engine.test_command import DUMMY, get
from tests.support import free_port
from tests.workers.payload_server import PayloadServer, serving

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.engine.place import Place

pytestmark = [pytest.mark.engine]

HALF = 200


@pytest.fixture
def source(place: Place) -> Iterator[PayloadServer]:
    """Serves the model of the place; it stops after HALF of it once its `stall` is cleared."""
    with serving(place.kit.chat.read_bytes()) as server:
        server.stall_after = HALF
        yield server


def write_manifest(
    place: Place, *files: tuple[str, bytes, str], sizes: dict[str, int] | None = None, folders: tuple[str, ...] = ()
) -> None:
    """Files by path, content and source; `sizes` says another one than the content has."""
    lines = [f"directories = {json.dumps(list(folders))}"]
    for path, content, url in files:
        size = (sizes or {}).get(path, len(content))
        lines += ["[[file]]", f'path = "{path}"', f"size = {size}"]
        lines += [f'sha256 = "{hashlib.sha256(content).hexdigest()}"', f"source = {json.dumps(url)}"]
    (place.home / "queenright.payload.toml").write_text("\n".join(lines) + "\n")


def configure_model(place: Place, source: PayloadServer, **more: Any) -> Path:
    """A llama-server whose model is still to come."""
    write_manifest(place, ("models/chat.gguf", source.content, source.url))
    model = place.home / "models" / "chat.gguf"
    place.configure({"chat": (Launch("chat", model),)}, payload=["chat.gguf"], **more)
    return model


def configure_command(place: Place, *names: str) -> None:
    """A command that reads these files."""
    words = [sys.executable, "-I", "-S", "-E", str(DUMMY), "--port", "{port}", "--events", str(place.home / "events")]
    lines = ["[engine]", f"slot = {json.dumps(str(place.slot.path))}", "[gateway]", "enabled = false", "[groups.web]"]
    lines += ['kind = "command"', f"payload = {json.dumps(names)}", "[groups.web.options]"]
    lines += [f"argv = {json.dumps(words)}", 'health = "/health"', "[[groups.web.launches]]"]
    place.config.write_text("\n".join([*lines, 'role = "web"', 'model = "dummy"']) + "\n")


def part_of(model: Path) -> Path:
    (part,) = model.parent.glob(f".{model.name}.*.part")
    return part


def ends(place: Place) -> list[dict[str, Any]]:
    """Deaths that were written down."""
    events = [json.loads(line) for line in place.slot.events.read_text().splitlines()]
    return [event for event in events if event["what"] == "ended"]


@pytest.mark.long
def test_a_first_start_fetches_and_says_how_far_it_is_and_is_no_failure(place: Place, source: PayloadServer) -> None:
    gateway = {"listen": f"127.0.0.1:{free_port()}", "deadline_s": 1.0}
    model = configure_model(place, source, gateway=gateway)
    source.stall.clear()
    place.run(wait=False)
    size = len(source.content)
    facts = place.until(
        lambda: (now := place.wait_state("fetching")) and now["fetching"]["bytes"] == HALF and now,
        within=60,
        what="the first half",
    )
    assert facts["fetching"] == {
        "what": f"fetching chat.gguf from {source.url}",
        "bytes": HALF,
        "of": size,
        "moved": facts["fetching"]["moved"],
        "trouble": None,
        "next_step": None,
    }
    assert (facts["restarts"], facts["cause"], facts["settled"]) == (0, None, False)
    code, found = place.status()
    assert (code, found["state"]) == (0, "fetching")
    shown = place.cli("status").stdout
    assert f"fetching chat.gguf from {source.url}: {100 * HALF // size} %" in shown
    assert "wrong" not in shown
    url = place.until(lambda: place.snapshot()["gateway"]["url"], within=60, what="the gateway")
    body = {"model": "chat", "messages": [{"role": "user", "content": "hello"}]}
    refused = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=30)
    assert refused.status_code == 503
    error = refused.json()["error"]
    assert (error["state"], "fetching chat.gguf" in error["reason"], f"{100 * HALF // size} %" in error["reason"]) == (
        "fetching",
        True,
        True,
    )
    source.stall.set()
    place.wait_state("running")
    assert model.read_bytes() == source.content
    assert httpx.post(f"{url}/v1/chat/completions", json=body, timeout=30).status_code == 200
    assert place.group()["restarts"] == 0
    assert not ends(place)
    told = place.cli("events").stdout
    assert f"chat: fetching: chat.gguf from {source.url}" in told
    assert "chat: failed" not in told


def test_an_interrupted_fetch_is_ended_at_once_by_a_stop_and_gone_on_with_by_the_next_start(
    place: Place, source: PayloadServer
) -> None:
    model = configure_model(place, source)
    source.stall.clear()
    place.run(wait=False)
    place.until(lambda: place.wait_state("fetching")["fetching"]["bytes"] == HALF, within=60, what="the first half")
    began = time.monotonic()
    assert stopping.stop(place.slot, who="a test").how == "keeper"
    assert time.monotonic() - began < 8  # the source is silent: 60 s are what a fetch alone waits
    assert not model.exists()
    assert part_of(model).stat().st_size == HALF
    source.stall.set()
    place.run()
    assert model.read_bytes() == source.content
    assert source.asked == ["", f"bytes={HALF}-"]
    assert not list(model.parent.glob("*.part"))


@pytest.mark.long
def test_a_fetch_that_is_held_and_released_goes_on_at_once_though_its_source_is_silent(
    place: Place, source: PayloadServer
) -> None:
    """The same keeper: what it had abandoned held the file for as long as the source was waited for, a minute."""
    model = configure_model(place, source)
    source.stall.clear()
    place.run(wait=False)
    place.until(lambda: place.wait_state("fetching")["fetching"]["bytes"] == HALF, within=60, what="the first half")
    assert place.cli("hold", "--group", "chat").returncode == 0
    assert part_of(model).stat().st_size == HALF
    began = time.monotonic()
    assert place.cli("release", "--group", "chat").returncode == 0
    place.until(lambda: len(source.asked) == 2, within=60, what="it asks again")
    assert time.monotonic() - began < 20
    source.stall.set()
    place.wait_state("running")
    assert model.read_bytes() == source.content
    assert source.asked == ["", f"bytes={HALF}-"]
    assert "another process" not in place.cli("events").stdout


@pytest.mark.long
def test_a_fetch_goes_on_where_it_was_when_the_keeper_is_killed(place: Place, source: PayloadServer) -> None:
    model = configure_model(place, source)
    source.stall.clear()
    place.run(wait=False)
    place.until(lambda: place.wait_state("fetching")["fetching"]["bytes"] == HALF, within=60, what="the first half")
    source.stall_after = 0
    keeper = identity.of(place.snapshot()["keeper"]["pid"])
    assert keeper is not None
    kill(keeper)
    place.wait_state("running")
    source.stall.set()
    assert model.read_bytes() == source.content
    assert source.asked[1] == f"bytes={HALF}-"


@pytest.mark.long
def test_a_stale_sidecar_a_truncated_file_and_a_missing_directory_are_put_right_before_a_start(
    place: Place,
) -> None:
    """The sidecar was exchanged in place and has the right size; the other file was cut; the directory that the container is
    to mount is not there."""
    there = place.home / "source"
    there.mkdir()
    content = {"overlay.hgn": b"new overlay", "weights.hgn": b"all of the weights"}
    for name, data in content.items():
        (there / name).write_bytes(data)
    (place.home / "overlay.hgn").write_bytes(b"old overlay")
    (place.home / "weights.hgn").write_bytes(b"all of")
    files = [(name, data, str(there / name)) for name, data in content.items()]
    write_manifest(place, *files, folders=("models/empty",))
    configure_command(place, *content)
    place.run()
    for name, data in content.items():
        assert (place.home / name).read_bytes() == data
    assert (place.home / "models" / "empty").is_dir()
    group = place.group("web")
    assert get(group["url"]) == b"HTTP/1.1 200 OK"
    assert (group["restarts"], ends(place)) == (0, [])


@pytest.mark.long
def test_a_full_disk_is_waited_out_and_said_and_is_no_failure(place: Place) -> None:
    there = place.home / "source"
    there.write_bytes(b"weights")
    write_manifest(place, ("weights.hgn", b"weights", str(there)), sizes={"weights.hgn": 1 << 55})
    configure_command(place, "weights.hgn")
    place.run(wait=False)
    facts = place.until(
        lambda: (now := place.wait_state("fetching", "web"))["fetching"]["trouble"] and now, within=60, what="trouble"
    )
    assert facts["fetching"]["trouble"] == "DiskFullError"
    assert "no room for" in facts["reason"]
    assert "make room" in facts["reason"]
    code, found = place.status()
    assert (code, found["state"]) == (0, "fetching")
    assert "wrong     web: no room for" in place.cli("status").stdout
    write_manifest(place, ("weights.hgn", b"weights", str(there)))  # there is, by now
    place.wait_state("running", "web")
    assert (place.group("web")["restarts"], ends(place)) == (0, [])


@pytest.mark.long
def test_another_file_than_was_named_is_given_up_and_said_apart_from_a_full_disk(place: Place) -> None:
    there = place.home / "source"
    there.write_bytes(b"WEIGHTS")
    write_manifest(place, ("weights.hgn", b"weights", str(there)))
    configure_command(place, "weights.hgn")
    place.run(wait=False)
    facts = place.wait_state("failed", "web")
    assert "is not the file of the manifest" in facts["reason"]
    assert "correct the manifest" in facts["reason"]
    assert (facts["restarts"], ends(place)) == (0, [])
    there.write_bytes(b"weights")
    assert place.cli("retry", "web").returncode == 0
    place.wait_state("running", "web")


def test_what_is_missing_and_comes_from_nowhere_is_refused_before_anything_starts(place: Place) -> None:
    write_manifest(place, ("weights.hgn", b"weights", ""))
    configure_command(place, "weights.hgn")
    done = place.cli("run")
    assert done.returncode != 0
    assert "the manifest names no source for it" in done.stderr
    configure_command(place, "wights.hgn")
    assert "has no file 'wights.hgn'" in place.cli("run").stderr
    place.assert_never_started()
